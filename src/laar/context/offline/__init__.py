"""The paper's batch algorithms: all requests are known beforehand."""

from laar.context.offline.cluster import Built, Ordered, build
from laar.context.offline.distance import distance, distances
from laar.context.offline.plan import BatchPlan, Planned, PlanReport, plan, plan_file, plan_lines
from laar.context.offline.schedule import schedule
from laar.context.offline.tree import ContextTree, Found, Node, Reading

__all__ = [
    "BatchPlan",
    "Built",
    "ContextTree",
    "Found",
    "Node",
    "Ordered",
    "PlanReport",
    "Planned",
    "Reading",
    "build",
    "distance",
    "distances",
    "plan",
    "plan_file",
    "plan_lines",
    "schedule",
]
