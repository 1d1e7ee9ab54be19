"""The paper's batch algorithms, for requests that are all known beforehand."""

from laar_lab.offline.cluster import Built, Ordered, build
from laar_lab.offline.distance import distance, distances
from laar_lab.offline.plan import BatchPlan, Planned, PlanReport, plan, plan_file, plan_lines
from laar_lab.offline.schedule import schedule
from laar_lab.offline.tree import ContextTree, Found, Node, Reading

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
