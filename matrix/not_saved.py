"""
What a resume does not bring back, and why, by framework: for people.

It is apart from the rows, which only load where their framework is installed, so that the page is the same everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

NOT_SAVED: Mapping[str, Mapping[str, str]] = MappingProxyType({
    "RLlib": {
        "what an evaluation beside the training begins with": "a clock decides it, and the grade is `statistical`",
        "episodes of multi-agent runners": "they begin anew, and the grade is `statistical`",
        "samples in flight of asynchronous algorithms (IMPALA, APPO)": "nobody can ask for them",
        "replay buffers in actors of their own": "only the local buffer of an algorithm is saved",
        "the state of Tune's schedulers": "Tune keeps it by itself",
    },
    "Stable-Baselines3": {
        "what a clock measures": "Monitor's `t` includes the time in between; `time/fps` does not",
        "`time/iterations`": "the framework counts them from the last start",
        "infos in a `HerReplayBuffer`": "they are no plain data, so `copy_info_dict=True` is refused",
        "environments of ARS with `async_eval`": "they live in processes of their own and begin anew",
    },
    "Tianshou": {
        "environments in other processes (`SubprocVectorEnv`, `RayVectorEnv`)": "their episodes begin anew",
        "infos that are Python objects": "they are no plain data; the grade is `statistical`",
        "`HERReplayBuffer`, `CachedReplayBuffer`": "refused: they change or move rows that were written before",
        "the logger's own position": "give it `resume_id` and the run's directory",
    },
    "TorchRL": {
        "what a collector in other processes carries": "its episodes begin anew, and the grade is `statistical`",
        "trajectories in assembly (`trajs_per_batch`)": "they live in the collector's loop; the episodes begin anew",
        "batches that a replay buffer has drawn in advance": "what a thread draws depends on when it runs",
        "content of `ListStorage` and of storages on an accelerator": "refused: they hold objects, or are elsewhere",
    },
})  # fmt: skip
