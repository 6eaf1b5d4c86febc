"""The verbs there are. Each lives in the module of its name and is imported only when it is wanted."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType

from perdure.cli.verb import Verb

GROUPS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "look": {
            "status": "how a run is doing, what a restart would resume from",
            "runs": "the runs of a store",
            "ls": "the checkpoints of a run",
            "show": "one checkpoint: components, sizes, versions, counters",
            "events": "what happened: saves, restores, faults",
        },
        "trust": {
            "verify": "check that checkpoints are what was committed",
            "scrub": "read all checkpoints slowly beside a training, and report damage",
            "repair": "put right what is damaged, from whole copies",
            "migrate": "bring manifests to this version's schema, and under the current key",
            "key": "make a key that manifests are signed with",
            "doctor": "find out how exactly an environment can be captured",
        },
        "keep": {
            "gc": "remove what the keep policy does not keep",
            "pin": "protect a checkpoint under a name, or list what is protected",
        },
        "act": {
            "run": "run a program, and restart it when it dies or hangs",
            "demo": "watch a distributed training survive its faults",
            "chaos": "kill, or cut the power of, a run made for it, again and again, and see what is kept",
        },
        "about": {"version": "versions, for bug reports"},
    }
)
"""Summaries by verb, by group."""

SUMMARIES: Mapping[str, str] = MappingProxyType(
    {name: summary for verbs in GROUPS.values() for name, summary in verbs.items()}
)


def load_verb(name: str) -> Verb:
    """Import a verb that is in the catalogue."""
    verb = importlib.import_module(f"perdure.cli.{name}").VERB
    assert isinstance(verb, Verb)
    return verb
