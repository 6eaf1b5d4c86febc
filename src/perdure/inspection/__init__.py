"""
Looking at runs from outside: what there is, whether it is whole, how a run is doing, and what a clean-up would do.

The command line stands on this, and so can your own tools. Reading writes nothing and takes no lease: it can be done
beside a training at any time. Values are frozen and have ``to_json``.

Example:
    >>> from perdure import inspection
    >>> view = inspection.RunView("runs", "ppo-ant")  # doctest: +SKIP
    >>> view.status().restorable.global_step  # doctest: +SKIP
    12582912
"""

from perdure.core.keeping import keep_text, parse_keep
from perdure.inspection.cleanup import GcPlan, GcResult, PlanRow
from perdure.inspection.documents import Document
from perdure.inspection.listing import CheckpointDetail, CheckpointSummary, ComponentSummary, RunListing
from perdure.inspection.presence import MemberSeen, MemorySeen, RestoreBegun, WriterSeen
from perdure.inspection.renewal import Renewal, RenewalPlan, RenewalRow
from perdure.inspection.repair import Repair, RepairPlan, RepairResult, RepairRow
from perdure.inspection.status import RunStatus
from perdure.inspection.stores import run_names
from perdure.inspection.summary import RunSummary, runs
from perdure.inspection.verification import CheckpointCheck, DirectoryDamage, Level, OnProgress, VerifyReport
from perdure.inspection.view import RunView

__all__ = [
    "CheckpointCheck",
    "CheckpointDetail",
    "CheckpointSummary",
    "ComponentSummary",
    "DirectoryDamage",
    "Document",
    "GcPlan",
    "GcResult",
    "Level",
    "MemberSeen",
    "MemorySeen",
    "OnProgress",
    "PlanRow",
    "Renewal",
    "RenewalPlan",
    "RenewalRow",
    "Repair",
    "RepairPlan",
    "RepairResult",
    "RepairRow",
    "RestoreBegun",
    "RunListing",
    "RunStatus",
    "RunSummary",
    "RunView",
    "VerifyReport",
    "WriterSeen",
    "keep_text",
    "parse_keep",
    "run_names",
    "runs",
]
