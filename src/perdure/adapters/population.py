"""
Populations: several members in one run, which take over each other's nets and keep their own hyperparameters.

A hyperparameter is no state. It is applied to a member whenever other state has come into it, from a checkpoint or from
another member, so that a learning rate which travels inside an optimizer's state never wins over the member's own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from perdure.capture.registry import make_component
from perdure.capture.snapshot import load_tree
from perdure.core.component import TreeComponent, writes_parts
from perdure.core.manifest import Grade
from perdure.core.names import Section
from perdure.core.selectors import select
from perdure.errors import InvalidInputError, NotFoundError
from perdure.files.door import Files
from perdure.recovery.report import RestoreReport
from perdure.run import Run
from perdure.store.store import Checkpoint, Store
from perdure.surroundings import Surroundings

PREFIX = "population"
_LEARNED = (Section.MODEL, Section.OPTIMIZER, Section.SCHEDULER)

Member = Mapping[str, object]
Hyperparameters = dict[str, Any]


class Population:
    """
    The members of a population and their hyperparameters.

    Args:
        members: By name, the objects of each member by name. Borrowed.
        hyperparameters: By member, plain values by name. What a checkpoint holds of them wins over these.
        apply: Puts hyperparameters into effect in a member, as by setting a learning rate. Called after every restore
            and every exploit, with the member's objects and its hyperparameters.

    Raises:
        InvalidInputError: Hyperparameters of a member that does not exist.

    Example:
        >>> population = Population(members, {name: {"lr": 1e-3} for name in members}, apply)  # doctest: +SKIP
        >>> population.track(run)  # doctest: +SKIP
        >>> population.exploit("best", "worst")  # doctest: +SKIP
        >>> population.set("worst", lr=2e-3)  # doctest: +SKIP
    """

    def __init__(
        self,
        members: Mapping[str, Member],
        hyperparameters: Mapping[str, Mapping[str, Any]],
        apply: Callable[[Member, Mapping[str, Any]], None],
    ) -> None:
        self._members = dict(members)
        self._apply = apply
        self._hyperparameters = {name: dict(hyperparameters.get(name, {})) for name in self._members}
        for name in hyperparameters:
            self._member(name)
        self._put_into_effect(self._members)

    def track(self, run: Run) -> None:
        """Track every member's objects as ``population/MEMBER/OBJECT``, and the hyperparameters beside them."""
        run.track({PREFIX: self._members, f"{PREFIX}-hyperparameters": _Settings(self)})

    def restore(self, run: Run, overrides: Mapping[str, Mapping[str, Any]] | None = None) -> RestoreReport:
        """
        Restore the run, and let some hyperparameters win over what its checkpoint holds.

        Args:
            run: Everything of it is tracked.
            overrides: Plain values by member and name.
        """
        report = run.restore()
        for name, values in (overrides or {}).items():
            self.set(name, **values)
        return report

    def hyperparameters(self, member: str) -> Mapping[str, Any]:
        """The hyperparameters of a member; a copy."""
        self._member(member)
        return dict(self._hyperparameters[member])

    def set(self, member: str, **values: Any) -> None:
        """Change hyperparameters of a member and put them into effect."""
        self._member(member)
        self._hyperparameters[member].update(values)
        self._put_into_effect([member])

    def exploit(self, source: str, target: str, *, parts: Iterable[str] | None = None) -> None:
        """
        Let a member take over what another one has learned; its hyperparameters stay its own.

        Args:
            source: Is copied from.
            target: Is changed, in place.
            parts: Names of objects to copy; nets, optimizers and schedulers if None.

        Raises:
            NotFoundError: There is no such member, or no such object in it.
            IncompatibleError: An object of the source does not fit; nothing was changed.
        """
        components = self._components(source)
        names = self._chosen(target, parts)
        trees = {name: copy.deepcopy(_of(components, name, source).capture()) for name in names}
        self._fill(target, trees)

    def exploit_checkpoint(
        self,
        directory: Path,
        target: str,
        *,
        member: str | None = None,
        at: str = "latest",
        parts: Iterable[str] | None = None,
    ) -> str:
        """
        Let a member take over what a checkpoint holds, as of a run in which another process trains another member.

        The checkpoint is pinned while it is read, so that the run which owns it cannot remove it meanwhile. A crash in
        here leaves the pin behind, which `perdure unpin` removes.

        Args:
            directory: The run's directory.
            target: Is changed, in place.
            member: Whose objects to take, if the run holds a population; None if it holds one member only.
            at: Which checkpoint, as a selector.
            parts: Names of objects to copy; nets, optimizers and schedulers if None.

        Returns:
            The checkpoint's full id.

        Raises:
            NotFoundError: There is no such member, run, checkpoint or component.
            IncompatibleError: A component does not fit; nothing was changed.
            CorruptionError: The checkpoint is damaged; nothing was changed.
        """
        names = self._chosen(target, parts)
        surroundings = Surroundings()
        store = Store(directory, Files(), surroundings.new_id)
        found = store.checkpoints()
        chosen = select(at, [checkpoint.manifest for checkpoint in found], store.pins())
        checkpoint = next(checkpoint for checkpoint in found if checkpoint.manifest is chosen)
        pin = f"exploit-{surroundings.new_id()[:16]}"
        store.pin(checkpoint, pin)
        try:
            prefix = "" if member is None else f"{PREFIX}/{member}/"
            trees = {name: _read(store, checkpoint, f"{prefix}{name}") for name in names}
        finally:
            store.unpin(pin)
        self._fill(target, trees)
        return chosen.id

    def _member(self, name: str) -> Member:
        if name not in self._members:
            raise NotFoundError(
                f"cannot find member {name!r}: the population has {', '.join(self._members)}",
                kind="population.no-member",
                name=name,
            )
        return self._members[name]

    def _components(self, member: str) -> dict[str, TreeComponent]:
        made = {name: make_component(f"{member}/{name}", value) for name, value in self._member(member).items()}
        return {name: component for name, component in made.items() if not writes_parts(component)}

    def _chosen(self, target: str, parts: Iterable[str] | None) -> list[str]:
        if parts is not None:
            return list(parts)
        return [name for name, component in self._components(target).items() if component.section in _LEARNED]

    def _fill(self, target: str, trees: Mapping[str, Any]) -> None:
        components = self._components(target)
        for name, tree in trees.items():
            _of(components, name, target).check(tree)
        for name, tree in trees.items():
            components[name].restore(tree)
        self._put_into_effect([target])

    def _put_into_effect(self, members: Iterable[str]) -> None:
        for name in members:
            self._apply(self._members[name], dict(self._hyperparameters[name]))

    def _saved(self) -> dict[str, Hyperparameters]:
        return self._hyperparameters

    def _restored(self, saved: Mapping[str, Hyperparameters]) -> None:
        for name, values in saved.items():
            if name in self._hyperparameters:
                self._hyperparameters[name].update(values)
        self._put_into_effect(self._members)


