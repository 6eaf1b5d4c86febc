"""
The director: follows the events of a run, says which fault is due, and keeps the record of each.

It does nothing itself. Whoever runs it hands in every event, injects the fault that it names and tells it so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perdure.chaos import Died, Fault, Injection, Lost, Moment, Reached, Schedule
from perdure.demo.acts import LEARNER, Act
from perdure.demo.incidents import Drops, Event, Incident, added, life_of


class Director:
    """
    Leads a run through its acts, one after the other: no fault before the one before it has been recovered.

    Args:
        acts: What is to go wrong; nothing for an undisturbed run.
    """

    def __init__(self, acts: Sequence[Act]) -> None:
        self._waiting = list(acts)
        self._schedule = Schedule()
        self._lives: dict[str, str] = {}
        self._drops = Drops()
        self._last: Event = {"update": 0, "step": 0}
        self.incidents: list[Incident] = []
        """What has happened so far, oldest first."""
        self.samples_dropped: dict[str, int] = {}
        """All samples that were dropped, by reason, with or without a fault."""

    @property
    def waiting(self) -> tuple[Act, ...]:
        """Acts that have not begun."""
        return tuple(self._waiting)

    @property
    def current(self) -> Incident | None:
        """The fault that is being recovered from, if there is one."""
        last = self.incidents[-1] if self.incidents else None
        is_open = last is not None and (last.back_at is None or not self._schedule.is_over)
        return last if is_open else None

    @property
    def is_over(self) -> bool:
        """Whether everything has gone wrong that was to go wrong, and the run is beyond where it was hit each time."""
        return not self._waiting and all(incident.caught_up_at is not None for incident in self.incidents)

    def hear(self, at: float, event: Event) -> Fault | None:
        """
        Take in an event.

        Args:
            at: When it happened, in seconds of the demo's clock.
            event: It.

        Returns:
            The fault to inject now, if one is due. It is due again at the next such moment, until `injected` is called.
        """
        self.incidents = [incident.heard(at, event) for incident in self.incidents]
        if event["event"] == "update":
            self._note_update(event)
        moment = _moment(event)
        if moment is None:
            return None
        if self.current is not None:
            return self._schedule.due(moment)
        return self._waiting[0].schedule.due(moment) if self._waiting else None

    def injected(self, at: float, injection: Injection) -> None:
        """Take in that the fault named last has happened."""
        if self.current is None:
            act = self._waiting.pop(0)
            self._schedule = act.schedule
            life = self._lives.get(act.member, "")
            self.incidents.append(Incident(act, at, self._last["update"], self._last["step"], life))
        self._schedule = self._schedule.after_next()
        last = self.incidents[-1]
        self.incidents[-1] = replace(last, injections=(*last.injections, injection))

    def _note_update(self, update: Event) -> None:
        self._last = update
        for member in (*update["senders"], LEARNER):
            self._lives[member] = life_of(member, update) or ""
        fresh = self._drops.since(update)
        self.samples_dropped = added(self.samples_dropped, fresh)
        if self.incidents and fresh:
            last = self.incidents[-1]
            self.incidents[-1] = replace(last, samples_dropped=added(last.samples_dropped, fresh))


def _moment(event: Event) -> Moment | None:
    if event["event"] == "update":
        return Reached(event["update"])
    if event["event"] == "member-fault":
        return Died(event["member"])
    if event["event"] == "member-lost":
        return Lost(event["member"])
    return None
