"""Whether clients ask again after a wrong answer, learned for each tenant.

A client that asks again pays for a wrong answer with the next attempt; one that does not pays more
(`laar.core.cost`). A client may say so (`Request.retries`), or its requests show it: the attempts
that name tried models are compared with the wrong answers that P(correct) predicts. An attempt
counts if the same prompt was sent to one of these models before: tried models cost nothing to name.
"""

from __future__ import annotations

from itertools import islice

from laar.accuracy.retry import parse_tried
from laar.core.candidates import Group
from laar.core.decision import Decision
from laar.core.interfaces import View
from laar.core.plugin import Admitted, Answering, Core, Part, Plugin
from laar.fleet.endpoints import Slots
from laar.latest import Latest, Shared
from laar.prefix.match import PrefixMatch
from laar.request import Request
from laar.untrusted import Amount, Text, valid

MAX_TENANTS = 1024
"""Maximum number of tenants remembered; clients without a tenant count as one. A tenant is
remembered from the first request with tried models on."""

_MAX_SENT = 8192
"""Maximum number of prompts remembered, of tenants that are remembered (2 MB)."""

_UNSEEN = 2.0  # wrong answers without a retry that are assumed before any was seen
_MEMORY = 64.0  # wrong answers after which earlier ones count half
_MOSTLY = 0.5  # share of wrong answers after which a tenant's clients ask again


class Retrying(Plugin):
    """Learns which tenants' clients ask again."""

    name = "retrying"

    def __init__(self) -> None:
        self.seen: Latest[str, tuple[float, float]] = Latest(MAX_TENANTS)
        """By tenant, the wrong answers that were expected, and the prompts asked again."""
        self._sent: Shared[tuple[str, int], str] = Shared(_MAX_SENT, lambda key, _: key[0])
        """The model that a prompt was last sent to, by tenant and hash."""

    def join(self, core: Core) -> None:
        """Keep the core, whose groups change once a tenant is known."""
        self._core = core

    def admit(self, request: Request, now: float) -> Admitted | None:
        """Take part in requests that name tried models."""
        return Admitted(part=Part()) if request.tried else None

    def filter(self, group: Group, able: Slots, answering: Answering, now: float) -> Part | None:
        """Take part once a client has asked again."""
        return Part() if self.seen else None

    def prescore(
        self, view: View, part: Part, group: Group, match: PrefixMatch | None
    ) -> Part | None:
        """Price a wrong answer by the next attempt for clients that are expected to ask again."""
        request = view.request
        is_known = request.tenant in self.seen
        if is_known and request.wrong_answer_s is None and self.expected_of(request.tenant):
            view.wrong_s = None
        return part if (request.tried or is_known) and not request.retries else None

    def select(self, view: View, part: Part, at: int) -> Part | None:
        """Learn only where there was a choice of models."""
        is_open = view.request.model in self._core.settings.aliases
        return part if is_open or len(set(view.model_id.tolist())) > 1 else None

    def reserve(self, decision: Decision, now: float) -> None:
        """Count a request that is sent to a model with this P(correct)."""
        view, is_new = decision.view, not self.seen
        if view is not None and not decision.request.shadow:
            expected = view.probability.item(decision.position)
            self.observe(decision.request, decision.flight.model, expected)
            if is_new:
                self._core.candidates.forget()

    def save(self) -> object:
        """Return what was seen of each tenant."""
        return [(tenant, *seen) for tenant, seen in self.seen.items()]

    def restore(self, saved: object) -> None:
        """Restore a result of `save`."""
        for tenant, wrong, again in islice(valid(saved, tuple[Text, Amount, Amount]), MAX_TENANTS):
            self.seen[tenant] = wrong, again
        self._core.candidates.forget()

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
