"""Pacing: what the log is told of an interval that saving has changed."""

from perdure.core.saving import Budget, Every
from perdure.pacing import Pace


def learn(pace: Pace, cost_seconds: float) -> bool:
    pace.learn("every-steps", blocked_seconds=cost_seconds, write_seconds=0.0, interval_seconds=1.0)
    return pace.has_news()


def test_only_what_moves_far_is_news():
    """An interval that swings a little is told once; one that grows by half is told again."""
    pace = Pace(Every(steps=1), Budget(0.1), 0.0)

    assert not pace.has_news()
    assert not learn(pace, 0.05)
    assert learn(pace, 0.16)  # a stretch of 1.6
    assert not learn(pace, 0.11)  # 1.76
    assert learn(pace, 0.2)  # 3.5


def test_a_way_back_is_news_as_well():
    """Once saves are cheap again the interval shrinks step by step, and the log says so at the first half."""
    pace = Pace(Every(steps=1), Budget(0.1), 0.0)
    learn(pace, 0.4)

    assert [learn(pace, 0.0) for _ in range(6)] == [False, True, False, True, False, False]
