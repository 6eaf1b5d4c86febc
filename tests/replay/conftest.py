"""Rings to test with, small enough that a segment is a few rows."""

import numpy as np
import pytest

from perdure.replay import RingBuffer, RingComponent
from tests.replay.harness import Shop

COLUMNS = {
    "obs": (np.uint8, (1024,)),
    "next_obs": (np.uint8, (1024,)),
    "reward": (np.float32, ()),
    "terminated": (np.bool_, ()),
}


class Small:
    """A ring of numbered rows: two wide columns of a quarter page a row, and two narrow ones."""

    def ring(self, capacity=50, **settings):
        """Make an empty ring."""
        return RingBuffer(capacity, COLUMNS, rng=settings.pop("rng", 3), **settings)

    def component(self, ring, **settings):
        """Make a component with segments of 8 wide rows and of 10 narrow ones."""
        return RingComponent(ring, wide_bytes=8 * 2048, narrow_bytes=50, **settings)

    def add(self, ring, count):
        """Add rows whose content is their number."""
        for _ in range(count):
            number = ring.total_count // ring.n_envs
            content = np.full((ring.n_envs, 1024), number % 251, np.uint8)
            content[:, :8] = np.frombuffer(np.int64(number).tobytes(), np.uint8)
            shape = (ring.n_envs,)
            ring.add(
                obs=content,
                next_obs=content + np.uint8(1),
                reward=np.full(shape, number, np.float32),
                terminated=np.full(shape, number % 7 == 6),
            )

    def numbers(self, ring):
        """The numbers of the rows held, oldest first; every column must agree on them."""
        found = []
        for start, stop in ring.state.spans:
            for slot in range(start, stop):
                number = int(ring.columns["reward"][slot, 0])
                content = np.full(1024, number % 251, np.uint8)
                content[:8] = np.frombuffer(np.int64(number).tobytes(), np.uint8)
                assert np.array_equal(ring.columns["obs"][slot, 0], content)
                assert np.array_equal(ring.columns["next_obs"][slot, 0], content + np.uint8(1))
                assert ring.columns["terminated"][slot, 0] == (number % 7 == 6)
                found.append(number)
        return found


@pytest.fixture
def small():
    """Make small numbered rings."""
    return Small()


@pytest.fixture
def shop(tmp_path):
    """Commit to a directory of the test's own."""
    return Shop(tmp_path)
