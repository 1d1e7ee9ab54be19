"""The harness detects wrong answers, and excuses only the failures that a fault explains."""

import aiohttp
import pytest
from aiohttp import web
from bench.chaos.asking import End, Ended, Names, Question, ask
from bench.chaos.judging import judge
from bench.chaos.trouble import ENDPOINT_TROUBLES, SYSTEM_TROUBLES, Struck

from laar_lab.sim.endpoint.echo import echo_text

NAMES = Names(
    model_at={"10.0.0.1:8000": "small", "10.0.0.2:8000": "large"},
    allowed={"small": frozenset({"small"}), "auto": frozenset({"small", "large"})},
)
PLAIN = Question(asked="small", text="Why?", tokens=12, stream=False)
STREAM = Question(asked="small", text="Why?", tokens=12, stream=True)


def text_of(question, *, model="small", asked="small", text="Why?"):
    return echo_text(model=model, asked=asked, question=text, tokens=question.tokens)


def stream(*lines):
    return web.Response(body=b"".join(b"data: %s\n\n" % one for one in lines))


def piece(text, finish=None):
    quoted = "null" if finish is None else f'"{finish}"'
    delta = '{"choices":[{"delta":{"content":"%s"},"finish_reason":%s}]}'
    return (delta % (text, quoted)).encode()


async def end_of(question, answer, *, endpoint="10.0.0.1:8000", picked="10.0.0.1:8000"):
    async def handle(request):
        await request.read()
        for name, value in (("x-sim-endpoint", endpoint), ("x-laar-endpoint", picked)):
            if value:
                answer.headers[name] = value
        return answer

    application = web.Application()
    application.router.add_post("/v1/chat/completions", handle)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with aiohttp.ClientSession() as http:
            return (await ask(http, url, question, NAMES, limit_s=10)).end
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("lines", "end"),
    [
        ((piece(text_of(STREAM)), piece("", "length"), b"[DONE]"), End.RIGHT),
        ((piece(text_of(STREAM)), piece("", "length")), End.CUT),
        ((piece(text_of(STREAM)), b"[DONE]"), End.CUT),
        ((piece("small<"), piece("", "length"), b"[DONE]"), End.WRONG),
        ((piece("small<"), b'{"error":{"message":"x"}}', b"[DONE]"), End.EVENT),
        ((piece("small<"), b'{"choi'), End.CUT),
    ],
)
async def test_a_stream_is_judged(lines, end):
    assert await end_of(STREAM, stream(*lines)) is end


def trouble(name):
    return next(one for one in (*ENDPOINT_TROUBLES, *SYSTEM_TROUBLES) if one.name == name)


def struck(name, *, began_s=10.0, ended_s=14.0, **fields):
    return Struck(
        trouble=trouble(name),
        addresses=("10.0.0.1:8000",),
        began_s=began_s,
        ended_s=ended_s,
        **fields,
    )


def judged(requests, struck, *, gateway=False):
    return judge(requests, struck, quiet_from_s=0.0, quiet_until_s=5.0, gateway=gateway)


def ended(end, *, began_s=11.0, endpoint="10.0.0.1:8000", took_s=1.0):
    return Ended(
        question=PLAIN, began_s=began_s, ended_s=began_s + took_s, end=end, endpoint=endpoint
    )


@pytest.mark.parametrize(
    ("one", "under", "explained"),
    [
        (ended(End.ENGINE), "503", True),
        (ended(End.ENGINE, endpoint="10.0.0.2:8000"), "503", False),
        (ended(End.ENGINE, began_s=20.0), "503", False),
        (ended(End.CUT), "reset in the middle", True),
        (ended(End.CUT), "503", False),
        (ended(End.TIMEOUT, endpoint=""), "hangs", True),
        (ended(End.TIMEOUT, endpoint=""), "503", False),
        (ended(End.REFUSED, endpoint=""), "503", True),
        (ended(End.NAMELESS, endpoint=""), "503", False),
        (ended(End.WRONG), "503", False),
    ],
)
def test_a_loss_is_explained_only_by_a_fault_that_can_cause_it(one, under, explained):
    result = judged([one], [struck(under)])
    assert (not result.unexplained) is explained
