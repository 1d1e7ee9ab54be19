"""A tiny request to an endpoint, as the doctor and the breaker send it."""

import asyncio
import gzip
import time
from email.utils import formatdate

import orjson
import pytest
from aiohttp import web

from laar.datalayer.asking import ask, new_session
from laar.fleet.membership import EndpointSpec
from laar.health import GOOD, Kind, judge


async def answer_of(handler, timeout_s=5.0):
    """Ask an endpoint with this handler; return the result and the requests that it received."""
    sent = []

    async def handle(request):
        sent.append((request.path, orjson.loads(await request.read())))
        return await handler(request)

    application = web.Application()
    application.router.add_post("/{path:.*}", handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        spec = EndpointSpec(address=f"127.0.0.1:{runner.addresses[0][1]}", models=("m", "alias"))
        async with new_session(timeout_s) as session:
            return await ask(session, spec), sent
    finally:
        await runner.cleanup()


def says(body, status=200, **headers):
    async def handle(_request):
        return web.Response(status=status, body=body, headers=headers)

    return handle


@pytest.mark.parametrize(
    ("handler", "verdict"),
    [
        (says(b'data: {"choices":[{"delta":{"content":"1"}}]}\n\ndata: [DONE]\n\n'), GOOD),
        (
            says(
                gzip.compress(b'data: {"choices":[{"delta":{"content":"1"}}]}\n\ndata: [DONE]\n\n'),
                **{"content-encoding": "gzip"},
            ),
            GOOD,
        ),
        (says(b'data: {"error": {"message": "dead", "code": 500}}\n\n'), Kind.EVENT),
        (
            says(
                b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
                b'data: {"choices":[{"delta":{"reasoning":"1"}}]}\n\n'
                b'data: {"choices":[{"delta":{},"finish_reason":"length"}]}\n\ndata: [DONE]\n\n'
            ),
            GOOD,
        ),
        (
            says(b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'),
            Kind.EMPTY,
        ),
        (says(b"<html>It works</html>", **{"content-type": "text/html"}), Kind.TYPE),
        (says(b"<html>It works</html>"), Kind.UNREADABLE),
        (says(b"Found", status=302, location="/login"), Kind.TYPE),
        (says(b""), Kind.EMPTY),
        (says(b"no", 503), Kind.STATUS),
        (says(b"no", 503, **{"retry-after": "3"}), Kind.FULL),
        (says(b"no", 503, **{"retry-after": formatdate(time.time() + 9, usegmt=True)}), Kind.FULL),
        (says(b"no", 401), Kind.DENIED),
        (says(b"no", 400), None),
    ],
)
async def test_an_answer_is_judged(handler, verdict):
    asked, sent = await answer_of(handler)
    assert judge(asked.reply) == verdict
    path, body = sent[0]
    assert path == "/v1/chat/completions"
    assert (body["model"], body["max_tokens"], body["stream"]) == ("m", 8, True)


async def test_silence_and_a_closed_connection_are_failures_of_the_endpoint():
    async def hang(request):
        response = web.StreamResponse()
        await response.prepare(request)
        await request.content.wait_eof()
        await asyncio.sleep(30)
        return response

    async def cut(request):
        request.transport.abort()
        return web.Response()

    assert (await answer_of(hang, timeout_s=0.3))[0].failed is Kind.HANG
    assert (await answer_of(cut))[0].failed is Kind.STATUS


async def test_an_unreachable_endpoint_proves_nothing():
    async with new_session(2.0) as session:
        spec = EndpointSpec(address="127.0.0.1:1", models=("m",))
        asked = await ask(session, spec)
    assert asked.reply is None
    assert asked.failed is None
    assert "can't be reached" in asked.problem
