"""Order of the documents in prompts (ContextPilot), so that prompts share longer prefixes.

Two halves that share little. The hook (`ContextHook` over `OrderIndex`) sees one request at a time,
has a millisecond, and must never be the reason that a request fails. The paper's algorithms, which
know all requests beforehand, are laar-lab's (`laar context plan`).
"""

from laar.context.aligner import Alignment, OrderIndex
from laar.context.cache import DocCache
from laar.context.guard import RouteGain
from laar.context.hook import ContextHook, HookResult, Receipt
from laar.context.notes import duplicate_note, order_note
from laar.context.reorder import Reordered, Reorderer
from laar.context.settings import (
    ContextSettings,
    Dedup,
    Delimiters,
    Format,
    Mode,
    Reason,
    Relabel,
    Role,
)

__all__ = [
    "Alignment",
    "ContextHook",
    "ContextSettings",
    "Dedup",
    "Delimiters",
    "DocCache",
    "Format",
    "HookResult",
    "Mode",
    "OrderIndex",
    "Reason",
    "Receipt",
    "Relabel",
    "Reordered",
    "Reorderer",
    "Role",
    "RouteGain",
    "duplicate_note",
    "order_note",
]
