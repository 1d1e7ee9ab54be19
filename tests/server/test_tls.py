"""TLS on the ext_proc port, tested with gRPC, Python's TLS and a real Envoy."""

import asyncio
import contextlib
import errno
import ipaddress
import re
import socket
import ssl
from datetime import UTC, datetime, timedelta

import grpc
import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from grpc_health.v1 import health_pb2, health_pb2_grpc

from laar.errors import SettingError
from laar.faults import Fault
from laar.server.admin.metrics import metrics_page
from laar.server.checking import faults
from laar.settings import Loaded, Settings
from laar.wire import ext_proc_pb2 as pb
from laar_lab.live.processes import laar_process
from support import eventually, free_port, port_of
from support.authority import signed, write_pair

SERVING = health_pb2.HealthCheckResponse.SERVING


def make_pair(directory, name, *, days=1, begins_s=-1e6, weak=False):
    """Make a self-signed certificate for 127.0.0.1; return its paths by setting."""
    key = rsa.generate_private_key(65537, 1024) if weak else ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    begins, ends = now + timedelta(seconds=begins_s), now + timedelta(days=days)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    ca = x509.BasicConstraints(ca=True, path_length=None)
    certificate = signed(name, key, name, key, begins, ends, (address, False), (ca, True))
    return write_pair(directory / f"{name}.pem", certificate, key)


def put(directory, pair):
    """Copy a pair to the picker's paths, one file after the other, as a renewal does."""
    settings = {"cert_file": directory / "tls.crt", "key_file": directory / "tls.key"}
    for path, source in zip(settings.values(), pair, strict=True):
        path.with_suffix(".new").write_bytes(source.read_bytes())
        path.with_suffix(".new").replace(path)
    return {name: str(path) for name, path in settings.items()}


async def picker(gateway, **tls):
    gateway.members(("10.9.0.1:80", "m"))
    return await gateway.picker(listen={"tls": tls})


async def shown(gateway):
    """Return the port's certificate, as PEM; assert that HTTP/2 is negotiated."""
    host, port = gateway.settings.listen.ext_proc.split(":")

    def shake_hands():
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        with (
            socket.create_connection((host, int(port)), timeout=10) as plain,
            context.wrap_socket(plain) as connection,
        ):
            assert connection.selected_alpn_protocol() == "h2"
            return ssl.DER_cert_to_PEM_cert(connection.getpeercert(binary_form=True)).encode()

    return await asyncio.to_thread(shake_hands)


async def is_healthy(gateway, credentials):
    async with grpc.aio.secure_channel(gateway.settings.listen.ext_proc, credentials) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service="readiness")
        return (await stub.Check(request, timeout=10)).status == SERVING


async def test_a_self_signed_certificate_encrypts_and_health_stays_plain(gateway):
    runner = await picker(gateway, self_signed=True)
    certificate = x509.load_pem_x509_certificate(await shown(gateway))
    assert certificate.not_valid_after_utc > datetime.now(UTC) + timedelta(days=3000)
    with pytest.raises(grpc.aio.AioRpcError):
        # Signed by none of the system's CAs.
        await is_healthy(gateway, grpc.ssl_channel_credentials())
    async with grpc.aio.insecure_channel(gateway.settings.listen.health) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        assert (await stub.Check(health_pb2.HealthCheckRequest())).status == SERVING
    [told] = re.findall(
        rb"\nlaar_certificate_expires_timestamp_seconds (.*)", metrics_page(runner.picker)
    )
    assert float(told) == certificate.not_valid_after_utc.timestamp()


async def test_a_renewed_certificate_is_used_and_open_streams_are_kept(gateway, tmp_path):
    old, new = make_pair(tmp_path, "old"), make_pair(tmp_path, "new")
    await picker(gateway, **put(tmp_path, old))
    credentials = grpc.ssl_channel_credentials(old[0].read_bytes())
    async with grpc.aio.secure_channel(gateway.settings.listen.ext_proc, credentials) as channel:
        call = channel.stream_stream(
            "/envoy.service.ext_proc.v3.ExternalProcessor/Process",
            request_serializer=pb.ProcessingRequest.SerializeToString,
            response_deserializer=pb.ProcessingResponse.FromString,
        )()
        headers = pb.ProcessingRequest(request_headers=pb.HttpHeaders(end_of_stream=False))
        # ProcessingMode.BUFFERED, so that the headers get an answer.
        headers.protocol_config.request_body_mode = 2
        await call.write(headers)
        assert (await call.read()).HasField("request_headers")
        put(tmp_path, new)

        async def renewed():
            return await shown(gateway) == new[0].read_bytes()

        await eventually(renewed, what="the new certificate")
        body = pb.HttpBody(body=b'{"model":"m","messages":[{"content":"x"}]}', end_of_stream=True)
        await call.write(pb.ProcessingRequest(request_body=body))
        assert (await call.read()).WhichOneof("response")
        await call.done_writing()
    assert await is_healthy(gateway, grpc.ssl_channel_credentials(new[0].read_bytes()))


