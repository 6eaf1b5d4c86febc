"""The store against a model: whatever sequence of acts, the run directory holds what a few dictionaries say."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from perdure.core.manifest import short_id
from perdure.core.retention import Best, EverySteps, KeepPolicy, Last
from perdure.errors import AlreadyExistsError, CorruptionError, NotFoundError
from perdure.files.door import Files
from perdure.store.store import Checkpoint
from perdure.testing.scenario import Scenario, content_of
from tests.durability.effort import current_profile
from tests.durability.tiers import workspace

PATHS = ("meta.json", "model/policy.safetensors", "buffer/segment-000000.safetensors")
POLICIES = st.sampled_from([Last(1), Last(2), EverySteps(50), Best("nothing"), Last(1) | EverySteps(30)])

WHICH = st.integers(0, 7)
there_are_some = precondition(lambda machine: machine.checkpoints)


@dataclass
class Saved:
    """What the model knows of a checkpoint."""

    checkpoint: Checkpoint
    contents: dict[str, bytes]
    damaged: bool = False

    @property
    def id(self) -> str:
        """Full id."""
        return self.checkpoint.manifest.id


class StoreMachine(RuleBasedStateMachine):
    """Acts at random; the model is a list of checkpoints, a dictionary of pins, and the names put aside."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.root = self.stack.enter_context(workspace())
        self.processes = 0
        self.checkpoints: list[Saved] = []  # in the order of their saves: a later one is newer, whatever its step
        self.pins: dict[str, str] = {}
        self.aside: list[str] = []
        self.markers: dict[str, str | None] = {}

    def teardown(self) -> None:
        """Leave nothing behind."""
        self.stack.close()

    @initialize()
    def begin(self) -> None:
        """Open the run."""
        self.processes += 1
        self.scenario = Scenario(
            self.root / "run", Files(), lambda _: None, f"machine-{self.processes}", generation=self.processes
        )
        self.scenario.start()

    @rule()
    def restart(self) -> None:
        """Another process takes over, in a later generation."""
        self.begin()

    def _pick(self, which: int) -> Saved:
        return self.checkpoints[which % len(self.checkpoints)]

    @rule(step=st.integers(0, 120), size=st.integers(0, 60))
    def save(self, step, size):
        """Any step, also one that is not beyond the last, as after a recovery."""
        checkpoint = self.scenario.save(step, dict.fromkeys(PATHS, size))
        contents = {path: content_of(checkpoint.manifest.id, path, size) for path in PATHS}
        self.checkpoints.append(Saved(checkpoint, contents))

    @there_are_some
    @rule(source=WHICH, step=st.integers(0, 120))
    def save_linked(self, source, step):
        """A checkpoint that shares a file with another one."""
        chosen = self._pick(source)
        checkpoint = self.scenario.save(step, dict.fromkeys(PATHS[:2], 9), linked=chosen.checkpoint)
        contents = {path: content_of(checkpoint.manifest.id, path, 9) for path in PATHS[:2]}
        self.checkpoints.append(Saved(checkpoint, {**contents, PATHS[2]: chosen.contents[PATHS[2]]}))

    @there_are_some
    @rule(policy=POLICIES)
    def retain(self, policy: KeepPolicy) -> None:
        """Clean up; the newest and the pinned ones stay, and so does what the policy keeps."""
        before = [saved.checkpoint.manifest for saved in self.checkpoints]
        removed = self.scenario.retain(policy)
        kept = set(policy.reasons(before)) | set(self.pins.values()) | {before[-1].id}
        assert set(removed) == {manifest.id for manifest in before} - kept
        self.checkpoints = [saved for saved in self.checkpoints if saved.id not in removed]

    @there_are_some
    @rule(which=WHICH)
    def put_aside(self, which):
        """Quarantine one."""
        victim = self._pick(which)
        self.scenario.quarantine(victim.checkpoint, "by the machine")
        self.checkpoints.remove(victim)
        self.aside.append(victim.checkpoint.directory.name)

    @there_are_some
    @rule(which=WHICH)
    def delete_from_outside(self, which):
        """Somebody removes a directory by hand; its links live on in other checkpoints."""
        victim = self._pick(which)
        shutil.rmtree(victim.checkpoint.directory)
        self.checkpoints.remove(victim)

    @there_are_some
    @rule(which=WHICH)
    def replace_a_file(self, which):
        """A file is replaced by another of the same length, which the next reader notices."""
        victim = self._pick(which)
        if victim.contents[PATHS[0]]:
            path = victim.checkpoint.directory / PATHS[0]
            path.unlink()
            path.write_bytes(bytes(len(victim.contents[PATHS[0]])))
            victim.damaged = True

    @there_are_some
    @rule(name=st.sampled_from(["a", "b"]), which=WHICH)
    def pin(self, name, which):
        """Pin; a name that pins another one is refused."""
        chosen = self._pick(which)
        if self.pins.get(name, chosen.id) != chosen.id:
            with pytest.raises(AlreadyExistsError):
                self.scenario.pin(chosen.checkpoint, name)
            return
        self.scenario.pin(chosen.checkpoint, name)
        self.pins[name] = chosen.id

    @rule(name=st.sampled_from(["a", "b"]))
    def unpin(self, name):
        """Unpin; a name that pins nothing is refused."""
        if self.pins.pop(name, None) is None:
            with pytest.raises(NotFoundError):
                self.scenario.unpin(name)
        else:
            self.scenario.unpin(name)

    @rule(name=st.sampled_from(["progress.json", "restored.marker"]), value=st.none() | st.text(max_size=3))
    def mark(self, name, value):
        """Replace or remove a marker."""
        if value is None:
            self.scenario.forget(name)
        else:
            self.scenario.note(name, value)
        self.markers[name] = value

    @rule()
    def leave_rubbish(self):
        """An interrupted process leaves half a checkpoint, which nobody ever sees."""
        rubbish = self.root / "run" / "staging" / "step-000000000999-00000000" / "model"
        rubbish.mkdir(parents=True, exist_ok=True)
        (rubbish / "policy.safetensors").write_bytes(b"half")

    @precondition(lambda self: self.processes)
    @invariant()
    def the_directory_is_what_the_model_says(self) -> None:
        """Everything is there, in order, byte for byte; nothing else is; and damage is noticed."""
        store = self.scenario.store
        found, broken = store.scan()
        assert not broken
        assert [short_id(checkpoint.manifest) for checkpoint in found] == [
            short_id(saved.id) for saved in self.checkpoints[::-1]
        ]
        for saved in self.checkpoints:
            assert {entry.path for entry in saved.checkpoint.manifest.files} == set(saved.contents)
            for path, content in saved.contents.items():
                if saved.damaged and path == PATHS[0]:
                    with pytest.raises(CorruptionError):
                        store.read(saved.checkpoint, path)
                else:
                    assert bytes(store.read(saved.checkpoint, path)) == content
            assert bool(store.verify(saved.checkpoint, digests=True)) == saved.damaged
        assert store.pins() == self.pins
        assert [note["directory"] for note in store.quarantined()] == sorted(self.aside)
        for name, value in self.markers.items():
            content = store.read_json(name)
            assert (content or {}).get("value") == value


StoreMachine.TestCase.settings = settings(
    max_examples=current_profile().machine_examples,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
TestStore = StoreMachine.TestCase
