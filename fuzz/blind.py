"""Inputs drawn by chance: for machines without atheris, and a few for the tests."""

from __future__ import annotations

import random
import time
import traceback
from pathlib import Path

from fuzz.targets import TARGETS

__all__ = ["inputs", "run"]

_HANG_S = 20.0
_MAX_BYTES = 400


def inputs(seed: int, count: int) -> list[bytes]:
    """The same inputs for the same seed: short ones, long ones, with few and with many values."""
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        length = rng.randrange(1, _MAX_BYTES)
        below = rng.choice((4, 16, 64, 256))
        made.append(bytes(rng.randrange(below) for _ in range(length)))
    return made


def run(
    name: str, seconds: float, count: int, seed: int, found: Path
) -> tuple[int, float, int, int]:
    """Inputs run, seconds, crashes, hangs; ends at the first finding."""
    target, began, done = TARGETS[name], time.monotonic(), 0
    while done < count and time.monotonic() - began < seconds:
        for data in inputs(seed * 1_000_003 + done, min(1000, count - done)):
            at = time.monotonic()
            try:
                target(data)
            except Exception:  # noqa: BLE001 - that is the finding
                traceback.print_exc()
                (found / name).mkdir(parents=True, exist_ok=True)
                (found / name / f"crash-{seed}-{done}").write_bytes(data)
                return done + 1, time.monotonic() - began, 1, 0
            done += 1
            if time.monotonic() - at > _HANG_S:
                return done, time.monotonic() - began, 0, 1
    return done, time.monotonic() - began, 0, 0
