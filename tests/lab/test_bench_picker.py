"""`python -m bench picker` counts its load correctly, and can measure other pickers."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from bench.figures import Figures
from bench.picking.load import Load, bodies
from bench.picking.parts import Costs, cpu
from bench.picking.subjects import ALONE, LAAR, endpoints, peer, running

from laar.errors import SettingError
from laar_lab.live.processes import free_ports


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
async def test_another_picker_is_measured_next_to_laar() -> None:
    module = f"{sys.executable} -m bench.noop_picker"
    other = peer(f"other={module} --port {{port}} --endpoint {{endpoints}}")
    figures, costs = Figures(), Costs()
    await cpu(figures, costs, [other, LAAR, ALONE], 0.01)
    short = costs.pickers["native", "1 KB"]
    assert short["other"] > 0.0
    assert short["laar"] > 0.0
    assert short["Envoy alone"] == 0.0
    assert costs.envoys["full duplex", "1 MB"]["Envoy alone"] > 0.0
    assert not any(one.target for one in figures.found if "laar / the other" in one.name)


@pytest.mark.slow
@pytest.mark.envoy
@pytest.mark.parametrize("service", ["", "inference-extension"])
@pytest.mark.parametrize("asked", [True, False])
async def test_another_picker_may_have_its_health_service_elsewhere_or_none(
    tmp_path: Path, service: str, asked: bool
) -> None:
    """Envoy must not look for laar's service on the ext_proc port of a picker like llm-d's."""
    command = f"{sys.executable} -m bench.noop_picker --port {{port}} --endpoint {{endpoints}}"
    health = f"--health-port {'{health_port}' if asked else free_ports(1)[0]} --service '{service}'"
    subject = peer(f"other={command} {health}", service)
    async with (
        endpoints(tmp_path, 1) as ports,
        running("full-duplex", subject, tmp_path / "other", ports) as other,
    ):
        load = Load(other.url, bodies(1_000, stream=False), None)
        await asyncio.sleep(1.0)  # until Envoy has checked its health several times
        assert len(await load.closed(20, 2)) == 20
        assert load.failed == 0
        load.close()


def test_another_picker_requires_a_name_and_a_command() -> None:
    with pytest.raises(SettingError, match="NAME=VALUE"):
        peer("epp --port 1")
