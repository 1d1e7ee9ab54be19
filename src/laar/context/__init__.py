"""ContextPilot: documents in prompts, ordered so that prompts share longer prefixes.

Two halves that share little. The paper's algorithms as a library (`build`, `ContextTree`,
`schedule`, `deduplicate`, `plan`) know all requests beforehand. The hook (`ContextHook` over
`OrderIndex`) sees one request at a time, has a millisecond, and must never be the reason that a
request fails.
"""

from laar.context.aligner import Alignment, OrderIndex
from laar.context.cache import DocCache
from laar.context.guard import RouteGain, RunningMean
from laar.context.hook import ContextHook, HookResult, Receipt
from laar.context.notes import duplicate_note, order_note
from laar.context.offline.cluster import Built, Ordered, build
from laar.context.offline.dedup import Deduplicated, deduplicate
from laar.context.offline.distance import distance, distances
from laar.context.offline.plan import BatchPlan, Planned, PlanReport, plan, plan_file, plan_lines
from laar.context.offline.schedule import schedule
from laar.context.offline.tree import ContextTree, Found, Inserted, Node, Reading
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
    "BatchPlan",
    "Built",
    "ContextHook",
    "ContextSettings",
    "ContextTree",
    "Dedup",
    "Deduplicated",
    "Delimiters",
    "DocCache",
    "Format",
    "Found",
    "HookResult",
    "Inserted",
    "Mode",
    "Node",
    "OrderIndex",
    "Ordered",
    "PlanReport",
    "Planned",
    "Reading",
    "Reason",
    "Receipt",
    "Relabel",
    "Reordered",
    "Reorderer",
    "Role",
    "RouteGain",
    "RunningMean",
    "build",
    "deduplicate",
    "distance",
    "distances",
    "duplicate_note",
    "order_note",
    "plan",
    "plan_file",
    "plan_lines",
    "schedule",
]
