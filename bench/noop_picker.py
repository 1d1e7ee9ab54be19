"""A minimal endpoint picker, as the baseline for laar's CPU.

It parses each body with orjson and sends every request to the same endpoints, in both body modes.
It has no state, policy or metrics, and its answers are prebuilt, so it costs only gRPC and JSON
parsing.

    python -m bench.noop_picker --port 9002 --endpoint 127.0.0.1:8000
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

import grpc
import orjson
import uvloop
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from laar.protocol.agreed import PICKING_SERVICE
from laar.wire import ext_proc_pb2 as ext_proc

DESTINATION = "x-gateway-destination-endpoint"
_CHUNK_BYTES = 62_000  # some Envoys refuse a streamed chunk of more than 64 KiB
_MAX_MESSAGE_BYTES = 64 * 1024 * 1024

Observer = Callable[[ext_proc.ProcessingRequest], None]


class NoopPicker:
    """Answer every ext_proc stream with the same endpoints.

    Args:
        endpoints: ``ip:port``, or several, comma-separated, best first.
        sample: in native mode, also request the chunks of the response body.
        observe: called with every message; for tests.
    """

    def __init__(
        self, endpoints: str, *, sample: bool = False, observe: Observer | None = None
    ) -> None:
        destination = ext_proc.HeaderValue(key=DESTINATION, raw_value=endpoints.encode())
        pick = ext_proc.CommonResponse(
            header_mutation=ext_proc.HeaderMutation(
                set_headers=[ext_proc.HeaderValueOption(header=destination)]
            )
        )
        response = ext_proc.ProcessingResponse
        self._pick_at_headers = response(request_headers={"response": pick})
        self._pick_at_body = response(request_body={"response": pick})
        for answer in (self._pick_at_headers, self._pick_at_body):
            known = answer.dynamic_metadata.fields["envoy.lb"].struct_value
            known.fields[DESTINATION].string_value = endpoints.encode()
        self._pick_for_upgrade = response()
        self._pick_for_upgrade.CopyFrom(self._pick_at_headers)
        # The body of an upgraded connection never ends, so do not wait for it.
        self._pick_for_upgrade.mode_override.request_header_mode = ext_proc.ProcessingMode.SEND
        self._continue = {
            "request_headers": response(request_headers={}),
            "request_trailers": response(request_trailers={}),
            "response_headers": response(response_headers={}),
            "response_body": response(response_body={}),
            "response_trailers": response(response_trailers={}),
        }
        if sample:  # in the reply to the first headers, which may be the response's
            for phase in ("request_headers", "response_headers"):
                self._continue[phase].mode_override.MergeFrom(
                    ext_proc.ProcessingMode(
                        request_body_mode=ext_proc.ProcessingMode.BUFFERED,
                        response_body_mode=ext_proc.ProcessingMode.STREAMED,
                    )
                )
        self._observe = observe

    async def process(self, _: object, context: grpc.aio.ServicerContext) -> None:
        """Handle one HTTP exchange."""
        held: list[bytes] | None = None  # the request body in full duplex, until it is complete
        full_duplex = False
        while (message := await context.read()) is not grpc.aio.EOF:
            if self._observe is not None:
                self._observe(message)
            phase = message.WhichOneof("request")
            if phase == "request_headers":
                mode = message.protocol_config.request_body_mode
                full_duplex = mode == ext_proc.ProcessingMode.FULL_DUPLEX_STREAMED
                if message.request_headers.end_of_stream or mode == ext_proc.ProcessingMode.NONE:
                    answers = [self._pick_at_headers]
                elif _is_upgrade(message.request_headers):
                    answers = [self._pick_for_upgrade]
                elif full_duplex:
                    held, answers = [], []
                else:
                    answers = [self._continue[phase]]
            elif not full_duplex:
                if phase == "request_body":
                    orjson.loads(message.request_body.body)
                    answers = [self._pick_at_body]
                else:
                    answers = [self._continue[phase]]
            elif phase == "request_body" and held is not None:
                held.append(message.request_body.body)
                answers = []
                if message.request_body.end_of_stream:
                    answers, held = list(self._release(held, end_of_stream=True)), None
            elif phase == "request_trailers" and held is not None:  # trailers end the body
                answers = [*self._release(held, end_of_stream=False), self._continue[phase]]
                held = None
            elif phase in ("request_body", "response_body"):
                body = getattr(message, phase)
                answers = list(_echo(phase, body.body, end_of_stream=body.end_of_stream))
            else:
                answers = [self._continue[phase]]
            for answer in answers:
                await context.write(answer)

    def _release(
        self, held: list[bytes], *, end_of_stream: bool
    ) -> Iterator[ext_proc.ProcessingResponse]:
        body = b"".join(held)
        orjson.loads(body)
        yield self._pick_at_headers
        yield from _echo("request_body", body, end_of_stream=end_of_stream)


def _is_upgrade(headers: ext_proc.HttpHeaders) -> bool:
    return any(header.key == "upgrade" for header in headers.headers.headers)


def _echo(phase: str, body: bytes, *, end_of_stream: bool) -> Iterator[ext_proc.ProcessingResponse]:
    for start in range(0, len(body) or 1, _CHUNK_BYTES):
        piece = ext_proc.StreamedBodyResponse(
            body=body[start : start + _CHUNK_BYTES],
            end_of_stream=end_of_stream and start + _CHUNK_BYTES >= len(body),
        )
        mutation = ext_proc.BodyMutation(streamed_response=piece)
        yield ext_proc.ProcessingResponse(**{phase: {"response": {"body_mutation": mutation}}})


async def start(
    picker: NoopPicker,
    port: int,
    credentials: grpc.ServerCredentials | None = None,
) -> grpc.aio.Server:
    """Serve on loopback, with TLS if there are credentials, and with laar's health service."""
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
            ("grpc.so_reuseport", 0),
        ]
    )
    handler = grpc.stream_stream_rpc_method_handler(
        picker.process,
        request_deserializer=ext_proc.ProcessingRequest.FromString,
        response_serializer=ext_proc.ProcessingResponse.SerializeToString,
    )
    service = "envoy.service.ext_proc.v3.ExternalProcessor"
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(service, {"Process": handler})]
    )
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    await servicer.set(PICKING_SERVICE, health_pb2.HealthCheckResponse.SERVING)
    address = f"127.0.0.1:{port}"
    if credentials is None:
        server.add_insecure_port(address)
    else:
        server.add_secure_port(address, credentials)
    await server.start()
    return server


async def _serve(endpoints: str, port: int) -> None:
    server = await start(NoopPicker(endpoints), port)
    await server.wait_for_termination()


def main() -> None:
    parser = argparse.ArgumentParser(description="The no-op endpoint picker.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--endpoint", required=True, help="ip:port; several: comma-separated")
    told = parser.parse_args()
    uvloop.run(_serve(told.endpoint, told.port))


if __name__ == "__main__":
    main()
