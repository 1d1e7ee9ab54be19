"""Verdicts on claims show effects where there are some, and none where there are none.

The second half are negative controls: an analysis that finds effects where there are none, or finds
them more easily with less data, is useless, however good its figures look.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from laar_lab.claims import Claim, Seen, judge
from laar_lab.experiments import all_experiments
from laar_lab.statistics import detectable, seeds_for

SHORTER = Claim(
    name="c",
    says="ours takes a tenth less",
    metric="time, ours by theirs",
    effect="ratio",
    direction="below",
    bound=0.9,
    seeds=10,
    paper="a paper",
    largest=0.6,
)
AS_GOOD = replace(SHORTER, bound=1.03, paper="")


def times(seed: int, ratio: float, seeds: int = 10, scatter: float = 0.02) -> Seen:
    """Return pairs with a known ratio, which differ far more between seeds than within a pair."""
    rng = random.Random(seed)
    theirs = [math.exp(rng.gauss(0.0, 1.0)) for _ in range(seeds)]
    return Seen([t * ratio * math.exp(rng.gauss(0.0, scatter)) for t in theirs], theirs)


def verdict(claim: Claim, *seen: Seen) -> str:
    parts = {str(number): one for number, one in enumerate(seen)}
    return judge([claim], {claim.name: parts})[0].verdict


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [
        (0.5, "larger than published"),
        (0.8, "reproduced"),
        (0.95, "reproduced in kind"),
        (1.0, "not reproduced"),
        (1.2, "contradicted"),
    ],
)
def test_a_claim_of_a_paper_is_judged_by_size_and_direction(ratio: float, expected: str) -> None:
    assert verdict(SHORTER, times(1, ratio)) == expected


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [(1.0, "shown"), (1.03, "not shown"), (1.1, "refuted")],
)
def test_a_claim_of_no_harm_is_judged_by_its_margin(ratio: float, expected: str) -> None:
    assert verdict(AS_GOOD, times(2, ratio)) == f"beyond the paper: {expected}"


def test_all_parts_of_a_claim_must_hold_and_the_weakest_is_reported() -> None:
    seen = {"good": times(3, 0.7), "bad": times(4, 0.95)}
    (one,) = judge([SHORTER], {"c": seen})
    assert (one.verdict, one.part) == ("reproduced in kind", "bad")
    (one,) = judge([replace(SHORTER, parts="any")], {"c": seen})
    assert (one.verdict, one.part) == ("reproduced", "good")


def test_without_randomness_a_claim_must_hold_on_every_seed() -> None:
    claim = replace(SHORTER, effect="every", bound=5.0, paper="")
    assert verdict(claim, Seen([5.0] * 10)) == "beyond the paper: shown"
    assert verdict(claim, Seen([5.0] * 9 + [5.1])) == "beyond the paper: refuted"
    assert verdict(claim, Seen([5.0] * 9)) == "no verdict: needs 10 seeds"
    for unknown in range(10):
        values = [5.0] * 10
        values[unknown] = math.nan
        assert verdict(claim, Seen(values)) == "beyond the paper: refuted", unknown


def test_the_detectable_effect_of_a_run_is_reported() -> None:
    (one,) = judge([SHORTER], {"c": {"": times(5, 1.0, scatter=0.5)}})
    assert one.outcome == "open"
    assert one.wanted > 10
    assert "about" in one.power
    rng = random.Random(1)
    values = [rng.gauss(0.0, 1.0) for _ in range(40)]
    assert seeds_for(values, detectable(values)) == pytest.approx(40, abs=1)


def test_an_impossible_reduction_cannot_be_shown_with_any_number_of_seeds() -> None:
    seen = {"c": {"": times(5, 1.0, scatter=1.0)}}
    (below,) = judge([SHORTER], seen)
    (above,) = judge([replace(SHORTER, direction="above", bound=1.1)], seen)
    assert below.detectable < 100.0 < above.detectable
    assert 1 - below.detectable / 100 == pytest.approx(1 / (1 + above.detectable / 100))


def test_evidence_must_match_the_declared_claims() -> None:
    with pytest.raises(ValueError, match="evidence"):
        judge([SHORTER], {})
    with pytest.raises(ValueError, match="3 seeds"):
        replace(SHORTER, seeds=2)


# -- negative controls -------------------------------------------------------------------------


@pytest.mark.parametrize("seeds", [1, 2, 3, 5, 9])
def test_fewer_seeds_than_declared_show_no_effect_of_any_size(seeds: int) -> None:
    assert verdict(SHORTER, times(6, 0.1, seeds)) == "no verdict: needs 10 seeds"
    assert verdict(AS_GOOD, times(6, 0.1, seeds)) == "no verdict: needs 10 seeds"


def test_an_absent_effect_is_shown_in_at_most_five_percent_of_runs() -> None:
    """At the bound itself, the test may show an effect in 5 % of 400 runs."""
    shown = sum(
        verdict(SHORTER, times(seed, 0.9, scatter=0.2)) == "reproduced" for seed in range(400)
    )
    assert shown <= 35  # 20 are expected; the probability of more than 35 is below 1 in 1,000


def test_more_scatter_or_fewer_seeds_never_help_a_claim_of_no_harm() -> None:
    """Earlier checks passed if an interval was wide enough to touch the bound."""
    shown = [
        sum(
            verdict(replace(AS_GOOD, seeds=3), times(s, 1.0, seeds, scatter)).endswith(": shown")
            for s in range(60)
        )
        for seeds, scatter in ((30, 0.02), (10, 0.02), (10, 0.1), (3, 0.1))
    ]
    assert shown == sorted(shown, reverse=True)
    assert shown[0] == 60
    assert shown[-1] < 15


def test_shuffled_labels_show_no_effect() -> None:
    """Swapping the values of random pairs removes an effect of 20 %."""
    shown = 0
    for seed in range(100):
        real, rng = times(seed, 0.8), random.Random(f"labels {seed}")
        pairs = [
            pair if rng.random() < 0.5 else pair[::-1]
            for pair in zip(real.ours, real.theirs, strict=True)
        ]
        mixed = Seen([a for a, _ in pairs], [b for _, b in pairs])
        shown += verdict(replace(SHORTER, bound=1.0), mixed) == "reproduced"
    assert shown <= 13


def test_the_best_of_many_cells_is_corrected() -> None:
    """Of runs with fifteen cells without an effect, at most 5 % show that a cell is ahead."""
    claim = replace(SHORTER, bound=1.0, parts="any")
    shown = sum(
        verdict(claim, *(times(15 * s + cell, 1.0, scatter=0.2) for cell in range(15)))
        == "reproduced"
        for s in range(100)
    )
    assert shown <= 13


def test_a_family_of_claims_is_corrected_together() -> None:
    claims = [replace(SHORTER, name=f"c{n}", bound=1.0) for n in range(10)]
    wrong = 0
    for s in range(100):
        seen = {c.name: {"": times(10 * s + n, 1.0)} for n, c in enumerate(claims)}
        wrong += any(one.outcome == "shown" for one in judge(claims, seen))
    assert wrong <= 13


# -- declarations ------------------------------------------------------------------------------


def test_every_claim_has_a_criterion_and_enough_seeds() -> None:
    for experiment in all_experiments().values():
        names = [claim.name for claim in experiment.claims]
        assert len(set(names)) == len(names), experiment.name
        assert bool(names) == (experiment.name != "suite")
        for claim in experiment.claims:
            assert claim.says
            assert claim.metric
            assert math.isfinite(claim.bound)
            assert claim.seeds <= experiment.seeds, (experiment.name, claim.name)
            assert bool(claim.published) == bool(claim.paper), (experiment.name, claim.name)
