"""Count the calls to laar's functions for a typical request, and the moves between packages.

A typical request is a chat of a few KB in the native shape, with ten endpoints, default settings
and an answer that is not sampled, in a fleet whose paces are known. The count runs from the bytes
of Envoy's connection to the bytes sent back, in one process and without sockets, so it is the same
on every machine. The minimum over several requests is used, since some also create a histogram bin
or a table.

    python -m bench road            # counts by package
    python -m bench road --trail    # also every call
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count, pairwise
from pathlib import Path
from types import FrameType
from typing import Any, cast

import orjson
from jh2.config import H2Configuration
from jh2.connection import H2Connection
from jh2.settings import SettingCodes
from jh2.settings import Settings as H2Settings

import laar
from bench.options import parser_for
from laar.core.decision import Decision
from laar.fleet.membership import EndpointSpec
from laar.request import Request
from laar.server.flow_control import Waiting
from laar.server.h2 import H2Server
from laar.server.h2.connection import Connection
from laar.server.ports import picking_server
from laar.server.runner import Runner
from laar.settings import Settings
from laar.wire import ext_proc_pb2 as pb

ENDPOINTS = 10
REQUESTS = 40
WARM_UP = 1
_SOURCES = str(Path(laar.__file__).parent) + "/"
_FILTER = "envoy.filters.http.ext_proc"
_HEADERS = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/envoy.service.ext_proc.v3.ExternalProcessor/Process"),
    (b":authority", b"picker"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
)

Trail = list[tuple[str, str]]
"""Source file and name of each function called."""


class Socket:
    """A transport that discards all data."""

    def write(self, _data: bytes) -> None:
        """Discard the bytes."""

    def close(self) -> None:
        """Fail: the connection must stay open."""
        raise AssertionError("the connection was closed")

    abort = close

    def is_closing(self) -> bool:
        """Return False."""
        return False

    def get_extra_info(self, _name: str) -> None:
        """Return None: there is no TLS."""

    def set_write_buffer_limits(self, high: int) -> None:
        """Ignore the limits."""

    def get_write_buffer_size(self) -> int:
        """Return 0."""
        return 0


def recorded(call: Callable[[], None], trail: Trail) -> None:
    """Make a call, and append the laar functions it runs to the trail."""

    def note(frame: FrameType, event: str, _arg: object) -> None:
        if event == "call":
            code = frame.f_code
            if code.co_filename.startswith(_SOURCES):
                trail.append((code.co_filename.removeprefix(_SOURCES), code.co_qualname))

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)


class _Peer:
    """An Envoy's connection to a picker in this process."""

    def __init__(self, runner: Runner) -> None:
        server = picking_server(runner.processor, 32 << 20)
        assert isinstance(server, H2Server)
        self.connection = Connection(server)
        self.connection.turn_s = math.inf  # the profiler slows calls down
        self.connection.connection_made(cast(asyncio.Transport, Socket()))
        self._h2: Any = H2Connection(H2Configuration(client_side=True))
        envoys = {SettingCodes.HEADER_TABLE_SIZE: 4096, SettingCodes.INITIAL_WINDOW_SIZE: 1 << 24}
        self._h2.local_settings = H2Settings(client=True, initial_values=envoys)
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window((1 << 30) - 65_535)
        self.connection.data_received(self._h2.data_to_send())
        self._stream = 1

    def ask(self, body: pb.ProcessingRequest, served: Callable[[], str]) -> Trail:
        """Send one exchange; return the calls it made."""
        number, trail = self._stream, Trail()
        self._stream += 2
        self._h2.outbound_flow_control_window = 1 << 30
        self._h2.send_headers(number, _HEADERS)
        self._h2.streams[number].outbound_flow_control_window = 1 << 30
        self._send(number, body)
        self._receive(trail)
        self._send(number, _answer(served()))
        self._receive(trail)
        self._h2.reset_stream(number)  # as Envoy ends each stream
        self._receive(trail)
        return trail

    def _send(self, number: int, message: pb.ProcessingRequest) -> None:
        data = message.SerializeToString()
        framed = b"\0" + len(data).to_bytes(4, "big") + data
        for at in range(0, len(framed), 16_384):
            self._h2.send_data(number, framed[at : at + 16_384])

    def _receive(self, trail: Trail) -> None:
        data = self._h2.data_to_send()
        recorded(lambda: self.connection.data_received(data), trail)


