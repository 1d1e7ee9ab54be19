"""Test tools for authors of filters, scorers, pickers and policies: views and contract checks.

    @pytest.mark.parametrize("check", laar.testing.checks(MyScorer), ids=str)
    def test_my_scorer_keeps_the_contract(check: laar.testing.Check) -> None:
        check()

Each check tests one promise of `laar.Filter`, `laar.Scorer`, `laar.Picker` or `laar.Policy` in
situations that occur in fleets: one endpoint, a thousand, none scraped yet, nothing cached, models
never measured. laar runs the same checks on its own parts. No check needs pytest, a server or a
network. A broken promise raises an `AssertionError` that names the situation.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np

from laar.core.cost import CostWeights
from laar.core.decision import DirectorSettings
from laar.core.director import Director
from laar.core.interfaces import Filter, Picker, Scorer, View
from laar.core.plugin import Plugin
from laar.core.policy import Policy
from laar.fleet.endpoints import EndpointTable, Floats
from laar.fleet.membership import EndpointSpec
from laar.policies import build_policies
from laar.request import Api, Request

__all__ = ["Check", "checks", "director_with", "make_view"]

Extension = Filter | Scorer | Picker | Policy
Numbers = float | Sequence[float]

_SEEDS = range(3)


def make_view(
    endpoints: int = 3,
    *,
    prompt: str = "Which of these is right?",
    tokens: Numbers = 1000.0,
    cached_tokens: Numbers = 0.0,
    queued_tokens: Numbers = 0.0,
    in_flight: Numbers = 0.0,
    waiting: Numbers | None = 0.0,
    running: Numbers | None = None,
    kv_usage: Numbers = 0.0,
    rtt_s: Numbers = 0.001,
    probability: Numbers = 1.0,
    evidence: Numbers = 50.0,
    seconds_per_token: Numbers = 1e-4,
    base_s: Numbers = 0.0,
    times_tried: Numbers = 0.0,
    models: Sequence[str] = ("model",),
    labels: Sequence[Mapping[str, str]] = (),
    session: str = "",
    now: float = 0.0,
    seed: int = 0,
) -> View:
    """Return a view of endpoints `10.0.0.0:8000`, `10.0.0.1:8000` ..., as passed to a scorer.

    Models are assigned round-robin, labels to the first. Quantities are as in `laar.View`, one for
    all candidates or one per candidate; `waiting`, `running` and `kv_usage` are as last scraped:
    None for `waiting` means never, and for `running` the same as `in_flight`.
    """
    n, table = endpoints, _table(endpoints, models, labels)
    if waiting is not None:
        table.waiting[:n], table.kv_usage[:n] = _each(waiting, n), _each(kv_usage, n)
        table.running[:n] = _each(in_flight if running is None else running, n)
        table.capacity_tokens[:n], table.read_at[:n] = 10_000.0, now
        table.readings += n
    queued = table.queued_uncached_tokens[:n] = table.prefill_tokens[:n] = _each(queued_tokens, n)
    table.in_flight[:n], table.queued_tokens[:n] = _each(in_flight, n), queued
    spans = (prompt,) if prompt else ()
    return View(
        request=Request(
            id="laar-testing", api=Api.CHAT, spans=spans, chars=len(prompt), session=session
        ),
        now=now,
        rng=random.Random(seed),
        table=table,
        slots=np.arange(n),
        judged=table.judged,
        model_id=table.model_id[:n].copy(),
        tokens=_each(tokens, n),
        cached_tokens=_each(cached_tokens, n),
        queued_tokens=queued.copy(),
        in_flight=_each(in_flight, n),
        rtt_s=_each(rtt_s, n),
        wire_s=_each(rtt_s, n),
        probability=_each(probability, n),
        evidence=_each(evidence, n),
        seconds_per_token=_each(seconds_per_token, n),
        base_s=_each(base_s, n),
        times_tried=_each(times_tried, n),
    )


def _table(n: int, models: Sequence[str], labels: Sequence[Mapping[str, str]]) -> EndpointTable:
    table = EndpointTable()
    specs = [
        EndpointSpec(
            address=f"10.0.{i // 256}.{i % 256}:8000",
            models=(models[i % len(models)],),
            labels=labels[i] if i < len(labels) else {},
        )
        for i in range(n)
    ]
    table.replace("laar.testing", specs)
    return table


def director_with(
    *plugins: Plugin, endpoints: int = 2, labels: Sequence[Mapping[str, str]] = (), seed: int = 0
) -> Director:
    """Return a director of equal endpoints of the model ``m`` that has only these plug-ins.

    Its `decide(request, now)` and `settle(decision, completion)` ask the plug-ins as a picker does.

    Args:
        plugins: the plug-ins, in the order in which they are asked.
        endpoints: number of endpoints.
        labels: labels of the first endpoints; the others have none.
        seed: seed of the random source.
    """
    view = make_view(endpoints, models=("m",), labels=labels)
    return Director(
        view.table,
        build_policies(CostWeights()),
        DirectorSettings(),
        rng=random.Random(seed),
        plugins=plugins,
    )


def _each(value: Numbers, n: int) -> Any:
    return np.array(np.broadcast_to(np.asarray(value, np.float64), n))


# -- situations --------------------------------------------------------------------------------


def _mixed(n: int, seed: int, **changed: Any) -> View:
    """Return a view of a busy fleet in which no two endpoints are alike."""
    draw = np.random.default_rng(seed)
    tokens = 2000.0
    model = np.arange(n) % 2
    given: dict[str, Any] = {
        "tokens": tokens,
        "cached_tokens": draw.permutation(n) / n * tokens,
        "queued_tokens": draw.uniform(0.0, 50_000.0, n),
        "in_flight": draw.permutation(n) + 1.0,
        "waiting": draw.permutation(n) + 0.5,
        "kv_usage": draw.uniform(0.0, 1.0, n),
        "rtt_s": draw.uniform(1e-4, 0.2, n),
        "probability": draw.uniform(0.1, 1.0, 2)[model],
        "seconds_per_token": draw.uniform(1e-5, 1e-3, 2)[model],
        "base_s": draw.uniform(0.0, 0.1, 2)[model],
        "models": ("small", "large"),
        "seed": seed,
        "now": 100.0,
    }
    return make_view(n, **(given | changed))


_THOUSAND = "a thousand endpoints"
_SITUATIONS: Mapping[str, Callable[[int], View]] = {
    "a fleet in use": lambda seed: _mixed(5, seed),
    # Slots that are neither the first nor adjacent.
    "part of a fleet": lambda seed: _mixed(9, seed).at(np.array([1, 4, 5, 8])),
    "a single candidate": lambda seed: _mixed(1, seed),
    "an idle fleet": lambda seed: make_view(4, seed=seed),
    "endpoints that were never read": lambda seed: _mixed(4, seed, waiting=None),
    "nothing cached": lambda seed: _mixed(4, seed, cached_tokens=0.0),
    "all of it cached": lambda seed: _mixed(4, seed, cached_tokens=2000.0),
    "an empty prompt": lambda seed: _mixed(4, seed, prompt="", tokens=0.0, cached_tokens=0.0),
    "models never measured": lambda seed: _mixed(4, seed, evidence=0.0, probability=1.0),
    "models never right": lambda seed: _mixed(4, seed, probability=0.0),
    "every model tried before": lambda seed: _mixed(4, seed, times_tried=3.0),
    "a session": lambda seed: _mixed(4, seed, session="one"),
    _THOUSAND: lambda seed: _mixed(1000, seed),
}


# -- checks ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Check:
    """One promise of the contract. Calling it raises an `AssertionError` if the promise is broken.

    Args:
        name: the promise, in a few words.
        run: the check.
    """

    name: str
    run: Callable[[], None]

    def __call__(self) -> None:
        """Run the check."""
        try:
            self.run()
        except AssertionError:
            raise
        except Exception as error:
            raise AssertionError(f"raises {type(error).__name__}: {error}") from error

    def __str__(self) -> str:
        return self.name


def checks(make: Callable[[], Extension], *, symmetric: bool = True) -> list[Check]:
    """Return the checks for a filter, scorer, picker or policy, one per promise.

    Args:
        make: returns a new instance.
        symmetric: whether the choice is independent of the order in which candidates are listed.
            Set False for random or round-robin choices.
    """
    found = [Check(name, partial(_check_results, make, name)) for name in _SITUATIONS]
    found.append(Check("the same seed gives the same result", partial(_check_repeats, make)))
    found.append(Check("its input is not changed", partial(_check_input, make)))
    if symmetric:
        name = "the order of candidates does not matter"
        found.append(Check(name, partial(_check_symmetry, make)))
    return found


def _run(extension: Extension, view: View) -> Any:
    """Return the extension's result for a view: scores, a mask or an order."""
    if isinstance(extension, Policy):
        kept, scores = extension.keep(view), extension.score(view)
        order = extension.order(scores, view, () if kept is None else (kept,))
        for fault in view.faults:
            raise AssertionError(f"its {fault.part} fails: {fault.error!r}") from fault.error
        _check_order(np.asarray(order), view)
        return scores
    if hasattr(extension, "keep"):
        return extension.keep(view)
    if hasattr(extension, "order"):
        given: Floats = 1.0 / (1.0 + view.in_flight)  # they differ if in-flight counts do
        return np.asarray(extension.order(given, view))
    return extension.score(view)


