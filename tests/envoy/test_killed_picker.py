"""A killed picker of `laar serve --with-envoy`: its Envoy goes on until the next one decides."""

from pathlib import Path

import pytest
from bench.bench_kills import measure

pytestmark = [pytest.mark.envoy, pytest.mark.timeout(240)]


async def test_a_killed_picker_fails_no_request_and_is_replaced(
    tmp_path: Path, envoy_binary: Path
) -> None:
    run = await measure(tmp_path, kills=2, rate=20.0, pause_s=2.5, seed=1)
    assert not run.failed
    assert run.undecided, "the kills reached the picker"
    assert run.in_a_row > 0, "and the next one decides"
    assert (tmp_path / "laar.log").read_text().count("it starts again in") == 2