async def test_a_renewed_certificate_is_used_even_if_that_fails_at_first(
    gateway, tmp_path, monkeypatch
):
    """For example, while a flood of connections takes all file descriptors."""
    monkeypatch.setattr("laar.server.tasks.RESTART_S", 0.1)
    before, renewed = make_pair(tmp_path, "before"), make_pair(tmp_path, "renewed")
    runner = await picker(gateway, **put(tmp_path, before))
    dup, failed = socket.socket.dup, []

    def fail_once(self):
        if not failed:
            failed.append(self)
            raise OSError(errno.EMFILE, "too many open files")
        return dup(self)

    monkeypatch.setattr(socket.socket, "dup", fail_once)
    put(tmp_path, renewed)
    await eventually(lambda: bool(failed), what="the failure")

    async def used():
        return await shown(gateway) == renewed[0].read_bytes()

    await eventually(used, what="the renewed certificate")
    await eventually(lambda: "tls" not in runner.picker.problems, what="the end of the problem")


@pytest.mark.parametrize("begins", ["valid", "expired"])
async def test_an_expired_certificate_is_reported_and_never_replaces_a_valid_one(
    gateway, tmp_path, begins
):
    pairs = {
        name: make_pair(tmp_path, name, days=days) for name, days in (("valid", 1), ("expired", -1))
    }
    runner = await picker(gateway, **put(tmp_path, pairs[begins]))
    put(tmp_path, pairs["expired"])
    await eventually(lambda: "expired on" in runner.picker.problems.get("tls", ""), what="it")
    assert await shown(gateway) == pairs[begins][0].read_bytes()
    put(tmp_path, pairs["valid"])
    await eventually(lambda: "tls" not in runner.picker.problems, what="the end of the problem")
    assert await is_healthy(gateway, grpc.ssl_channel_credentials(pairs["valid"][0].read_bytes()))


async def test_a_ca_file_may_have_comments_in_any_language(gateway, tmp_path):
    server, client = make_pair(tmp_path, "server"), make_pair(tmp_path, "client")
    authority = tmp_path / "ca.pem"
    authority.write_bytes("# O=Müller GmbH\n".encode() + client[0].read_bytes())
    await picker(gateway, **put(tmp_path, server), client_ca_file=str(authority))
    credentials = grpc.ssl_channel_credentials(
        server[0].read_bytes(), client[1].read_bytes(), client[0].read_bytes()
    )
    assert await is_healthy(gateway, credentials)


async def test_with_a_client_ca_callers_without_a_certificate_are_refused(gateway, tmp_path):
    server, client, other = (make_pair(tmp_path, name) for name in ("server", "client", "other"))
    await picker(gateway, **put(tmp_path, server), client_ca_file=str(client[0]))
    ca = server[0].read_bytes()

    def presenting(pair):
        return grpc.ssl_channel_credentials(ca, pair[1].read_bytes(), pair[0].read_bytes())

    assert await is_healthy(gateway, presenting(client))
    for refused in (grpc.ssl_channel_credentials(ca), presenting(other)):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await is_healthy(gateway, refused)
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    client[0].write_bytes(other[0].read_bytes())  # the CA file is reloaded, too

    async def accepted():
        try:
            return await is_healthy(gateway, presenting(other))
        except grpc.aio.AioRpcError:
            return False

    await eventually(accepted, what="the new authority")


@pytest.mark.parametrize(
    ("alpn", "presents", "encrypted", "said"),
    [
        ("h2", None, True, "PEER_DID_NOT_RETURN_A_CERTIFICATE"),
        ("h2", "other", True, "CERTIFICATE_VERIFY_FAILED"),
        ("h2", None, False, "HTTP_REQUEST|WRONG_VERSION_NUMBER"),
        ("http/1.1", "client", True, "ALPN"),
    ],
)
async def test_the_reason_why_a_caller_was_refused_is_logged(
    gateway, tmp_path, caplog, alpn, presents, encrypted, said
):
    pairs = {name: make_pair(tmp_path, name) for name in ("server", "client", "other")}
    runner = await picker(
        gateway, **put(tmp_path, pairs["server"]), client_ca_file=str(pairs["client"][0])
    )
    context = ssl.create_default_context(cafile=pairs["server"][0])
    context.set_alpn_protocols([alpn])
    if presents:
        context.load_cert_chain(*pairs[presents])
    with contextlib.suppress(OSError):
        _, writer = await asyncio.open_connection(
            "127.0.0.1", port_of(runner, "ext_proc"), ssl=context if encrypted else None
        )
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        await eventually(lambda: re.search(said, caplog.text) is not None, what="the reason")
        writer.close()
        await writer.wait_closed()
    assert re.search(f"connection to the ext_proc port was closed: .*({said})", caplog.text)


