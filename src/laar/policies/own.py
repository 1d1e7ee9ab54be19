"""laar's own filters, scorers, pickers and policies, by their names in settings."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from laar.core.cost import CostWeights
from laar.core.interfaces import Picker, Scorer
from laar.core.policy import Policy
from laar.policies.laar.outlook import Outlook
from laar.policies.llm_d import (
    FewestTokens,
    KvCacheUtilization,
    Label,
    PrefixCacheMatch,
    QueueDepth,
    StickyUntilSaturated,
    llm_d,
)
from laar.policies.pickers import MaxScore, ShuffledMaxScore, WeightedRandom
from laar.policies.registry import Factory, PartKind
from laar.policies.simple import (
    LeastLoaded,
    LoadAware,
    Random,
    RoundRobin,
    SessionAffinity,
)


@wraps(CostWeights)
def _laar(**weights: Any) -> Outlook:
    """Return the scorer of the default policy; its parameters are the weights of its cost."""
    return Outlook(CostWeights(**weights))


def _alone(
    name: str,
    make: Callable[..., Scorer],
    *,
    picker: Callable[[], Picker] | None = None,
    knows_retries: bool = False,
) -> Factory:
    """Return a factory of policies with one scorer; its parameters are the scorer's."""

    @wraps(make)
    def policy(**given: object) -> Policy:
        return Policy(
            name=name,
            scorers=[(make(**given), 1.0)],
            picker=picker() if picker else None,
            knows_retries=knows_retries,
        )

    return policy


@wraps(StickyUntilSaturated)
def _guide(**given: float) -> Policy:
    """Return the policy of llm-d's guide; its parameters are its filter's."""
    return Policy(
        name="llm-d-guide",
        filters=[StickyUntilSaturated(**given)],
        scorers=[(FewestTokens(), 1.0)],
    )


OWN: dict[PartKind, dict[str, Factory]] = {
    PartKind.FILTER: {"label": Label, "prefix-affinity": StickyUntilSaturated},
    PartKind.SCORER: {
        "laar": _laar,
        "queue": QueueDepth,
        "kv-cache-utilization": KvCacheUtilization,
        "prefix-cache": PrefixCacheMatch,
        "load-aware": LoadAware,
        "least-loaded": LeastLoaded,
        "session-affinity": SessionAffinity,
    },
    PartKind.PICKER: {
        "max-score": MaxScore,
        "shuffled-max-score": ShuffledMaxScore,
        "weighted-random": WeightedRandom,
    },
    PartKind.POLICY: {
        "laar": _alone("laar", _laar, knows_retries=True),
        # llm-d's picker breaks ties at random, and an idle fleet has nothing but ties.
        "load-aware": _alone("load-aware", LoadAware, picker=ShuffledMaxScore),
        "llm-d": llm_d,
        "llm-d-guide": _guide,
        "session-affinity": _alone("session-affinity", SessionAffinity),
        "least-loaded": _alone("least-loaded", LeastLoaded),
        "round-robin": _alone("round-robin", RoundRobin),
        "random": _alone("random", Random),
    },
}
"""laar's factories by kind and name."""
