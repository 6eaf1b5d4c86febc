"""
Proofs: whether what is captured on somebody's word may be called exact.

Tests of this package prove the classes that `proven` names. Anything else, such as an environment that has
``get_state()`` and ``set_state(state)``, that was registered, or a wrapper of plain attributes, needs a certificate.
If this machine has none, one is made in a trial: it begins when the environment is first looked at, goes on beside the
program, and the next look, which is the first save, waits for it if it must, no longer than `PATIENCE_SECONDS` after
its beginning. ``PERDURE_PROBE`` sets other seconds, or forbids trials. Without a certificate the state is captured and
restored all the same, and never called exact.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from perdure.capture.environments.certificates import CERTIFICATES, EXACT, Certificate, Certificates, name_of
from perdure.capture.environments.copies import copy_of
from perdure.capture.environments.proven import Unit, is_proven, layers_of, role_of
from perdure.capture.environments.remembered import Remembered
from perdure.capture.environments.trials import Trial
from perdure.errors import PerdureError

__all__ = ["PATIENCE_SECONDS", "PROOFS", "Proofs", "Standing", "certificate_of", "untried"]

PATIENCE_SECONDS = 10.0
_SETTING = "PERDURE_PROBE"
_NEVER = "never"


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of a capture; if both are empty, it is proven."""

    failed: str = ""
    """What a probe has found against it: it is not captured."""
    unproven: str = ""
    """Why nothing shows that it is all of the state."""


@dataclass(slots=True)
class _Attempt:
    began: float
    trial: Trial | None = None
    failure: str = ""


class Proofs:
    """
    What is known, and is being found out, about the environments of this process.

    Args:
        certificates: Where outcomes are looked up and told.
        start: Begins a trial.
        clock: Measures patience; seconds, monotonic.
    """

    def __init__(
        self,
        certificates: Certificates = CERTIFICATES,
        start: Callable[..., Trial] = Trial,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._certificates = certificates
        self._start = start
        self._clock = clock
        self._attempts: dict[str, _Attempt] = {}
        # Of each environment that is proven: as of how many certificates, and down to which layer.
        self._settled: Remembered[list[int]] = Remembered(lambda _: [])
        os.register_at_fork(after_in_child=self._attempts.clear)  # a child has no threads of its parent's

    def standing(self, unit: Unit) -> Standing:
        """Say whether what is captured of a unit is proven, and have it tried out if it is not."""
        if not self._certificates.are_consulted:
            return Standing()
        outermost = unit.layers[0]
        if role_of(outermost) and self._settled.of(outermost) == [self._certificates.learned, unit.needed]:
            return Standing()
        found = self._look(unit)
        if found == Standing() and role_of(outermost):
            self._settled.of(outermost)[:] = [self._certificates.learned, unit.needed]
        return found

    def _look(self, unit: Unit) -> Standing:
        layers = [layer for layer in unit.layers if role_of(layer)]
        failed = next((doubt for layer in layers if (doubt := self._certificates.doubt_of(layer))), "")
        if failed or not unit.needed:
            return Standing(failed=failed)
        if not layers:
            return Standing(unproven=untried(type(unit.layers[0])))
        inmost = layers[unit.needed - 1]
        if any(self._is_certified(layer) for layer in layers[: unit.needed]):
            return Standing()
        if self._has_ended(inmost):
            return self._look(unit)
        return Standing(unproven=self._lacking(inmost))

    def _is_certified(self, env: Any) -> bool:
        certificate = self._certificates.of(env)
        return certificate is not None and certificate.level in EXACT

    def _lacking(self, env: Any) -> str:
        subject, key = self._certificates.subject_of(env)
        name, failure = name_of(env), self._attempts[key].failure
        if not failure:
            return f"{name} is being tried out for the first time on this machine"
        lacking = f"no test has shown that {name} goes on exactly, and it was not tried out: {failure}"
        is_for_doctor = role_of(env) in ("environment", "vector")
        return f"{lacking} (try perdure doctor --env {subject.id or 'module:function'})" if is_for_doctor else lacking

    def _has_ended(self, env: Any) -> bool:
        """Look after the trial of an environment, and begin it if there is none; whether there is a certificate now."""
        subject, key = self._certificates.subject_of(env)
        attempt = self._attempts.get(key)
        if attempt is None:
            attempt = self._attempts[key] = _Attempt(self._clock())
            try:
                stack = tuple(type(layer).__qualname__ for layer in layers_of(env))
                if not are_wanted():
                    attempt.failure = f"PERDURE_PROBE is {_NEVER}"
                else:
                    attempt.trial = self._start(subject, copy_of(env), stack)
            except PerdureError as error:
                attempt.failure = error.message
            return False
        if attempt.trial is None:
            return False
        left = attempt.began + patience_seconds() - self._clock()
        if not attempt.trial.wait(left):
            return False
        certificate, attempt.failure = attempt.trial.certificate, attempt.trial.failure
        attempt.trial = None
        if certificate is None:
            return False
        self._certificates.learn(certificate)
        attempt.failure = certificate.reason  # what is told if it is neither exact nor a failure
        return True


def untried(cls: type) -> str:
    """Say that nothing shows that what a class is captured by is all of its state, and that nobody can try it."""
    return f"no test has shown that {cls.__qualname__} goes on exactly, and it is of no kind that can be tried out"


def are_wanted() -> bool:
    """Whether environments are tried out."""
    return os.environ.get(_SETTING) != _NEVER


def patience_seconds() -> float:
    """How long after its beginning a trial is waited for."""
    try:
        return float(os.environ.get(_SETTING, ""))
    except ValueError:
        return PATIENCE_SECONDS


PROOFS = Proofs()


def certificate_of(env: Any) -> Certificate | None:
    """Return the certificate that speaks of all of an environment that needs a proof; None if there is none."""
    for layer in layers_of(env):
        found = CERTIFICATES.of(layer)
        if found is not None or not is_proven(type(layer)):
            return found
    return None
