"""Targets can be missed, and growth is distinguished from noise."""

import pytest
from bench.bench_failing import main as failing
from bench.chaos.asking import End, Ended, Question
from bench.chaos.rows import ROWS, Run
from bench.figures import MISSED

QUESTION = Question(asked="m", text="Why?", tokens=4, stream=False)


def ended(end=End.RIGHT, *, began_s=5.0, took_s=0.2):
    return Ended(question=QUESTION, began_s=began_s, ended_s=began_s + took_s, end=end)


def run_of(*others, right=1000, seen=(3, 300, 300, 300, 300), **fields):
    good = [ended(began_s=7.0) for _ in range(right)]
    run = Run(ended=[*good, *others], seen=list(seen), fault_s=4.0)
    run.baseline_p95_s = 0.2
    for name, value in fields.items():
        setattr(run, name, value)
    return run


def holds(name, run):
    _, test = next(row for row in ROWS if row.name == name).target
    return test(run)


def poison(attempts):
    return {"poison": [LOST] * 20, "poison_attempts": attempts}


LOST = ended(End.ENGINE)


@pytest.mark.parametrize(
    ("name", "met", "missed"),
    [
        ("503", run_of(), run_of(LOST)),
        ("error event", run_of(ended(End.EVENT)), run_of(ended(End.EVENT, began_s=7.0))),
        ("hang", run_of(*[ended(End.TIMEOUT)] * 5), run_of(*[ended(End.TIMEOUT)] * 6)),
        ("ten times slower", run_of(), run_of(*[ended(took_s=0.3)] * 100)),
        ("heals", run_of(healed_after_s=12.0), run_of()),
        ("heals", run_of(healed_after_s=12.0), run_of(healed_after_s=12.0, failed_trials=31)),
        ("all fail", run_of(*[LOST] * 99, right=1), run_of(*[LOST] * 90, right=10)),
        ("all fail", run_of(*[LOST] * 99, right=1), run_of(*[LOST] * 99, right=1, seen=[0] * 5)),
        ("html", run_of(*[ended(End.CUT)] * 10), run_of(*[ended(End.CUT, began_s=7.0)] * 11)),
        ("full for 5 s", run_of(healed_after_s=8.0), run_of(healed_after_s=8.5)),
        ("poison 500", run_of(**poison(24)), run_of(**poison(25))),
        ("poison 500", run_of(**poison(20)), run_of(LOST, **poison(20))),
    ],
)
def test_each_target_has_a_run_that_meets_it_and_one_that_misses_it(name, met, missed):
    assert holds(name, met)
    assert not holds(name, missed)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_targets_are_missed_if_nothing_is_learned_from_failures(envoy_binary):
    """A negative control: a target that could not be missed would be met here as well."""
    del envoy_binary
    rows = ["--rows", "html,error event", "--requests", "400"]
    assert failing(["--subjects", "laar", "--without-health", *rows]) == MISSED
