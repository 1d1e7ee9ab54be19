"""laar's own filters, scorers, pickers and policies, by their names in settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps

from laar.core.cost import CostWeights
from laar.core.interfaces import Picker, Scorer
from laar.core.policy import Policy
from laar.policies.laar.outlook import Outlook
from laar.policies.llm_d import (
    ActiveRequests,
    FewestTokens,
    KvCacheUtilization,
    Label,
    PrefixCacheMatch,
    QueueDepth,
    RunningRequests,
    StickyUntilSaturated,
    TokenLoad,
    llm_d,
)
from laar.policies.pickers import MaxScore, RandomOrder, ShuffledMaxScore, WeightedRandom
from laar.policies.registry import Factory, Kind
from laar.policies.simple import (
    LeastLoaded,
    LoadAware,
    Random,
    RoundRobin,
    SessionAffinity,
)


def own(weights: CostWeights) -> dict[Kind, dict[str, Factory]]:
    """Return the factories by kind and name.

    Args:
        weights: weights of the cost; parameters of the policy override them.
    """

    def outlook(
        *,
        k_rtt: float = weights.k_rtt,
        k_queue: float = weights.k_queue,
        k_delay: float = weights.k_delay,
        retry_penalty: float = weights.retry_penalty,
    ) -> Outlook:
        return Outlook(
            replace(
                weights,
                k_rtt=k_rtt,
                k_queue=k_queue,
                k_delay=k_delay,
                retry_penalty=retry_penalty,
            )
        )

    return {
        Kind.FILTER: {"label": Label, "prefix-affinity": StickyUntilSaturated},
        Kind.SCORER: {"laar": outlook, **_SCORERS},
        Kind.PICKER: {
            "max-score": MaxScore,
            "shuffled-max-score": ShuffledMaxScore,
            "weighted-random": WeightedRandom,
            "random": RandomOrder,
        },
        Kind.POLICY: {"laar": _alone("laar", outlook, knows_retries=True), **_POLICIES},
    }


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


_SCORERS: dict[str, Factory] = {
    "queue": QueueDepth,
    "running-requests": RunningRequests,
    "kv-cache-utilization": KvCacheUtilization,
    "prefix-cache": PrefixCacheMatch,
    "active-requests": ActiveRequests,
    "token-load": TokenLoad,
    "load-aware": LoadAware,
    "least-loaded": LeastLoaded,
    "session-affinity": SessionAffinity,
}

_RULES: dict[str, Callable[..., Scorer]] = {
    "session-affinity": SessionAffinity,
    "least-loaded": LeastLoaded,
    "round-robin": RoundRobin,
    "random": Random,
}


@wraps(StickyUntilSaturated)
def _guide(**given: float) -> Policy:
    """Return the policy of llm-d's guide; its parameters are its filter's."""
    sticky = StickyUntilSaturated(**given)
    return Policy(name="llm-d-guide", filters=[sticky], scorers=[(FewestTokens(), 1.0)])


_POLICIES: dict[str, Factory] = {
    # llm-d's picker breaks ties at random, and in an idle fleet everything is a tie.
    "load-aware": _alone("load-aware", LoadAware, picker=ShuffledMaxScore),
    "llm-d": llm_d,
    "llm-d-guide": _guide,
    **{name: _alone(name, make) for name, make in _RULES.items()},
}
