"""A whole disturbed run as events, made up: what the real processes would have said."""

from perdure.chaos import DeleteNewestCheckpoint, Freeze, Injection, Kill, Thaw
from perdure.demo.acts import plan_acts
from perdure.demo.director import Director
from perdure.demo.report import Report
from perdure.demo.settings import Settings
from perdure.demo.training import Happening, look_back

SETTINGS = Settings(seed=7, updates=100)
STEPS = 1024
FACTS = {
    Kill: {"pid": 42, "signal": "SIGKILL"},
    Freeze: {"pid": 43, "signal": "SIGSTOP"},
    Thaw: {"pid": 43, "signal": "SIGCONT"},
    DeleteNewestCheckpoint: {"checkpoint": "c7", "step": 70 * STEPS, "fallback": "c6"},
}
"""What an injector would say of each fault."""


class Story:
    """Tells events to a director one second after the other, and has its faults happen."""

    def __init__(self, settings=SETTINGS, *, acts=None):
        self.settings = settings
        self.director = Director(plan_acts(settings.updates) if acts is None else acts)
        self.happenings = []
        self.faults = []
        self.at = 0.0
        self.update = 0
        self.generation = 1
        self.life = 1
        self.lives = {f"actor-{i}": 0 for i in range(4)}
        self.dropped = {}

    def tell(self, event, after=0.1, **facts):
        """Let something happen a moment later."""
        self.at += after
        happening = Happening(self.at, {"event": event, **facts})
        self.happenings.append(happening)
        fault = self.director.hear(self.at, happening.event)
        if fault is not None:
            self.faults.append(fault)
            self.director.injected(self.at, Injection(fault, FACTS[type(fault)]))

    def train(self, until, *, without=()):
        """Make updates up to one, without some actors."""
        while self.update < until:
            self.update += 1
            self.tell(
                "update",
                update=self.update,
                step=self.update * STEPS,
                value=float(min(500, 5 * self.update)),
                generation=self.generation,
                life=self.life,
                senders={name: f"{name}.{life}" for name, life in self.lives.items() if name not in without},
                age=1,
                dropped=dict(self.dropped),
            )
            if self.update % 10 == 0:
                self.tell("saved", after=0.0, step=self.update * STEPS, checkpoint=f"c{self.update // 10}")
            if self.update % 20 == 0:
                self.tell("evaluation", after=0.0, update=self.update, step=self.update * STEPS, value=480.0)

    def lose_learner(self, resumed_from, *, at_update):
        """Let the learner be dead, and come back from a checkpoint."""
        self.tell("member-fault", after=0.02, member="learner", reason="SIGKILL", exit_code=None, signal="SIGKILL")
        lost = self.update - at_update
        self.generation += 1
        self.life, self.update, self.dropped = self.generation, at_update, {"undone": 2}
        self.tell(
            "restored",
            after=5.0,
            generation=self.generation,
            checkpoint=resumed_from,
            step=at_update * STEPS,
            steps_lost=lost * STEPS,
        )

    def lose_actor(self, name, *, exit_code=None):
        """Let an actor's lease end, its process be gone, and another one come."""
        self.tell("member-lost", after=1.5, member=name, incarnation=f"{name}.{self.lives[name]}", cause="silent")
        self.generation += 1
        self.dropped = {**self.dropped, "wrong-generation": self.dropped.get("wrong-generation", 0) + 3}
        self.tell("generation-minted", after=0.01, generation=self.generation, reason=f"lost {name} (silent)")
        signal = "SIGKILL" if exit_code is None else None
        self.tell("member-fault", after=0.2, member=name, reason="gone", exit_code=exit_code, signal=signal)
        self.train(self.update + 2, without=(name,))
        self.lives[name] += 1

    def told(self):
        """Tell the whole story: every fault, every recovery."""
        self.train(21)
        self.lose_learner("c1", at_update=11)
        self.train(36)
        self.lose_actor("actor-1")
        self.train(51)
        self.lose_actor("actor-2", exit_code=12)
        self.train(71)
        self.lose_learner("c6", at_update=61)
        self.train(100)
        return self

    def training(self, name="disturbed", exit_code=0):
        """Look back on what was told so far."""
        return look_back(
            name,
            exit_code,
            self.happenings,
            updates=self.settings.updates,
            samples_dropped=self.director.samples_dropped,
            incidents=self.director.incidents,
            faults_missing=len(self.director.waiting),
        )


def undisturbed(settings=SETTINGS):
    """The same run without faults."""
    story = Story(settings, acts=())
    story.train(settings.updates)
    return story


def report(story=None):
    """The report of a story, or of the whole one."""
    return Report(
        SETTINGS,
        (story or Story().told()).training(),
        undisturbed().training("undisturbed"),
        host={"cpus": "2"},
        versions={"perdure": "0"},
    )
