"""
Replay buffers: a ring in plain arrays, saved as immutable segments and restored by mapping them.

See docs/explanation/replay.md.
"""

from perdure.core.ring import All, MaxAge, Nothing, Recent, RingState, Trim
from perdure.replay.buffer import Batch, Prioritized, RingBuffer, Roles
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
