"""LAAR's policy as published, for comparison.

    cost(m | x) = c(m) * (T(x) + 0.7 * R(m)) / Q(m, x) * penalty ** times_tried

Q is static: the artifact's value for the request's class. It ignores failed attempts, which are
considered independent (section 5.1), and later reports (section 5.2). T is the upper edge of the
length bucket, R the number of prompt tokens queued or in flight at the endpoint, as counted by the
picker (section 5.3). Differences in cost can exceed the penalty of 100 (section 5.1). The cost
ignores caches, round trips, decoding and the delay of other requests.
"""

from __future__ import annotations

import numpy as np

from laar.core.cost import scores_of_costs
from laar.core.interfaces import View
from laar.fleet.endpoints import Floats
from laar_lab.policies.published_cost import PublishedWeights, expected_time

MIN_BUCKET_TOKENS = 4096
"""The shortest length bucket of the paper."""

_WEIGHTS = PublishedWeights(k_rtt=0.0, k_queue=0.7, k_delay=0.0, in_flight_tokens=0.0)


class LaarPaper:
    """Scores by the published cost."""

    def score(self, view: View) -> Floats:
        """Price the candidates, store the terms in the view, and turn costs into scores."""
        _, bucket, _ = view.cell
        nothing = np.zeros(len(view.slots))
        length = np.full(len(view.slots), max(bucket, MIN_BUCKET_TOKENS)) if bucket else view.tokens
        view.terms = expected_time(
            _WEIGHTS,
            rtt_s=nothing,
            base_s=nothing,
            seconds_per_token=view.seconds_per_token,
            uncached_tokens=length,
            queued_tokens=view.queued_tokens,
            in_flight=view.in_flight,
            probability=view.probability if view.published is None else view.published,
            times_tried=view.times_tried,
        )
        return scores_of_costs(view.terms.cost_s)
