"""
perdure: a checkpoint engine for reinforcement learning.

    with perdure.open("runs", run="ppo", save=Every(steps=10_000), keep=Last(3)) as run:
        run.track(policy=policy, optimizer=optimizer, envs=envs)
        counters = run.counters(global_step=0)
        for update in run.loop(1, updates + 1):
            ...

Running the same command again continues. Importing this imports no framework.
"""

from perdure.audit import UntrackedStateWarning
from perdure.capture.pickles import Pickled
from perdure.capture.writer import SaveHandle
from perdure.complaints import SaveBudgetWarning, SaveFailedWarning
from perdure.core.component import (
    ContentPart,
    LinkPart,
    PartsCapture,
    PartsComponent,
    TreeComponent,
)
from perdure.core.leases import Timing
from perdure.core.manifest import Grade
from perdure.core.names import Section
from perdure.errors import FencedError, PerdureError, StoppedError
from perdure.forking import fork
from perdure.opening import open  # noqa: A004 - read as perdure.open
from perdure.policies import Adaptive, Best, Every, EverySteps, Last, OnImprovement
from perdure.recovery.report import RestoreReport
from perdure.replay import RingBuffer
from perdure.run import Run
from perdure.surroundings import perdure_version

__version__ = perdure_version()

__all__ = [
    "Adaptive",
    "Best",
    "ContentPart",
    "Every",
    "EverySteps",
    "FencedError",
    "Grade",
    "Last",
    "LinkPart",
    "OnImprovement",
    "PartsCapture",
    "PartsComponent",
    "PerdureError",
    "Pickled",
    "RestoreReport",
    "RingBuffer",
    "Run",
    "SaveBudgetWarning",
    "SaveFailedWarning",
    "SaveHandle",
    "Section",
    "StoppedError",
    "Timing",
    "TreeComponent",
    "UntrackedStateWarning",
    "__version__",
    "fork",
    "open",
]