def _check_results(make: Callable[[], Extension], situation: str) -> None:
    extension = make()
    for seed in _SEEDS if situation != _THOUSAND else (0,):
        view = _SITUATIONS[situation](seed)
        result = _run(extension, view)
        count = len(view.slots)
        shape = np.shape(result)
        assert shape == (count,), f"has the shape {shape} for {count} candidates"
        if hasattr(extension, "score"):  # a scorer or a policy
            _check_scores(result)
        elif hasattr(extension, "order"):
            _check_order(result, view)
        else:
            assert result.dtype == np.bool_, f"is an array of {result.dtype}; return booleans"


def _check_scores(scores: Floats) -> None:
    assert np.isfinite(scores).all(), f"has scores that are not finite: {scores}"
    low, high = float(scores.min()), float(scores.max())
    assert low >= 0.0, f"scores {low}, below 0"
    assert high <= 1.0 + 1e-9, f"scores {high}, above 1"


def _check_order(order: Any, view: View) -> None:
    once = sorted(order.tolist()) == list(range(len(view.slots)))
    assert once, f"orders {len(view.slots)} candidates as {order}, not each exactly once"


def _check_repeats(make: Callable[[], Extension]) -> None:
    first, second = make(), make()
    for seed in range(10):
        one, two = _run(first, _mixed(5, seed)), _run(second, _mixed(5, seed))
        assert np.array_equal(one, two), f"two runs differ: {one} and {two}"


