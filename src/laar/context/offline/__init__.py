"""The paper's batch algorithms: all requests are known beforehand."""

from laar.context.offline.cluster import Built, Ordered, build
from laar.context.offline.dedup import Deduplicated, deduplicate
from laar.context.offline.distance import distance, distances
from laar.context.offline.plan import BatchPlan, Planned, PlanReport, plan, plan_file, plan_lines
from laar.context.offline.schedule import schedule
from laar.context.offline.tree import ContextTree, Found, Inserted, Node, Reading

__all__ = [
    "BatchPlan",
    "Built",
    "ContextTree",
    "Deduplicated",
    "Found",
    "Inserted",
    "Node",
    "Ordered",
    "PlanReport",
    "Planned",
    "Reading",
    "build",
    "deduplicate",
    "distance",
    "distances",
    "plan",
    "plan_file",
    "plan_lines",
    "schedule",
]
