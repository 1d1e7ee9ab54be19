"""The price of pulling a prompt's prefix from another endpoint (`laar.core.pulls`).

The pull comes before the prefill of the rest, and delays no other request: the engine continues
with them. The pulled text evicts as much from the cache as computed text.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from laar.core.endpoints import Floats
from laar.core.pulls import Pulls
from laar.policies.laar.pricing import FIRST, Price, PricingInputs, price


def pull_or_compute(pulls: Pulls, inputs: PricingInputs, alone: Price) -> tuple[Price, Floats]:
    """Return the lower price for each candidate, and the seconds of its pull; 0 without one.

    Store in `pulls` what each pull saves.

    Args:
        pulls: the pulls.
        inputs: the inputs to the prices.
        alone: the prices of candidates that compute what they have not cached.
    """
    pull_s, objective_s = pulls.seconds, inputs.objective_s
    then = price(
        replace(
            inputs,
            cached_tokens=np.minimum(inputs.cached_tokens + pulls.tokens, inputs.tokens),
            objective_s=None if objective_s is None else np.maximum(objective_s - pull_s, 0.0),
        )
    )
    evicted_s = inputs.weights.k_delay * (alone.evicted_s - then.evicted_s)
    own_s, others_s = then.own_s + FIRST * pull_s, then.others_s + evicted_s
    pulled = then._replace(
        ttft_s=then.ttft_s + pull_s,
        latency_s=then.latency_s + pull_s,
        own_s=own_s,
        others_s=others_s,
        total_s=own_s + others_s,
        copy_s=then.copy_s + pull_s,
        evicted_s=alone.evicted_s,
    )
    pulls.saved_s = np.where(pulls.tokens > 0.0, alone.total_s - pulled.total_s, 0.0)
    taken = pulls.saved_s > 0.0
    priced = (np.where(taken, a, b) for a, b in zip(pulled, alone, strict=True))
    return Price._make(priced), np.where(taken, pull_s, 0.0)