def _check_input(make: Callable[[], Extension]) -> None:
    extension = make()
    for situation in _SITUATIONS.keys() - {_THOUSAND}:
        view = _SITUATIONS[situation](3)
        before = _values(view)
        _run(extension, view)
        for name, value in _values(view).items():
            assert value == before[name], f"{situation}: `{name}` was changed"


def _values(view: View) -> dict[str, bytes]:
    """Return everything an extension may read, as bytes, which can be compared even with NaN."""
    kept = ("terms", "reason", "faults", "rng", "table", "engines")
    found = {f.name: getattr(view, f.name) for f in fields(view) if f.name not in kept}
    columns = {f"table.{n}": v for n, v in vars(view.table).items() if isinstance(v, np.ndarray)}
    return {name: pickle.dumps(value) for name, value in (found | columns).items()}


def _check_symmetry(make: Callable[[], Extension]) -> None:
    for seed in _SEEDS:
        view = _mixed(7, seed)
        order = np.random.default_rng(seed).permutation(7)
        moved = view.at(order)
        moved.rng = random.Random(seed)
        extension = make()
        one, other = _run(extension, view), _run(make(), moved)
        if isinstance(extension, Policy):  # it may break ties at random
            same = view.slots[one.argmax()] == moved.slots[other.argmax()]
        elif hasattr(extension, "order"):
            same = view.slots[one[0]] == moved.slots[other[0]]
        else:
            same = np.allclose(one[order], other, rtol=1e-9)
        assert same, f"{one} becomes {other} when the candidates are listed as {order}"