def _of(components: Mapping[str, TreeComponent], name: str, member: str) -> TreeComponent:
    if name not in components:
        raise NotFoundError(
            f"cannot copy {name!r}: member {member!r} has no such object, or one that is not copied in memory",
            kind="population.no-part",
            hint=f"name some of {', '.join(components)}",
            name=name,
        )
    return components[name]


def _read(store: Store, checkpoint: Checkpoint, name: str) -> Any:
    entry = next((entry for entry in checkpoint.manifest.components if entry.name == name), None)
    if entry is None:
        raise NotFoundError(
            f"cannot take {name!r} over: checkpoint {checkpoint.manifest.id[:8]} has no such component",
            kind="population.no-part",
            hint="`perdure show` lists what it has",
            name=name,
        )
    if entry.section not in _LEARNED and entry.section is not Section.STATE:
        raise InvalidInputError(
            f"cannot take {name!r} over: it belongs to where its member stands, not to what it has learned",
            kind="population.not-learned",
            hint="copy nets, optimizers and schedulers",
            field=name,
        )
    return load_tree(entry, lambda path: store.read(checkpoint, path))


class _Settings:
    """The hyperparameters as a component. It is restored after nets and optimizers, and applies them then."""

    kind = "population.hyperparameters"
    section = Section.STATE
    grade = Grade.EXACT

    def __init__(self, population: Population) -> None:
        self._population = population

    def capture(self) -> object:
        """By member."""
        return self._population._saved()  # noqa: SLF001 - one thing in two classes

    def check(self, tree: object) -> None:
        """Nothing: members may come and go if the run accepts it."""

    def restore(self, tree: object) -> str:
        """Take the saved values over and put all into effect."""
        assert isinstance(tree, dict)
        self._population._restored(tree)  # noqa: SLF001 - as above
        return ""
