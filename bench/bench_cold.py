"""Measure what each part of a decision costs with cold CPU caches, by leaving it out.

The conditions are as in the cold row of `python -m bench decision`: four endpoints, prompts of
48 KB, two requests a second. Whole decisions alternate with decisions that lack a part, since a
part timed alone would also pay for loading code that it shares with the next part. The last rows
leave out all parts, and all but 1 KB of the prompt. It takes two minutes, so it runs only by name.

    python -m bench cold
"""

from __future__ import annotations

import asyncio
import statistics
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import numpy as np
from rich.console import Console
from rich.table import Table

from bench.bench_decision import (
    CACHES_BYTES,
    COLD_ENDPOINTS,
    COLD_EVERY_S,
    COLD_SIZE,
    DISTINCT,
    TARGET_COLD_US,
    messages,
    processor,
    time_answer,
)
from bench.options import parser_for
from laar.core import director
from laar.policies.laar.outlook import Outlook
from laar.prefix.beliefs import PrefixBeliefs, PrefixMatch
from laar.prefix.blocks import Chain
from laar.prefix.lengths import PromptLengths
from laar.protocol.events import AnswerBody
from laar.server.extproc.messages import ANSWERS
from laar.server.memory import keep_freed, keep_young

ROUNDS = 30
WARM_UP = 5
SHORT_SIZE = 1_000

_NOTHING = Chain(array("Q"), 0)


def _unknown(
    _self: object, _prompt: object, _of: str, _models: object, guess: Any, *at: Any
) -> Any:
    return PrefixMatch(_NOTHING, guess, np.zeros(at[0]), None, None, None)


PARTS: Mapping[str, Callable[[], Any]] = {
    "the length in tokens": lambda: patch.object(
        PromptLengths, "estimate", lambda _self, _chain, _text, _models, guess: guess
    ),
    "hashes and caches, with the length": lambda: patch.object(PrefixBeliefs, "look_up", _unknown),
    "the cost": lambda: patch.object(Outlook, "score", lambda _self, view: view.tokens),
    "recording the request": lambda: patch.object(director, "run_steps", lambda *_args: None),
    "the message for Envoy": lambda: patch.dict(ANSWERS, {AnswerBody: lambda _action: b""}),
}
"""Patches that each leave out one part, by the name of the part."""


async def measure() -> dict[str, float]:
    """Return the median microseconds of a decision without each part in turn, and without all."""
    picker = processor(COLD_ENDPOINTS)
    others = np.ones(CACHES_BYTES // 8)
    without: dict[str, Sequence[str]] = {"the whole decision": (), **{at: (at,) for at in PARTS}}
    without |= {"all of these": tuple(PARTS), "47 of the 48 KB": ()}
    took: dict[str, list[float]] = {name: [] for name in without}
    for number in range(WARM_UP + ROUNDS):
        for name, parts in without.items():
            size = SHORT_SIZE if name == "47 of the 48 KB" else COLD_SIZE
            exchange = messages(size, number % DISTINCT)
            with ExitStack() as stack:
                for part in parts:
                    stack.enter_context(PARTS[part]())
                await asyncio.sleep(COLD_EVERY_S)
                others += 1.0
                spent = 1e6 * await time_answer(picker, exchange)
            if number >= WARM_UP:
                took[name].append(spent)
    return {name: statistics.median(each) for name, each in took.items()}


def main(argv: Sequence[str] = ()) -> int:
    """Print the table; return 3 if the whole decision misses its target."""
    parser_for("cold", __doc__).parse_args(argv)
    keep_freed()  # like a server after start-up
    keep_young()
    taken = asyncio.run(measure())
    whole = taken.pop("the whole decision")
    table = Table("without", "p50, us", "less, us")
    for name, value in taken.items():
        table.add_row(name, f"{value:.0f}", f"{whole - value:.0f}")
    Console().print(table)
    verdict = "met" if whole <= TARGET_COLD_US else "missed"
    print(f"the whole decision: {whole:.0f} us; target: {TARGET_COLD_US:.0f} us: {verdict}")
    return 0 if whole <= TARGET_COLD_US else 3


if __name__ == "__main__":
    raise SystemExit(main())
