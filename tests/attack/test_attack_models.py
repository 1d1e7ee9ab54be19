"""Only an endpoint that serves the requested model answers."""

import pytest
from bench.bench_models import SHAPES, measure

pytestmark = [pytest.mark.envoy, pytest.mark.timeout(240)]
SLOW = ("sidecar", "full duplex")


@pytest.mark.parametrize(
    "shape",
    [pytest.param(s, marks=[pytest.mark.slow] if s in SLOW else []) for s in SHAPES],
)
async def test_no_unusual_request_is_answered_by_another_model(shape: str) -> None:
    found = await measure(shape, 300, seed=11)
    assert not found.wrong, "\n".join(found.wrong)
    assert found.ends["200"] > 150
    assert found.ends["no answer"] == 0
