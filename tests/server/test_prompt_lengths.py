"""The picker learns prompt lengths in tokens from answers, with a real Envoy."""

import random

import pytest

pytestmark = pytest.mark.envoy


@pytest.mark.parametrize("shape", ["standalone", "full-duplex"])
async def test_prompts_of_mixed_scripts_are_estimated_from_reported_lengths(gateway, http, shape):
    """The simulated engine counts six ASCII characters, or any one other character, as a token."""
    endpoint = await gateway.simulated(time_scale=0.001)
    gateway.members((endpoint.address, "m"))
    await gateway.picker(bodies={"sample_answers": 1})
    url, rng = (await gateway.envoy(shape)).url(), random.Random(3)

    async def ask(text):
        """Return the tokens estimated for a prompt, and those reported."""
        body = {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 2}
        async with http.post(f"{url}/v1/chat/completions", json=body) as answer:
            assert answer.status == 200
            usage = (await answer.json())["usage"]
            decision = answer.headers["x-laar-decision-id"]
        async with http.get(gateway.url("admin", f"/decisions/{decision}")) as answer:
            (only,) = (await answer.json())["candidates"]
            return only["tokens"], usage["prompt_tokens"]

    def text():
        words = "".join(rng.choices("etaoin ", k=rng.randrange(300, 3000)))
        return words + "".join(rng.choices("東京都の料金", k=rng.randrange(2000)))

    pairs = [await ask(text()) for _ in range(24)]
    assert [p for p in pairs[12:] if abs(p[0] / p[1] - 1.0) > 0.15] == []