def _body(number: int) -> pb.ProcessingRequest:
    chat = {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be careful. " * 100},
            {"role": "user", "content": f"Question {number}: " + "word " * 400},
        ],
    }
    message = pb.ProcessingRequest(
        request_body=pb.HttpBody(body=orjson.dumps(chat), end_of_stream=True)
    )
    message.protocol_config.request_body_mode = pb.ProcessingMode.BUFFERED
    message.metadata_context.SetInParent()
    fields = message.attributes[_FILTER].fields
    fields["xds.route_metadata.filter_metadata.laar.attempts"].string_value = b"3"
    fields["request.path"].string_value = b"/v1/chat/completions"
    fields["request.id"].string_value = b"request-%d" % number
    return message


def _answer(served: str) -> pb.ProcessingRequest:
    message = pb.ProcessingRequest(response_headers=pb.HttpHeaders())
    for name, value in (
        (":status", "200"),
        ("content-type", "application/json"),
        ("content-length", "900"),
        ("date", "Sun, 22 Nov 2026 12:00:00 GMT"),
        ("server", "uvicorn"),
    ):
        message.response_headers.headers.headers.append(
            pb.HeaderValue(key=name, raw_value=value.encode())
        )
    known = message.metadata_context.filter_metadata["envoy.lb"].fields
    known["x-gateway-destination-endpoint-served"].string_value = served.encode()
    fields = message.attributes[_FILTER].fields
    fields["upstream.request_attempt_count"].number_value = 1
    fields["upstream.address"].string_value = served.encode()
    fields["response.code_details"].string_value = b"via_upstream"
    return message


async def usual_request(**sections: object) -> Trail:
    """Return the calls of the cheapest of several typical requests, with these settings."""
    addresses = [f"10.0.0.{number + 1}:8000" for number in range(ENDPOINTS)]
    settings = Settings.model_validate(
        {
            "endpoints": [{"address": address, "models": ["m"]} for address in addresses],
            "bodies": {"sample_answers": 0.0},
            **sections,
        }
    )
    runner = Runner(settings, seed=1)
    specs = [EndpointSpec(address=address, models=("m",)) for address in addresses]
    runner.picker.table.replace("bench", specs)
    runner.picker.director.engines.paces.tries[:ENDPOINTS] = 60.0  # as once their paces are known
    moments = count(1)  # requests 1 ms apart, however slow this process is
    runner.processor.clock = lambda: 0.001 * next(moments)
    chosen: list[str] = []
    ask = runner.processor.ask

    def note(request: Request, now: float) -> Decision | Waiting:
        decision = ask(request, now)
        assert isinstance(decision, Decision)
        chosen.append(decision.address)
        return decision

    runner.processor.ask = note
    peer, best = _Peer(runner), Trail()
    for number in range(REQUESTS):
        trail = peer.ask(_body(number), lambda: chosen[-1])
        if number >= WARM_UP and (not best or len(trail) < len(best)):
            best = trail
    return best


def packages(trail: Trail) -> list[str]:
    """Return the package of each call."""
    return [file.split("/")[0] for file, _ in trail]


def moves(trail: Trail) -> int:
    """Return how often a call is followed by one in another package."""
    return sum(before != after for before, after in pairwise(packages(trail)))


def main(argv: Sequence[str] | None = None) -> int:
    parser = parser_for("road", __doc__)
    parser.add_argument("--trail", action="store_true", help="print each call")
    options = parser.parse_args(argv)
    trail = asyncio.run(usual_request())
    if options.trail:
        for file, name in trail:
            print(f"{file} {name}")
    functions, files = len(set(trail)), len({file for file, _ in trail})
    print(f"{len(trail)} calls of {functions} functions in {files} files; {moves(trail)} moves")
    for name, calls in Counter(packages(trail)).most_common():
        print(f"{calls:5} {name}")
    return 0


if __name__ == "__main__":
    main()
