"""The HTTP application of a simulated endpoint: vLLM's routes, and the requested faults.

Each route has the bodies, statuses and timing of vLLM 0.32. There is no access log, and prompts
are never logged. There are two additions to vLLM: every response names its endpoint in
``x-sim-endpoint``, and a request with an ``x-sim-body-sha256`` header gets, under the same name,
the digest of its body as received.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import hashlib
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import numpy as np
import orjson
import xxhash
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from laar.errors import RequestError, SettingError
from laar.plugins.apart import PREFILLER
from laar.protocol.headers import PRIORITIES, REQUEST_ID
from laar_lab.sim.endpoint.answering import Answer, answer_for
from laar_lab.sim.endpoint.apart import PATHS, prefilled_elsewhere
from laar_lab.sim.endpoint.bodies import (
    ChatBody,
    CompletionBody,
    EmbeddingBody,
    GenerationBody,
    MessagesBody,
    Prompt,
    ResponsesBody,
    TokenizeBody,
    read_body,
)
from laar_lab.sim.endpoint.controls import Controls
from laar_lab.sim.endpoint.errors import DONE, ApiError
from laar_lab.sim.endpoint.faults import Fault, FaultKind, parse_fault
from laar_lab.sim.endpoint.generation import (
    ENGINE_GONE,
    QUEUE_FULL,
    Generation,
    Refusal,
    Silence,
    set_to_fail,
    until_disconnect,
)
from laar_lab.sim.endpoint.lies import lie
from laar_lab.sim.endpoint.replies import (
    ChatReply,
    CompletionReply,
    MessagesReply,
    Reply,
    ReplyHead,
    ResponsesReply,
    Usage,
)
from laar_lab.sim.endpoint.serving import Serving
from laar_lab.sim.endpoint.useless import FOREIGN_MODEL, USELESS, Page, Useless

VERSION = "0.32.0+sim"
EMBEDDING_DIMENSIONS = 256

_AFTER_SHUTDOWN = "cannot schedule new futures after shutdown"


class Sockets(Protocol):
    """Faults below the HTTP level."""

    def reset(self, scope: Scope) -> None:
        """Reset the connection of a request."""
        ...

    def close(self, scope: Scope) -> None:
        """Close a request's connection gracefully."""
        ...

    def crash(self, down_s: float, forget: bool = True) -> None:
        """Reset every connection and refuse new ones for `down_s` seconds; then restart."""
        ...


