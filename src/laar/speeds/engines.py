"""The speed of engines, learned from the requests they served.

All engines share one closed-form model. A request with `x` seconds of prompt to prefill, `n` other
requests at its endpoint, and `W` seconds of prompts ahead takes, in addition to the round trip,

    to the first token   f_p * (base + e * X + c * (x * (1 + s * n) + w * W))
    from there on        f_d * (answer + 2 * b * n)

    X = c(m) * prompt,  x = c(m) * uncached * (1 + q * context)

`base` does not grow with the prompt. `e` is the share of `X`, c(m)'s estimate for the whole prompt,
that is spent on it even if it is cached, mostly on tokenization. `x` and `W` are c(m)'s estimates,
`c` is the actual time over the estimate. `context` is the mean number of tokens that each uncached
token attends to: the cached ones and half of the rest. `q` makes long prompts take more than
proportional time, as attention does. `w` is the share of the prompts ahead that a request waits
for: 1 if they are prefilled one after another, 0 if concurrently. `s` is how much each other
request slows its prefill; `answer` is the time of a lone answer, `b` half of what each other
request adds (`n` then being their mean). These belong to a model and are shared by its endpoints;
`f_p` and `f_d` are each endpoint's own pace relative to the others of its model
(`laar.speeds.paces`). vLLM has `w` = 1 and `s` = 0; an engine that runs all prefills concurrently
has the reverse. `n` and `W` are counted in `laar.speeds.traffic`.

With few samples the priors apply: c(m) and the base of the artifact, `e` = 0, prefill as in vLLM,
attention that adds twice c(m) at 65,536 tokens of context, and answers that take twice as long next
to a hundred others. Among candidates that were never measured, the model whose answers were fastest
is the prior for the others, so each is tried. If first tokens are not seen (answers are not read),
the first line is not learned; the prompts ahead are then estimated from elapsed time, and complete
answers still teach the second line and the paces. Errors are relative to the prediction, for first
tokens to the mean of prediction and measurement. Outliers count linearly, old samples fade, and no
answer can push a constant beyond its bounds.

A variant of a model, which is asked in another way, shares the model's lines. How much longer or
shorter its answers are is taken from the artifact, for which all were asked the same questions.
While serving they are not: hard questions go elsewhere than easy ones, and are asked several times.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Set
from dataclasses import dataclass, field

import numpy as np

from laar.accuracy.assessment import CONTEXT_TOKENS, SpeedPrior
from laar.fleet.endpoints import EndpointTable, Floats, Slots
from laar.health.lateness import is_spoiled
from laar.latest import Latest
from laar.speeds.batches import Batches
from laar.speeds.engine_model import ERROR, Constants, EndpointConstants, EngineModel, Sample, Seen
from laar.speeds.paces import Paces
from laar.speeds.traffic import Elsewhere, Traffic

_MAX_MODELS = 1024  # or twice the number served, if that is more
_MOST_S = 1e9  # keeps ratios finite
_MOST_ENDS = 4096
_UNKNOWN_LENGTH = 0.05  # weight of an answer of unknown length; 1 if known


@dataclass(slots=True, kw_only=True)
class Began:
    """A request at an endpoint: the features that explain its timing, as of when it was sent.

    Args:
        slot: the endpoint.
        plain_s: c(m)'s estimate for the uncached part of its prompt, in seconds.
        prompt_s: c(m)'s estimate for the whole prompt, in seconds.
        others: other requests in flight there.
        rtt_s: round trip.
        shown: whether the first byte of its answer will be seen.
        context_tokens: mean number of tokens that each token of its prompt attends to.
        teaches: whether its end yields a sample; false if its time includes another endpoint's, a
            fetch from slower memory, an adapter's load, a wake-up, or an unseen prefill elsewhere.
        reads: whether its prompt is prefilled there.
        visits: only its prompt is prefilled there; another endpoint answers.
        variant: the variant of the model that is asked; empty if it is the model itself.

    `Engines` sets the other fields. `work_s` is `plain_s` with the effect of the context (`x`),
    `late_s` how late this picker read the first token, or the end.
    """

    slot: int
    plain_s: float
    prompt_s: float
    others: float
    rtt_s: float
    shown: bool
    context_tokens: float = 0.0
    teaches: bool = True
    reads: bool = True
    visits: bool = False
    variant: str = ""
    model: EngineModel = field(init=False)
    work_s: float = field(init=False)
    ahead_s: float = field(init=False)
    flight_s: float = field(init=False)
    done_s: float = field(init=False)
    is_read: bool = False
    first_at: float = math.nan
    late_s: float = 0.0


class Engines:
    """Learns the constants of all endpoints, and keeps the counts that they depend on.

    Args:
        table: the endpoints.
    """

    def __init__(self, table: EndpointTable) -> None:
        self.traffic = Traffic(table)
        self._table, self._lateness = table, table.lateness
        self._models: dict[str, EngineModel] = {}
        self._lengths: Latest[str, float] = Latest(_MAX_MODELS)
        self.paces = Paces(table)
        self.batches = Batches(table)
        self.kept: EndpointConstants | None = None
        """The latest result of `constants`, until it changes."""
        self._speed: Callable[[str], SpeedPrior] = lambda _model: SpeedPrior()
        self.on_sample: Callable[[int, Sample], None] = lambda _slot, _sample: None
        """Called with the slot and each sample that this picker measures, before it is learned."""
        self.ends: deque[tuple[int, float, int | None]] = deque(maxlen=_MOST_ENDS)
        """Latest answers: the slot, the seconds (as at an idle endpoint, if it was priced), and the
        tokens, if known."""
        self.untaught: Set[int] = frozenset()
        """Slots whose answers teach their model nothing."""
        self._grow(table.capacity)
        table.on_grow.append(self._grow)

    # -- used by decisions ---------------------------------------------------------------------

    def length(self, name: str) -> float:
        """Return the length of a variant's answers, as a multiple of those of its model."""
        if (length := self._lengths.get(name)) is None:
            model = self._table.model_of.get(name, name)
            own_s, usual_s = self._speed(name).answer_s, self._speed(model).answer_s
            length = own_s / usual_s if own_s and usual_s else 1.0
            self._lengths[name] = length = min(max(length, 1e-3), 1e3)
        return length

    def constants(self, slots: Slots, model_id: Slots | None = None) -> EndpointConstants:
        """Return the constants of `slots`, for their models or, by index in `judged`, for these."""
        table = self._table
        if self.batches.readings != table.readings and self.batches.look(self.traffic.done_s):
            self.kept = None
        kept = self.kept
        if (
            kept is not None
            and kept.of is slots
            and kept.model_id is model_id
            and kept.models is table.models
        ):
            return kept
        asked = table.model_id[slots] if model_id is None else model_id
        names, model_of, lengths = table.judged, table.model_of, np.ones(len(asked))
        if model_of:
            lengths = np.array(list(map(self.length, names)))[asked]
        of = {at: self._model(model_of.get(names[at], names[at])) for at in set(asked.tolist())}
        answered = [model for model in of.values() if model.rest.seen]
        answered.sort(key=lambda model: model.mean_s)
        for model in of.values() if answered and len(of) > 1 else ():
            model.imitate(answered[0])
        unknown = Constants(*[math.nan] * len(Constants._fields))
        rows = [of[at].constants() if at in of else unknown for at in range(len(names))]
        own: Constants[Floats] = Constants(*np.array(rows).T[:, asked])
        first, rest = self.paces.first[slots], self.paces.rest[slots]
        self.kept = EndpointConstants(
            of=slots,
            model_id=model_id,
            models=table.models,
            base_s=first * own.base_s,
            c=first * own.c,
            e=first * own.e,
            s=own.s,
            cw=first * own.cw,
            w=own.cw / own.c,
            answer_s=rest * lengths * own.answer_s,
            b=rest * lengths * own.b,
            q=own.q,
            slots=self.batches.most_at_once[slots],
            tokens=lengths * own.tokens,
        )
        return self.kept

    def reads(self, slots: Slots) -> Floats:
        """Return actual prefill time at `slots`, as a multiple of c(m)'s estimate."""
        known = [self._models.get(name) for name in self._table.models]
        by_model = np.array([1.0 if model is None else model.constants().c for model in known])
        paced: Floats = self.paces.first[slots] * by_model[self._table.model_id[slots]]
        return paced

    def reassess(self, speed: Callable[[str], SpeedPrior]) -> None:
        """Use new estimates from an artifact from now on; `speed` returns a model's speed.

        What was learned remains valid, in units of the new c(m), so the next decision uses both.
        """
        self.kept, self._speed = None, speed
        self._lengths.clear()
        for name, model in self._models.items():
            model.measured(speed(name))

    def seen(self) -> dict[str, Seen]:
        """Return c(m) of the models whose first tokens were seen. Thread-safe."""
        models = list(self._models.items())
        return {name: model.seen() for name, model in models if model.first.seen}

    # -- events --------------------------------------------------------------------------------

    def began(self, began: Began, now: float) -> Began:
        """Record a request that is being sent. Call it before the table counts the request."""
        slot, traffic = began.slot, self.traffic
        traffic.advance(slot, now)
        at = self._table.model_id.item(slot)
        model = self._model(self._table.models[at] if at >= 0 else "")
        pace = max(model.first.now[1] * self.paces.first.item(slot), 1e-3)  # `_pace`, inlined
        began.model = model
        began.work_s = model.work_s(began.plain_s, began.context_tokens)
        began.ahead_s = traffic.ahead(slot, now, pace)
        began.flight_s, began.done_s = traffic.flight_s.item(slot), traffic.done_s.item(slot)
        traffic.send(slot, now, began.work_s, pace, shown=began.shown, counted=not began.visits)
        return began

    def answering(self, began: Began, now: float) -> None:
        """Record the first byte of an answer: its prompt is prefilled."""
        slot, traffic = began.slot, self.traffic
        traffic.advance(slot, now)
        self._is_read(began, now)
        began.first_at = now
        if now > self._lateness.on_time_until:
            began.late_s = self._lateness.now_s(now)
        began.flight_s, began.done_s = traffic.flight_s.item(slot), traffic.done_s.item(slot)

    def gone(self, began: Began, now: float) -> None:
        """Drop a request, learning nothing. Call it before the table removes the request."""
        self.traffic.advance(began.slot, now)
        self._is_read(began, now)

    def ended(
        self,
        began: Began,
        now: float,
        *,
        ttft_s: float | None,
        latency_s: float,
        answer_tokens: int | None,
        plain_s: float | None = None,
    ) -> None:
        """Learn from a request that succeeded. Call it before the table removes the request.

        Args:
            began: the record that `began` returned.
            now: the current time.
            ttft_s: seconds to the first byte of the answer, if it was seen.
            latency_s: seconds to the end of the answer.
            answer_tokens: length of the answer, if it was read.
            plain_s: c(m)'s estimate for the uncached tokens by the engine's count, if reported.
        """
        self.traffic.advance(began.slot, now)
        self._is_read(began, now)
        if now > self._lateness.on_time_until:
            began.late_s = max(began.late_s, self._lateness.now_s(now))
        part_s = latency_s if ttft_s is None else min(ttft_s, latency_s - ttft_s)
        if not began.teaches or (began.late_s and is_spoiled(part_s, began.late_s)):
            return
        slot, model, traffic = began.slot, began.model, self.traffic
        features = _features(model, began.plain_s if plain_s is None else plain_s, began)
        guess = model.first.guess(features)
        pace = self.paces.first.item(slot)
        # At a full engine, requests wait for a slot, so their time shows nothing about prefill.
        if ttft_s is not None and began.reads and began.others < self.batches.most_at_once[slot]:
            first_s = max(ttft_s - began.rtt_s, 1e-4)
            noise = 0.02 + ERROR * began.rtt_s
            self._report(slot, model, Sample(True, features, first_s / pace, first_s, noise))
        seen = ttft_s is not None and not math.isnan(began.first_at)
        took = latency_s - (pace * guess + began.rtt_s if ttft_s is None else ttft_s)
        span_s = now - began.first_at if seen else latency_s
        beside_s = traffic.flight_s.item(slot) - began.flight_s
        others = max(0.0, beside_s / max(span_s, 1e-6) - 1.0)
        d0, d1 = model.rest.now
        # As the model itself would have answered.
        longer = self.length(began.variant) if began.variant else 1.0
        if answer_tokens and began.variant:
            answer_tokens = max(round(answer_tokens / longer), 1)
        # However early it ends, it says something of an endpoint that is much faster than expected.
        here_s = max(latency_s - began.rtt_s, 1e-4)  # else a near endpoint would seem quick
        ends_s = max(took, 0.1 * here_s) / longer / (1.0 + d1 / d0 * others)
        self.ends.append((slot, ends_s, answer_tokens))
        if took <= 0.0:
            return
        if seen:  # prompts prefilled meanwhile delayed the answer
            waited = model.constants().cw * self.paces.first.item(slot)
            took = max(took - waited * (traffic.done_s.item(slot) - began.done_s), 0.1 * took)
        took /= longer
        even_s, weight = took / self.paces.rest.item(slot), _UNKNOWN_LENGTH
        if answer_tokens:
            length = model.length(answer_tokens, usual=slot not in self.untaught)
            even_s, took, weight = even_s / length, took / length, 1.0
        elif model.counts_tokens:  # it may have been shorter than others
            return
        self._report(slot, model, Sample(False, (others,), even_s, took, weight))

    def prefilled(self, began: Began, took_s: float) -> None:
        """Learn from a prompt that was successfully prefilled for another endpoint.

        Args:
            began: the record that `began` returned.
            took_s: seconds to the first byte of the answer, minus the time after the prefill.
        """
        slot, model = began.slot, began.model
        pace = self.paces.first.item(slot)
        own = model.constants()
        # The other endpoint tokenizes the prompt as well.
        took = max(took_s - own.base_s - own.e * began.prompt_s, 1e-4)
        features = _features(model, began.plain_s, began)
        self._report(slot, model, Sample(True, features, took / pace, took, 0.02))

    def restarted(self, slot: int) -> None:
        """Handle the restart of a slot's engine: it may now run fewer requests concurrently."""
        self.batches.drop(slot)
        self.kept = None

    def drop(self, slot: int) -> None:
        """Forget a slot whose endpoint was removed."""
        self.traffic.drop(slot)
        self.paces.drop(slot)
        self.batches.drop(slot)

    # -- several pickers -----------------------------------------------------------------------

    def elsewhere(self, slot: int, now: float, theirs: Elsewhere) -> None:
        """Record other pickers' traffic to a slot. Call it before the table counts it."""
        self.traffic.advance(slot, now)
        pace = self._pace(slot, self._model(self._name(slot)))
        self.traffic.send_elsewhere(slot, now, theirs, pace)

    def heard(self, slot: int, sample: Sample) -> None:
        """Learn from an answer that another picker saw."""
        self._learn(slot, self._model(self._name(slot)), sample)

    def state(self) -> dict[str, object]:
        """Return the state of models and, by key, endpoints' paces, as plain values."""
        paces: dict[str, object] = {}
        active = self._table.active
        for model_id, name in enumerate(self._table.models):
            same = active[self._table.model_id[active] == model_id]
            states = self.paces.state(same, self.traffic.arrived_at, self._levels(name))
            paces |= {self._table.spec(slot).key: state for slot, state in states}
        return {"models": {n: m.state() for n, m in self._models.items()}, "paces": paces}

    def restore(self, state: object, now: float) -> None:
        """Restore a result of `state`, for models without samples."""
        if not isinstance(state, dict):
            return
        models, paces = state.get("models"), state.get("paces")
        for name in self._table.models:
            if isinstance(models, dict) and name in models:
                self._model(name).restore(models[name])
        for address, known in paces.items() if isinstance(paces, dict) else ():
            slot = self._table.slot(address) if isinstance(address, str) else -1
            if slot >= 0:
                self.paces.restore(slot, known, now, self._levels(self._name(slot)))
        self.paces.work_out_all(now)
        self.kept = None

    # -- learning ------------------------------------------------------------------------------

    def _report(self, slot: int, model: EngineModel, sample: Sample) -> None:
        """Pass a sample of this picker to the others, and learn from it."""
        self.on_sample(slot, sample)
        self._learn(slot, model, sample)

    def _learn(self, slot: int, model: EngineModel, sample: Sample) -> None:
        features, weight, changed = sample.features, sample.weight, False
        teaches = slot not in self.untaught
        first_level, rest_level = model.first.level, model.rest.level
        if sample.first:
            guess = max(0.0, model.first.guess(features))
            # Half relative to the sample: if the guess is far too high, samples must still count.
            error_s = weight + ERROR * 0.5 * (guess + max(sample.even_s, 0.0))
            changed = teaches and model.first.learn(features, sample.even_s, error_s)
            pace = self.paces.first.item(slot)
            expected_s = pace * min(guess, _MOST_S)
            # A short time says little about the pace, so it does not move the pace to 1 either.
            ratio = pace * (sample.took_s + weight) / (expected_s + weight)
            usual_s = 0.5 * (expected_s + min(sample.took_s, _MOST_S))
            sure = usual_s / (usual_s + 2.0 * weight)
            weight = sure * sure
        else:
            even_s = max(sample.even_s, 1e-9)
            fits, ratio = model.answered(even_s, features[0], weight, teaches=teaches)
            changed, ratio = fits, ratio * sample.took_s / even_s
        as_of = self.traffic.arrived_at
        levels = first_level, rest_level + math.log(model.unit_s)
        moved = self.paces.learn(slot, ratio, weight, as_of, levels, first=sample.first)
        if moved is not None:
            model.paces_changed(*moved)
        if changed or moved is not None:
            self.kept = None

    def _is_read(self, began: Began, now: float) -> None:
        if not began.is_read:
            began.is_read = True
            first = began.model.first.now[1] * self.paces.first.item(began.slot)
            pace = max(first, 1e-3)  # `_pace`, inlined
            self.traffic.read(began.slot, now, began.work_s, pace, shown=began.shown)

    def _pace(self, slot: int, model: EngineModel) -> float:
        """Return actual prefill time / c(m)'s estimate."""
        return max(model.first.now[1] * self.paces.first.item(slot), 1e-3)

    def _grow(self, size: int) -> None:
        """Grow to the table's size."""
        self.traffic.grow(size)
        self.paces.grow(size)
        self.batches.grow(size)
        self.kept = None

    def _levels(self, name: str) -> tuple[float, float]:
        """Return the `levels` of `Paces.learn` now."""
        model = self._model(name)
        return model.first.level, model.rest.level + math.log(model.unit_s)

    def _name(self, slot: int) -> str:
        at = self._table.model_id.item(slot)
        return self._table.models[at] if at >= 0 else ""

    def _model(self, name: str) -> EngineModel:
        """Return a model's constants, creating them if new."""
        model = self._models.get(name)
        if model is None:
            if len(self._models) >= max(_MAX_MODELS, 2 * len(self._table.models)):
                self._models.clear()  # names come from endpoint sources, but still need a cap
            model = self._models[name] = EngineModel(self._speed(name))
        return model


def _features(model: EngineModel, plain_s: float, began: Began) -> tuple[float, ...]:
    """Return the features of the line that predicts the time to the first token."""
    slowed_s = model.work_s(plain_s, began.context_tokens) * began.others
    bent_s = plain_s * began.context_tokens / CONTEXT_TOKENS
    return 1.0, plain_s, slowed_s, began.ahead_s, bent_s, began.prompt_s
