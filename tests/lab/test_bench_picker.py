"""`python -m bench picker` counts its load correctly."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.picking.load import Load, bodies
from bench.picking.subjects import endpoints


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