class Reset(Response):
    """Response that resets the connection without an answer."""

    def __init__(self, sockets: Sockets) -> None:
        self._sockets = sockets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reset the connection."""
        self._sockets.reset(scope)
        await until_disconnect(receive)


class EndpointApp:
    """The ASGI application.

    Args:
        serving: the state shared by all requests.
        sockets: resets connections.
        address: ``host:port``, for the ``x-sim-endpoint`` header.
    """

    def __init__(self, serving: Serving, sockets: Sockets, address: str) -> None:
        self._serving = serving
        self._settings = serving.settings
        self._sockets = sockets
        self._address = address.encode()
        controls = Controls(serving, sockets.crash)
        post, get = ["POST"], ["GET"]
        generation: dict[str, tuple[type[GenerationBody], Callable[[ReplyHead], Reply]]] = {
            "/v1/chat/completions": (ChatBody, ChatReply),
            "/v1/completions": (CompletionBody, CompletionReply),
            "/v1/responses": (ResponsesBody, ResponsesReply),
            "/v1/messages": (MessagesBody, MessagesReply),
        }
        self._app = Starlette(
            routes=[
                *(
                    Route(path, functools.partial(self._generate, body, reply), methods=post)
                    for path, (body, reply) in generation.items()
                ),
                Route("/v1/responses/{id}", self._stored, methods=get),
                Route("/v1/embeddings", self._embed, methods=post),
                Route("/tokenize", self._tokenize, methods=post),
                Route("/v1/models", self._models, methods=get),
                Route("/health", self._health, methods=get),
                Route("/ping", self._health, methods=["GET", "POST"]),
                Route("/version", self._version, methods=get),
                Route("/metrics", self._metrics, methods=get),
                Route("/kv_event_sources", self._kv_event_sources, methods=get),
                *(controls.routes() if self._settings.allow_fault_header else ()),
            ],
            exception_handlers={ApiError: _envelope, ClientDisconnect: _gone},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request and add the simulator's headers."""
        digest = None
        if any(name == b"x-sim-body-sha256" for name, _ in scope["headers"]):
            digest = hashlib.sha256()

        async def hashed() -> Message:
            message = await receive()
            if digest is not None and message["type"] == "http.request":
                digest.update(message.get("body", b""))
            return message

        async def signed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"].append((b"x-sim-endpoint", self._address))
                if digest is not None:
                    sha256 = digest.hexdigest().encode()
                    message["headers"].append((b"x-sim-body-sha256", sha256))
            await send(message)

        if self._settings.round_trip_s:
            await asyncio.sleep(self._settings.round_trip_s)
        counted = scope["path"].startswith("/v1/") and scope["method"] == "POST"
        self._serving.active += counted
        try:
            await self._app(scope, hashed, signed)
        finally:
            self._serving.active -= counted

    # Generation.

    async def _generate(
        self,
        body_type: type[GenerationBody],
        reply_type: Callable[[ReplyHead], Reply],
        request: Request,
    ) -> Response:
        serving = self._serving
        raw = await request.body()
        fault = self._fault(request, len(raw))
        kind = fault.kind if fault is not None else None
        value = fault.value if fault is not None else None
        if kind in (FaultKind.OUT_OF_MEMORY, FaultKind.CLOSED):
            self._sockets.crash(value or 0, forget=kind is FaultKind.OUT_OF_MEMORY)
        if kind in (FaultKind.REFUSE, FaultKind.OUT_OF_MEMORY, FaultKind.CLOSED):
            return Reset(self._sockets)
        body = read_body(body_type, raw)
        serving.check_model(body.model)
        ask = body.ask(self._settings.template)
        if (priority := request.headers.get(PRIORITIES[0], "")).lstrip("-").isdecimal():
            ask = replace(ask, priority=int(priority))
        if isinstance(body, ResponsesBody) and body.previous_response_id is not None:
            earlier = serving.stored.earlier(body.previous_response_id)
            ask = replace(ask, prompt=body.continuing(earlier, self._settings.template))
        free_tokens = serving.free_tokens(ask)
        stream = bool(body.stream)
        reply = reply_type(self._head(request, body))
        if serving.draining:
            return _while_draining(ask.prompt, reply, stream=stream)
        if kind in (FaultKind.HANG, FaultKind.MUTE):
            return Silence(head=stream and kind is FaultKind.HANG)
        if kind is FaultKind.FULL:
            serving.metrics.rejected()
            return Refusal(QUEUE_FULL, stream=stream)
        if kind is FaultKind.ERROR:
            return Refusal(set_to_fail(int(value or 500)), stream=stream, status=200)
        if kind is FaultKind.HTML:
            return Page()
        echo = (self._settings.names[0], body.model or "") if self._settings.echo else None
        if kind is FaultKind.FOREIGN_MODEL:
            echo = (FOREIGN_MODEL, body.model or "")
            reply = reply_type(replace(self._head(request, body), model=FOREIGN_MODEL))
        answer = answer_for(ask, serving.answerer, free_tokens=free_tokens, echo=echo)
        if kind is FaultKind.EMPTY:
            answer = Answer("", 1, "stop", 1)
        if kind in USELESS:
            return Useless(answer, reply, prompt_tokens=ask.prompt.tokens, stream=stream)
        if isinstance(body, ResponsesBody) and body.store:
            serving.stored.keep(ask.prompt, answer, reply)
        job = serving.job(ask.prompt, answer, ask, request.headers.get("x-session-id", ""))
        if (prefiller := request.headers.get(PREFILLER)) and request.url.path in PATHS:
            path, name = request.url.path, _request_id(request)
            if await prefilled_elsewhere(prefiller, path, raw, name):
                await asyncio.sleep(serving.transfer_s(job))
                job = replace(job, fetched=job.prompt_tokens - 1)
            job = replace(job, arrival_s=serving.driver.now())
        return Generation(
            driver=serving.driver,
            metrics=serving.metrics,
            job=job,
            answer=answer,
            reply=reply,
            stream=stream,
            fault=fault,
            load_format=request.headers.get("endpoint-load-metrics-format"),
            reset=self._sockets.reset,
            close=self._sockets.close,
        )

    def _head(self, request: Request, body: GenerationBody) -> ReplyHead:
        options = body.stream_options
        return ReplyHead(
            request_id=_request_id(request),
            model=self._settings.names[0],
            include_usage=bool(options and options.include_usage),
            continuous_usage=bool(options and options.continuous_usage_stats),
        )

    def _fault(self, request: Request, body_bytes: int) -> Fault | None:
        """Return the fault for this request; raise an error if the fault is an HTTP status."""
        headers = {name.decode("latin-1") for name, _ in request.scope["headers"]}
        fault = self._serving.faults.draw(body_bytes=body_bytes, headers=headers)
        wanted = request.headers.get("x-sim-fault")
        if wanted is not None and self._settings.allow_fault_header:
            try:
                fault = parse_fault(wanted)
            except SettingError as wrong:
                raise ApiError(400, str(wrong)) from None
        if fault is not None and fault.kind is FaultKind.STATUS:
            after = None if fault.value is None else int(fault.value)
            raise set_to_fail(fault.status).after(after)
        return fault

    # The other routes.

    async def _stored(self, request: Request) -> Response:
        whole = self._serving.stored.whole(request.path_params["id"])
        return Response(whole, media_type="application/json")

    async def _embed(self, request: Request) -> Response:
        serving = self._serving
        body = read_body(EmbeddingBody, await request.body())
        self._fault(request, 0)
        serving.check_model(body.model)
        prompts = body.prompts()
        one_token = Answer("", 1, "stop", 1)
        try:
            flights = [serving.driver.submit(serving.job(p, one_token)) for p in prompts]
        except RequestError as refused:
            raise ApiError(refused.status, str(refused)) from None
        for flight in flights:
            await flight.more(0)
            if flight.lost is not None:
                raise ENGINE_GONE
        tokens = sum(prompt.tokens for prompt in prompts)
        cached = sum(flight.cached_tokens for flight in flights)
        usage = Usage(prompt_tokens=tokens, completion_tokens=0, cached_tokens=cached)
        return _json(
            {
                "id": f"embd-{_request_id(request)}",
                "object": "list",
                "created": int(time.time()),
                "model": self._settings.names[0],
                "data": [
                    {
                        "index": index,
                        "object": "embedding",
                        "embedding": _vector(prompt, as_base64=body.encoding_format == "base64"),
                    }
                    for index, prompt in enumerate(prompts)
                ],
                "usage": usage.openai(),
            }
        )

    async def _tokenize(self, request: Request) -> Response:
        body = read_body(TokenizeBody, await request.body())
        self._serving.check_model(body.model)
        ids = body.ids(self._settings.template).tolist()
        longest = self._settings.max_model_len
        return _json(
            {"count": len(ids), "max_model_len": longest, "tokens": ids, "token_strs": None}
        )

    async def _models(self, request: Request) -> Response:
        models: list[dict[str, object]] = [
            {
                "id": name,
                "object": "model",
                "created": int(time.time()),
                "owned_by": "vllm",
                "root": self._settings.model,
                "parent": None,
                "max_model_len": self._settings.max_model_len,
                "permission": [],
            }
            for name in self._settings.names
        ]
        return _json({"object": "list", "data": models})

    async def _health(self, request: Request) -> Response:
        ill = self._serving.faults.standing(lambda kind: kind is FaultKind.HEALTH)
        if ill is not None:
            return Response(status_code=int(ill.value or 503))
        return Response()

    async def _version(self, request: Request) -> Response:
        return _json({"version": VERSION})

    async def _metrics(self, request: Request) -> Response:
        serving = self._serving
        page = serving.metrics.page(serving.driver.reported)
        fault = serving.faults.standing(lambda kind: kind.startswith("metrics-"))
        if fault is not None:
            if fault.kind is FaultKind.METRICS_STATUS:
                raise set_to_fail(int(fault.value or 500))
            if fault.kind is FaultKind.METRICS_SLOW:
                await asyncio.sleep(fault.value or 0)
            serving.frozen_page = serving.frozen_page or page
            lied, media_type = lie(fault, page, serving.frozen_page)
            return Response(lied, media_type=media_type)
        return Response(page, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _kv_event_sources(self, request: Request) -> Response:
        publisher = self._serving.publisher
        return _json([publisher.source()] if publisher is not None else [])


def _while_draining(prompt: Prompt, reply: Reply, *, stream: bool) -> Response:
    """Return a draining vLLM's answer to a new request, or raise its error."""
    if prompt.given_ids is None:
        raise ApiError(500, _AFTER_SHUTDOWN)
    if stream:
        return Response(DONE, media_type="text/event-stream")
    nothing = Usage(prompt_tokens=prompt.tokens, completion_tokens=0, cached_tokens=0)
    return Response(reply.whole("", "abort", nothing), media_type="application/json")


def _at_once(prompt: Prompt, reply: Reply, text: str, *, stream: bool) -> Response:
    """Return an answer made without the engine."""
    usage = Usage(prompt_tokens=prompt.tokens, completion_tokens=1, cached_tokens=0)
    if not stream:
        return Response(reply.whole(text, "stop", usage), media_type="application/json")
    events = reply.opening(usage) + reply.piece(text, "stop", usage)
    return Response(events + reply.closing(text, "stop", usage), media_type="text/event-stream")


def _request_id(request: Request) -> str:
    return request.headers.get(REQUEST_ID) or uuid.uuid4().hex


def _vector(prompt: Prompt, *, as_base64: bool) -> list[float] | str:
    """Return a unit vector derived from the prompt's tokens."""
    seed = xxhash.xxh3_64_intdigest(prompt.ids().tobytes())
    vector = np.random.default_rng(seed).standard_normal(EMBEDDING_DIMENSIONS)
    unit = (vector / np.linalg.norm(vector)).astype("<f4")
    return base64.b64encode(unit.tobytes()).decode() if as_base64 else unit.tolist()


def _json(value: object) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")


async def _gone(request: Request, error: Exception) -> Response:
    return Response()  # the client disconnected while sending its body, and never receives this


async def _envelope(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    headers = None if error.retry_after is None else {"retry-after": str(error.retry_after)}
    return Response(error.body(), error.status, headers, media_type="application/json")
