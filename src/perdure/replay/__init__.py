"""
Replay buffers: a ring in plain arrays, saved as immutable segments and restored by mapping them.

See docs/explanation/replay.md.
"""

from perdure.core.ring import RingState
from perdure.core.trimming import All, MaxAge, Nothing, Recent, Trim
from perdure.replay.bar import ProgressBar
from perdure.replay.batches import Batch, Prioritized, Roles
from perdure.replay.buffer import RingBuffer
from perdure.replay.component import RingComponent, component_for
from perdure.replay.journal import Journal
from perdure.replay.rings import Ring, RingContent
from perdure.replay.windows import Episode

__all__ = [
    "All",
    "Batch",
    "Episode",
    "Journal",
    "MaxAge",
    "Nothing",
    "Prioritized",
    "ProgressBar",
    "Recent",
    "Ring",
    "RingBuffer",
    "RingComponent",
    "RingContent",
    "RingState",
    "Roles",
    "Trim",
    "component_for",
]
