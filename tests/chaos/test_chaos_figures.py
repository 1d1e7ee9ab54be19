"""Targets that can be missed, and slopes that are distinguished from noise."""

import random

import pytest
from bench.bench_failing import MISSED
from bench.bench_failing import main as failing
from bench.bench_soak import Soak, slope_of
from bench.chaos.asking import End, Ended, Question
from bench.chaos.rows import ROWS, Run

QUESTION = Question(asked="m", text="Why?", tokens=4, stream=False)


def ended(end=End.RIGHT, *, began_s=5.0, took_s=0.2):
    return Ended(question=QUESTION, began_s=began_s, ended_s=began_s + took_s, end=end)


def run_of(*others, right=1000, seen=(3, 300, 300, 300, 300), **fields):
    run = Run(ended=[*(ended() for _ in range(right)), *others], seen=list(seen), fault_s=4.0)
    run.baseline_p95_s = run.baseline_max_s = 0.2
    for name, value in fields.items():
        setattr(run, name, value)
    return run


def holds(name, run, *, gateway=False):
    row = next(row for row in ROWS if row.name == name)
    _, test = row.gateway if gateway and row.gateway else row.target
    return test(run)


LOST = ended(End.ENGINE)


@pytest.mark.parametrize(
    ("name", "met", "missed"),
    [
        ("503", run_of(), run_of(LOST)),
        ("error event", run_of(ended(End.EVENT)), run_of(ended(End.EVENT, began_s=7.0))),
        ("hang", run_of(*[ended(End.TIMEOUT)] * 5), run_of(*[ended(End.TIMEOUT)] * 6)),
        ("ten times slow", run_of(), run_of(*[ended(took_s=0.3)] * 100)),
        ("heals", run_of(healed_after_s=12.0), run_of()),
        ("heals", run_of(healed_after_s=12.0), run_of(healed_after_s=12.0, failed_trials=31)),
        ("all fail", run_of(*[LOST] * 99, right=1), run_of(*[LOST] * 90, right=10)),
        ("all fail", run_of(*[LOST] * 99, right=1), run_of(*[LOST] * 99, right=1, seen=[0] * 5)),
        ("picker SIGSTOP", run_of(ended(took_s=2.0)), run_of(ended(took_s=2.3))),
    ],
)
def test_a_target_is_met_or_missed(name, met, missed):
    assert holds(name, met)
    assert not holds(name, missed)


def test_in_the_gateway_shape_a_killed_picker_costs_what_passed_through_it():
    cut = run_of(*[ended(End.CUT)] * 24)
    assert not holds("picker SIGKILL", cut)
    assert holds("picker SIGKILL", cut, gateway=True)


def test_an_answer_without_laar_is_no_loss():
    assert run_of(ended(End.FAILED_OPEN)).lost == []
    assert run_of(LOST, right=3).lost_share == 0.25


def test_an_unknown_row_is_named(capsys):
    assert failing(["--rows", "nonsense"]) not in (0, MISSED)
    assert "nonsense" in capsys.readouterr().out


def memory(growth_bytes, *, rng):
    """Samples each 500 requests: a warm-up, then steps of noise, and growth per 100,000."""
    return [
        (n, int(100e6 + min(n, 20_000) * 1000 + growth_bytes * n / 1e5 + rng.gauss(0, 3e5)))
        for n in range(0, 100_000, 500)
    ]


def test_growth_is_told_from_noise():
    rng = random.Random(4)
    assert not slope_of(memory(20e6, rng=rng)).is_flat
    assert slope_of(memory(20e6, rng=rng)).value == pytest.approx(20e6, rel=0.1)
    flat = [slope_of(memory(0, rng=rng)).is_flat for _ in range(200)]
    assert sum(flat) >= 185  # a one-sided error of 2.5 %: 195 expected


def test_a_slow_end_is_seen_in_p99():
    soak = Soak()
    for number in range(10_000):
        soak.keep(ended(took_s=0.1 if number < 9_000 else 0.3))
    first_s, last_s = soak.p99_s()
    assert last_s == pytest.approx(3 * first_s)
    soak.keep(ended(End.CUT))
    soak.keep(ended(End.LEFT))
    assert soak.lost == 1
