"""Whether clients ask again after a wrong answer, learned for each tenant.

A client that asks again pays for a wrong answer with the next attempt; one that does not pays more
(`laar.core.cost`). A client may say so (`Request.retries`), or its requests show it: the attempts
that name tried models are compared with the wrong answers that P(correct) predicts. An attempt
counts if the same prompt was sent to one of these models before: tried models cost nothing to name.
"""

from __future__ import annotations

from laar.accuracy.retry import parse_tried
from laar.core.request import Request
from laar.latest import Latest, Shared

MAX_TENANTS = 1024
"""Maximum number of tenants remembered; clients without a tenant count as one. A tenant is
remembered from the first request with tried models on."""

_MAX_SENT = 8192
"""Maximum number of prompts remembered, of tenants that are remembered (2 MB)."""

_UNSEEN = 2.0  # wrong answers without a retry that are assumed before any was seen
_MEMORY = 64.0  # wrong answers after which earlier ones count half
_MOSTLY = 0.5  # share of wrong answers after which a tenant's clients ask again


class Retrying:
    """Learns which tenants' clients ask again."""

    def __init__(self) -> None:
        self.seen: Latest[str, tuple[float, float]] = Latest(MAX_TENANTS)
        """By tenant, the wrong answers that were expected, and the prompts asked again."""
        self._sent: Shared[tuple[str, int], str] = Shared(_MAX_SENT, lambda key, _: key[0])
        """The model that a prompt was last sent to, by tenant and hash."""

    def expected_of(self, tenant: str) -> bool:
        """Return whether the clients of a tenant in `seen` are expected to ask again."""
        wrong, again = self.seen[tenant]
        return again >= _MOSTLY * (wrong + _UNSEEN)

    def observe(self, request: Request, model: str, probability: float) -> None:
        """Count a request that is sent to a model with this P(correct)."""
        wrong, again = self.seen.get(request.tenant, (0.0, 0.0))
        prompt = request.tenant, hash(request.spans)
        tried, _ = parse_tried(request.tried, (self._sent.get(prompt, ""),))
        self._sent[prompt] = model
        keep = 0.5 if wrong > _MEMORY else 1.0
        again = keep * again + bool(tried)
        self.seen[request.tenant] = keep * wrong + 1.0 - probability, again
