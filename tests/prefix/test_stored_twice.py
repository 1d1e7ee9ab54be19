"""Engines whose KV events report a block stored oftener than removed (vLLM 48933, 55092)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from test_prefix_tokens import Engine, beliefs_of, known, request, share, text_of


@pytest.mark.parametrize("stores_again", [True, False])
@pytest.mark.parametrize("reports", [1, 2, 3])
def test_blocks_reported_stored_oftener_than_removed_are_forgotten_when_answers_miss_them(
    reports: int, stores_again: bool, figure: Callable[[str, object, str], None]
) -> None:
    beliefs, text, other = beliefs_of(1), text_of(1, 640), text_of(2, 640)
    engine, misses = Engine(beliefs, 0), 0
    for each in (text, other):
        known(beliefs, each)
        for _ in range(reports):
            engine.held.clear()
            engine.run(each)
    for _ in range(3):
        engine.let_go(list(engine.names(text)))
        while (shown := share(beliefs, text)) > 0.5:
            receipt = beliefs.insert(0, beliefs.chain(request(text)), 0.0)
            if stores_again and misses % 2:
                engine.run(text)
            beliefs.settle(receipt, 0.0, 640, "m", shown)
            misses += 1
            assert misses < 12
            beliefs.shown.shares[0] = 1.0  # look at what is believed of blocks alone
        engine.held.clear()
        engine.run(text)
        assert share(beliefs, text) > 0.95
        assert share(beliefs, other) > 0.95
    figure(
        "answers that miss blocks reported too often, until they are forgotten", misses / 3, "<= 3"
    )
