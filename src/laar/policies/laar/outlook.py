"""The default cost: the time a request would take, and the time it would cost all others.

    cost   = ((own + others - invested) / A + (1 - Q) * wrong) * penalty ** times_repeated  [s]

    own    = 2 * (rtt + base + prefill * (1 + s * n) + wait)
             + answer + after * ((answer + b * n) / (1 - load) - answer)
    others = work + evicted + after * b * n + 2 * (4 * queued + for_cache)
    work   = prefill * (during * (s + w) * n + coming * 2 * later)
    evicted = r * (2 * prefill * (1 + s * n) + work)

`prefill` is the time for the uncached part of the prompt at this endpoint, including the effect of
its context; `wait` the prompts ahead of it (and, in a full engine, the wait for a slot and for
room in its cache), `answer` the time of its answer alone, `load` the share of time that the
endpoint spends on prefill. The constants are learned (`laar.speeds.engines`). A second before the
first token is counted twice: for that token, and for the end. `after` is a constant; `during` and
`coming` depend on the aim (`laar.core.cost.AIMS`). With all 1, overloaded fleets serve short
prompts at few endpoints, where answers are fast, and long prompts wait for each other at the rest.

* `n` other requests are in flight there. Each makes this answer `2 b` longer, but only half of that
  is counted, as an answer in flight is half done on average. Each is slowed down as much by this
  answer, and waits for this prompt if prefills are sequential (`w`), or slows down during it (`s`).
* `later`: requests that reach the endpoint before it is done with this prompt wait too. Until the
  work ahead is done, which takes `wait / (1 - load)` seconds, as in any busy period, requests
  arrive at the fleet's rate per endpoint, and each is delayed by `w * prefill`. Those that arrive
  during this prefill are delayed by half of that on average. So the weight of a prompt grows faster
  than its length, and a conversation is not moved lightly.
* `evicted`: a prompt takes up room in the endpoint's cache and, if that is full, evicts the least
  recently used text. A share `r` of text of that age is requested again, and must be prefilled
  again (`laar.prefix.evictions`). So a prompt goes where there is room, or where only text is
  evicted that has long been out of use.
* `queued`: the part of `wait` for a slot in a full engine. Later requests wait for a slot as well;
  their number is uncertain, so four are assumed, as at a load of 0.8.
* `for_cache`: the part of `wait` for room in the engine's KV cache, if the prompts in flight fill
  it and enough of them have to end first. One later request is assumed to wait as long. The
  metrics page gives the cache's size; `laar.speeds.batches` estimates how much of it a token in
  flight takes.
* `invested`: a prefix that many requests share is worth a copy. It saves them the time by which the
  endpoints that hold the prefix were recently busier, on average, than this one. As many requests
  are expected as arrived recently (`laar.prefix.demand`), less those that the existing copies would
  serve. The amount is at most the cost of the copy. So is the state that an engine keeps where a
  prompt leaves what is cached (`laar.prefix.states`), if no other can resume there.

Plug-ins may add seconds before the first token, or replace the cost (`laar.core.plugin`). Leaving
the model of a conversation costs what a cold cache costs, and
no more. If the client has an objective for the first token, waiting up to it costs next to
nothing, and beyond it several times as much: a patient job goes where its prefix is, however far.

Tried and rejected: a lower weight for the round trip, a higher one for first tokens, a charge to
others for the entire prompt, cached or not, the long-run mean in addition to `n`, and the text that
a prompt evicts in turn when it is prefilled again. Decision 0014 has the figures.
"""

from __future__ import annotations

import numpy as np

from laar.core import plugin
from laar.core.cost import AIMS, AimName, CostWeights, Price, Terms, scores_of_costs, until_correct
from laar.core.interfaces import View
from laar.fleet.endpoints import Floats
from laar.policies.laar.pricing import PricingInputs, RequestPricing, inputs_of, price
from laar.prefix.match import Demand
from laar.speeds.engines import Engines
from laar.speeds.traffic import MEAN_S

_SAME = 0.01  # shares of a prompt that differ by less are treated as equal
_NAMED: dict[str, AimName] = {name: name for name in AIMS}
_ONCE = 1.5  # a prefix with fewer recent requests than this is not worth another copy


