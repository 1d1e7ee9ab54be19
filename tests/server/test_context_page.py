"""The context hook's panel on the live page, in a real Chromium."""

import re

import orjson
import pytest
from browser import missing, window
from watching import watched_picker

from laar.core.decision import Completion
from laar.core.request import Api
from laar.protocol.headers import read_head
from support import eventually

pytestmark = pytest.mark.skipif(
    bool(missing()), reason=f"the page is not tested: apt-get install {missing()}"
)


def body(ids):
    items = (f'<document id="d{i}">{f"document {i} " * 40}</document>' for i in ids)
    messages = [{"role": "user", "content": "\n".join(items)}]
    return orjson.dumps({"model": "m", "messages": messages})


async def test_the_page_shows_expected_and_actual_gains_of_the_hook(
    tmp_path, chromium, monkeypatch
):
    monkeypatch.setattr("laar.context.guard.MIN_REQUESTS", 2)
    monkeypatch.setattr("laar.context.guard.WINDOW", 4)
    route = {
        "name": "rag",
        "mode": "on",
        "holdout_share": 0.5,
    }
    async with (
        watched_picker(tmp_path, context={"routes": [route]}) as (runner, url),
        window(chromium) as browser,
    ):
        await browser.open(url)
        assert await browser.run("return document.querySelector('#context') !== null")
        for turn in range(40):
            ids = [(turn * 3 + k * 7) % 11 for k in range(5)]
            given = body(ids)
            rework = runner.picker.context.apply(
                given,
                api=Api.CHAT,
                model="m",
                head=read_head({":path": "/v1/chat/completions"}),
                may_change=True,
                shows_answer=True,
                now=runner.picker.clock(),
            )
            rework.accepted("", runner.picker.clock())
            end = {"status": 200, "cause": "complete", "latency_s": 0.5, "ttft_s": 0.25}
            rework.ended(Completion(**end, prompt_tokens=100, cached_tokens=40))
        await browser.open(url)

        async def shown():
            text = await browser.text("#orders") + await browser.text("#problems")
            row = r"rag \(switched itself off\)\ton\t40\t\d+ %\t\d+ %\t0 %"
            return "switched itself off: reordering" in text and re.search(row, text)

        await eventually(shown, what="the figures, and the problem")
        assert await browser.errors() == []
