"""A ring, its saves and its restores against a plain list, in any order."""

import shutil
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from perdure.core.component import DeferredPart, LinkPart
from tests.replay.conftest import Small
from tests.replay.harness import STEM, Shop

SECONDS = 30


class Machine(RuleBasedStateMachine):
    """Adds, captures, commits, aborts and restores; the model is the list of numbers that the ring should hold."""

    pending = Bundle("pending")
    committed = Bundle("committed")

    @initialize(capacity=st.integers(1, 40), codec=st.sampled_from(["raw", "auto"]))
    def begin(self, capacity, codec):
        self.small = Small()
        self.root = Path(tempfile.mkdtemp(prefix="ring-machine-"))
        self.shop = Shop(self.root)
        self.capacity = capacity
        self.ring = self.small.ring(capacity)
        self.component = self.small.component(self.ring, codec=codec)
        self.model = []
        self.total = 0

    @rule(count=st.integers(0, 90))
    def add(self, count):
        self.small.add(self.ring, count)
        self.model = [*self.model, *range(self.total, self.total + count)][-self.capacity :]
        self.total += count

    @rule(target=pending)
    def capture(self):
        return self.component.capture_parts(STEM), list(self.model), self.total

    @rule(target=committed, save=consumes(pending))
    def commit(self, save):
        capture, model, total = save
        return self.shop.commit(capture), model, total

    @rule(save=consumes(pending), files=st.integers(0, 3))
    def abort(self, save, files):
        capture, _, _ = save
        for part in [part for part in capture.parts if not isinstance(part, LinkPart)][:files]:
            for _ in (part.make() if isinstance(part, DeferredPart) else part).chunks():
                pass
        capture.on_aborted()

    @rule(save=committed)
    def look(self, save):
        source, model, total = save
        ring = self.small.ring(self.capacity)
        component = self.small.component(ring, verify="eager")
        component.check_parts(source)
        component.restore_parts(source)
        assert self.small.numbers(ring) == model
        assert ring.total_count == total

    @rule(save=committed, load=st.sampled_from(["auto", "read"]), wait=st.booleans())
    def restore(self, save, load, wait):
        source, self.model, self.total = save
        self.component._options = type(self.component._options)(
            **{name: getattr(self.component._options, name) for name in self.component._options.__slots__}
            | {"load": load}
        )
        self.component.restore_parts(source)
        if wait:
            self.component.verification.finish(SECONDS)

    @rule(keep=st.integers(0, 45))
    def keep_less(self, keep):
        """A save with keep_recent by a second component would be its own run; here the ring is trimmed in place."""
        self.component._keep_rows = keep
        source = self.shop.save(self.component)
        self.component._keep_rows = self.capacity
        ring = self.small.ring(self.capacity)
        self.small.component(ring, verify="eager").restore_parts(source)
        assert self.small.numbers(ring) == self.model[len(self.model) - min(keep, len(self.model)) :]

    @rule()
    def sample(self):
        """Samples are whole rows of the model, also of segments that have yet to be decoded."""
        if self.model:
            batch = self.ring.sample(3)
            numbers = batch["obs"][:, :8].copy().view(np.int64)[:, 0]
            assert np.array_equal(numbers, batch["reward"].astype(np.int64))
            assert set(numbers.tolist()) <= set(self.model)

    @rule()
    def look_at_all(self):
        assert self.small.numbers(self.ring) == self.model

    @invariant()
    def holds_as_many(self):
        """Does not look at the rows, which would have all of them decoded after every step."""
        if hasattr(self, "ring"):
            assert len(self.ring) == len(self.model)
            assert self.ring.total_count == self.total

    def teardown(self):
        if hasattr(self, "root"):
            shutil.rmtree(self.root)


Machine.TestCase.settings = settings(
    max_examples=15, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
TestMachine = Machine.TestCase