class Outlook:
    """Scores by the cost described above.

    Args:
        weights: name the aim of requests that name none.
    """

    def __init__(self, weights: CostWeights) -> None:
        self.weights = weights

    def score(self, view: View) -> Floats:
        """Score by cost, and set the view's terms."""
        engines = view.engines or Engines(view.table)
        aim, options = self.weights.aim, view.request.given
        if options is not None:
            aim = _NAMED.get(options.get("aim", ""), aim)
        inputs = inputs_of(view, engines, aim)
        priced, added = price(inputs), dict[str, Floats]()
        if "price" in view.parts.points:
            pricing = RequestPricing(inputs, priced, engines)
            added = plugin.price(view, pricing)
            priced = pricing.price
        total_s, others_s = priced.total_s, priced.others_s
        if view.demand is not None and view.demand[1][0] > _ONCE:
            spared_s = _spared(view, view.demand, engines, inputs, priced, total_s)
            if spared_s is not None:
                total_s, others_s = total_s - spared_s, others_s - spared_s
        if view.demand is not None and view.left_tokens is not None:
            kept_s = _kept(view, view.demand, view.left_tokens, priced)
            total_s, others_s = total_s - kept_s, others_s - kept_s
        cost_s, penalty = until_correct(
            total_s,
            view.probability,
            view.times_tried if view.sampled is None else view.times_repeated,
            view.answers,
            view.wrong_s,
        )
        view.terms = Terms(
            rtt_s=view.wire_s,
            base_s=priced.base_s,
            prefill_s=priced.prefill_s,
            queue_s=priced.queue_s,
            probability=view.probability,
            penalty=penalty,
            latency_s=priced.latency_s,
            cost_s=cost_s,
            answers=view.answers,
            ttft_s=priced.ttft_s,
            ahead_s=priced.ahead_s,
            others_s=others_s,
            added=added,
        )
        if "score" in view.parts.points:
            plugin.score(view, view.terms)
        return scores_of_costs(view.terms.cost_s)


def _spared(
    view: View,
    demand: Demand,
    engines: Engines,
    inputs: PricingInputs,
    priced: Price,
    total_s: Floats,
) -> Floats | None:
    """Return the seconds that a copy of the prefix at each candidate would save later requests.

    Return None if it would save nothing, which is usual: even a free copy seldom makes another
    candidate the cheapest.
    """
    best = int(total_s.argmin())
    near = (total_s - priced.copy_s < total_s[best]).nonzero()[0]
    if len(near) < 2:
        return None
    share = view.cached_tokens / np.maximum(view.tokens, 1.0)
    top, has = float(share[best]), share[near]
    gains = has < top - _SAME
    if not np.count_nonzero(gains):
        return None
    engine, least_prefill_s = inputs.engine, float(np.minimum.reduce(priced.prefill_s))
    traffic, slots = engines.traffic, view.slots
    passed_s = np.minimum(traffic.at[slots] - inputs.now, 0.0)
    in_flight = view.table.in_flight[slots]
    mean = in_flight + (traffic.mean[slots] - in_flight) * np.exp(passed_s / MEAN_S)
    slope = 2.0 * engine.b + (2.0 * engine.s + engine.w) * least_prefill_s
    less = (slope * (mean[best] - mean))[near]
    gains &= less > 0.0
    if not np.count_nonzero(gains):
        return None
    missing = np.maximum(top - has, _SAME)
    # Integrate the requests that share each part of the prompt, up to `top` and up to `has`. Arrays
    # are filled in place, as concatenating numbers and arrays takes several times as long.
    shares, uses = demand
    edges, asked = np.zeros(len(shares) + 1), np.zeros(len(uses) + 1)
    edges[1:] = shares
    ((edges[1:] - edges[:-1]) * uses).cumsum(out=asked[1:])
    places = np.empty(len(has) + 1)
    places[0], places[1:] = top, has
    sharing = np.interp(places, edges, asked)
    users = (sharing[0] - sharing[1:]) / missing
    copies = len(set(view.slots[share >= top - _SAME].tolist()))
    worth = users / (copies + 1) * less
    cost = priced.copy_s[near] * np.minimum(1.0, missing / np.maximum(1.0 - has, _SAME))
    spared = np.zeros(len(share))
    spared[near] = np.where(gains, np.minimum(worth, cost), 0.0)
    return spared


def _kept(view: View, demand: Demand, left_tokens: Floats, priced: Price) -> Floats:
    """Return the seconds that the state each candidate would keep saves the next request."""
    tokens, cached = np.maximum(view.tokens, 1.0), view.cached_tokens
    gained = np.maximum(left_tokens - np.maximum.reduce(cached), 0.0)
    asked = np.minimum(np.interp(left_tokens / tokens, *demand), 1.0)
    saved: Floats = asked * gained / np.maximum(tokens - cached, 1.0) * priced.copy_s
    return saved