async def test_laar_serve_supports_certificates_on_both_sides(tmp_path):
    """Run a separate process with uvloop's event loop; the other tests use Python's."""
    own, client, renewed = (make_pair(tmp_path, name) for name in ("own", "client", "renewed"))
    ports = {name: free_port() for name in ("ext_proc", "health", "admin")}
    document = {
        "endpoints": [{"address": "127.0.0.1:1", "models": ["m"]}],
        "listen": {
            "tls": {**put(tmp_path, own), "client_ca_file": str(client[0])},
            **{name: f"127.0.0.1:{port}" for name, port in ports.items()},
        },
    }
    settings = tmp_path / "laar.yaml"
    settings.write_text(yaml.safe_dump(document))

    async def accepts(authority, presented, wait_s=5):
        ca = authority[0].read_bytes()
        pair = presented[1].read_bytes(), presented[0].read_bytes()
        credentials = grpc.ssl_channel_credentials(ca, *pair)
        async with grpc.aio.secure_channel(document["listen"]["ext_proc"], credentials) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            try:
                await stub.Check(health_pb2.HealthCheckRequest(service="liveness"), timeout=wait_s)
            except grpc.aio.AioRpcError:
                return False
            return True

    async with laar_process(("serve", "-c", str(settings)), tmp_path / "laar.log"):
        await eventually(lambda: accepts(own, client), what="the start", timeout_s=60)
        assert not await accepts(own, own, wait_s=1)
        put(tmp_path, renewed)
        await eventually(lambda: accepts(renewed, client), what="the new certificate", timeout_s=60)


def test_certificate_errors_give_the_file_and_the_remedy(tmp_path):
    one, other = make_pair(tmp_path, "one"), make_pair(tmp_path, "other")
    expired = make_pair(tmp_path, "expired", days=-1)
    garbage = tmp_path / "garbage.pem"
    garbage.write_bytes(b"\x00-----BEGIN CERTIFICATE-----\n????\n")
    curve = tmp_path / "curve.pem"
    der = ssl.PEM_cert_to_DER_cert(one[0].read_text())
    der = der.replace(b"\x2a\x86\x48\xce\x3d\x03\x01\x07", b"\x2a\x86\x48\xce\x3d\x03\x01\x7f")
    curve.write_text(ssl.DER_cert_to_PEM_cert(der))
    names = ("cert_file", "key_file", "client_ca_file")
    for files, said in (
        (one, None),
        (expired, r"tls\.cert_file: .*expired\.pem expired on"),
        (make_pair(tmp_path, "weak", weak=True), r"listen\.tls: OpenSSL rejects .*weak"),
        ((one[0], other[1]), r"is not the key of .*one\.pem"),
        ((garbage, one[1]), r"tls\.cert_file: .*garbage.* not a usable"),
        ((one[0], garbage), r"tls\.key_file: .*garbage.* not a usable"),
        ((curve, one[1]), r"curve\.pem is not a usable"),
        ((one[0], tmp_path / "none"), r"tls\.key_file: can't read .*none"),
        ((*one, garbage), r"tls\.client_ca_file: .*garbage.* not a usable"),
    ):
        listen = {"tls": dict(zip(names, map(str, files), strict=False))}
        endpoints = [{"address": "127.0.0.1:1", "model": "m"}]
        made = Settings.model_validate({"endpoints": endpoints, "listen": listen})
        found = faults(Loaded(settings=made), ports=False)
        assert bool(found) == bool(said), found
        assert all(re.search(said, each) and Fault.TLS.fix in each for each in found), found


@pytest.mark.parametrize(
    ("tls", "said"),
    [
        ({}, "self_signed"),
        ({"cert_file": "a.pem"}, "belong together"),
        ({"cert_file": "a.pem", "key_file": "a.key", "self_signed": True}, "or `self_signed"),
    ],
)
async def test_settings_need_exactly_one_certificate(gateway, tls, said):
    with pytest.raises(SettingError, match=said):
        await picker(gateway, **tls)
