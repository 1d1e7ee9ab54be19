"""What failing attempts have in common, from drawn fleets with one part at fault."""

from __future__ import annotations

import random

import pytest

from laar.health.suspects import Suspects

NAMES = ("endpoint", "prefiller", "source", "adapter", "model", "API", "client")


def drawn(rng: random.Random, counts: dict[str, int], absent: float) -> dict[str, str]:
    """Draw an attempt; attributes besides the first are sometimes absent."""
    found = {name: str(rng.randrange(count)) for name, count in counts.items()}
    return {n: v for n, v in found.items() if n == "endpoint" or rng.random() >= absent}


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.1])
@pytest.mark.parametrize("values", [2, 8])
@pytest.mark.parametrize("name", NAMES)
def test_the_value_with_which_attempts_fail_is_found_and_no_other(
    name: str, values: int, noise: float
) -> None:
    found, wrong = 0, 0
    for seed in range(6):
        rng, suspects = random.Random(f"{seed} {name} {values} {noise}"), Suspects()
        counts = {each: rng.randint(1, 6) for each in NAMES} | {name: values}
        for n in range(200):
            shared = drawn(rng, counts, absent=rng.choice([0.0, 0.4]))
            fails = shared.get(name) == "0"
            suspects.note(shared, n / 10, failed=fails is not (rng.random() < noise))
        found += (name, "0") in suspects.culprits
        wrong += len(suspects.culprits.keys() - {(name, "0")})
    assert found >= (6 if noise < 0.1 else 4)
    assert wrong <= (0 if noise < 0.1 else 1)


@pytest.mark.parametrize("name", NAMES)
def test_a_culprit_is_found_as_soon_however_fast_attempts_follow(name: str) -> None:
    found_at = set()
    for step_s in (0.0, 0.001, 0.1, 1.0):
        rng, suspects = random.Random(name), Suspects()
        for n in range(100):
            shared = drawn(rng, dict.fromkeys(NAMES, 4) | {name: 2}, absent=0.2)
            suspects.note(shared, n * step_s, failed=shared.get(name) == "0")
            if suspects.culprits:
                break
        found_at.add(n)
    assert len(found_at) == 1
    assert found_at.pop() < 60


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.6, 1.0])
def test_failures_that_have_nothing_in_common_incriminate_nothing(share: float) -> None:
    wrong = 0
    for seed in range(15):
        rng, suspects = random.Random(seed), Suspects()
        counts = {name: rng.randint(1, 8) for name in NAMES}
        for n in range(300):
            suspects.note(drawn(rng, counts, 0.3), n / 10, failed=rng.random() < share)
        wrong += len(suspects.culprits)
    assert wrong <= 1


def test_a_culprit_is_found_after_a_few_failures_and_costs_few_attempts_from_then_on() -> None:
    suspects, lost, rng = Suspects(), [], random.Random(1)
    for n in range(6000):
        now = n / 10
        allowed = [p for p in ("a", "b") if not suspects.avoids("prefiller", p, now)]
        shared = {"endpoint": str(rng.randrange(3)), "prefiller": rng.choice(allowed)}
        suspects.sent(shared, now)
        suspects.note(shared, now, failed=shared["prefiller"] == "a")
        lost += [n] * (shared["prefiller"] == "a")
    assert 3 <= sum(n < 200 for n in lost) <= 8
    assert sum(n >= 200 for n in lost) <= 0.01 * 6000


def test_a_trial_that_succeeds_clears_the_culprit() -> None:
    suspects = Suspects()
    for n in range(12):
        for prefiller in "ab":
            shared = {"endpoint": str(n % 3), "prefiller": prefiller}
            suspects.note(shared, float(n), failed=prefiller == "a")
    assert suspects.avoids("prefiller", "a", 12.0)
    assert not suspects.avoids("prefiller", "b", 12.0)
    assert not suspects.avoids("prefiller", "a", 400.0)
    suspects.sent(shared := {"endpoint": "0", "prefiller": "a"}, 400.0)
    assert suspects.avoids("prefiller", "a", 400.0)  # one trial at a time
    suspects.note(shared, 401.0, failed=False)
    assert not suspects.culprits


def test_memory_is_bounded_and_what_nobody_meets_is_forgotten() -> None:
    suspects = Suspects()
    for n in range(8_000):
        failed = n % 2 == 0
        shared = {"endpoint": "0", "client": f"bad-{n // 40}" if failed else "good"}
        suspects.note(shared, n / 10, failed=failed)
    assert 0 < len(suspects.culprits) <= 64
    suspects.note({"endpoint": "0"}, 1e6, failed=False)
    assert not suspects.culprits
