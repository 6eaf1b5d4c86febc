"""When to save and what to keep: small values that combine with ``|``."""

from perdure.core.retention import Best, EverySteps, KeepPolicy, Last
from perdure.core.saving import Adaptive, Every, OnImprovement, SavePolicy

__all__ = ["Adaptive", "Best", "Every", "EverySteps", "KeepPolicy", "Last", "OnImprovement", "SavePolicy"]
