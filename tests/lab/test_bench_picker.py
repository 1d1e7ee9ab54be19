"""`python -m bench picker` counts its load correctly."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.figures import Figures
from bench.picking.load import Load, bodies
from bench.picking.parts import Costs, cpu
from bench.picking.subjects import ALONE, LAAR, NOOP, endpoints


@pytest.mark.parametrize("chunks", [None, 1, 5])
async def test_every_answer_is_read_completely(tmp_path: Path, chunks: int | None) -> None:
    async with endpoints(tmp_path, 1) as (port,):
        load = Load(f"http://127.0.0.1:{port}", bodies(2_000, stream=True), chunks)
        assert len(await load.closed(20, 4)) == 20
        took = await load.at_rate(200.0, 0.2, 1)
        assert took
        assert min(took) > 0.0
        assert load.failed == 0
        load.close()


def test_bodies_have_the_requested_size_and_share_half() -> None:
    one, other, *_ = bodies(10_000, stream=False)
    same = next(at for at, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
    assert 9_990 <= len(one) <= 10_010
    assert 4_900 < same < 5_200


@pytest.mark.slow
async def test_pickers_are_measured_by_turns() -> None:
    figures, costs = Figures(), Costs()
    await cpu(figures, costs, [NOOP, LAAR, ALONE], 0.01)
    short = costs.pickers["native", "1 KB"]
    assert short[NOOP.name] > 0.0
    assert short["laar"] > 0.0
    assert short["Envoy alone"] == 0.0
    assert costs.envoys["full duplex", "1 MB"]["Envoy alone"] > 0.0
