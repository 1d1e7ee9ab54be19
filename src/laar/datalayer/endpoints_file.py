"""A YAML file of endpoints, reloaded whenever it changes.

The file's status is polled twice a second (see `laar.datalayer.files`). A change is applied once
two polls in a row see the same status, so a half-written file is not mistaken for a shorter list.
An invalid file is reported with the reason and leaves the endpoints unchanged.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from laar.datalayer.document import read_document
from laar.datalayer.files import Settling, Stamp, is_overwritten, read_file, stamp_of
from laar.datalayer.interface import EndpointSink
from laar.datalayer.metrics_page import Engine
from laar.datalayer.visits import until_look_s
from laar.declaring import describe
from laar.errors import SettingError
from laar.faults import Fault
from laar.fleet.membership import PLAIN, EndpointSpec, Way

MAX_ENDPOINTS = 10_000
"""Maximum number of endpoints: twice the size of the largest fleet that laar is tested with."""
MAX_MODEL_NAME_CHARS = 256
MAX_KEY_BYTES = 4096
POLL_S = 0.5
"""Seconds between polls. A change takes effect within two polls, which is soon enough."""
AGAIN_S = 15.0
"""Seconds until unusable files are reread even if unchanged: the process may have lacked file
descriptors, or the error may be in a file whose name is unknown until the others can be read."""

_PORTS = {"http": ":80", "https": ":443"}
_BASE = re.compile(r"/[\w.~%:@!$&'()*+,;=/-]*", re.ASCII)
_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9_-]{1,63}(?<!-))*\.?\Z")


def split_address(address: str) -> tuple[str, int]:
    """Split ``ip:port``, ``[v6]:port`` or ``name:port``; return the host without brackets.

    Raise `ValueError` if the address has a different form; the message says what is wrong.
    """
    scheme, marked, rest = address.partition("://")
    if marked and scheme:
        raise ValueError(f"{address!r}: write host:port without {scheme}://, as {rest.rstrip('/')}")
    host, colon, port_text = address.rpartition(":")
    if not colon:
        raise ValueError(f"{address!r} has no port; write host:port")
    if not (port_text.isascii() and port_text.isdigit() and 0 < int(port_text) < 65536):
        raise ValueError(f"{address!r}: the port must be a number from 1 to 65535")
    if host.startswith("[") and host.endswith("]"):
        return ipaddress.IPv6Address(host[1:-1]).compressed, int(port_text)
    if ":" in host:
        raise ValueError(f"{address!r}: put an IPv6 address in brackets, [::1]:8000")
    if host.replace(".", "").isdigit():
        return str(ipaddress.IPv4Address(host)), int(port_text)
    if len(host) > 253 or not _NAME.match(host):
        raise ValueError(f"{address!r}: the host is neither an IP address nor a DNS name")
    return host, int(port_text)


def dns_name(address: str) -> str:
    """Return the DNS name in a valid address; empty for an IP address."""
    host = address.rpartition(":")[0]
    return "" if host.startswith("[") or host.replace(".", "").isdigit() else host


def join_address(host: str, port: int | str) -> str:
    """Join host and port; the inverse of `split_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_ip(host: str) -> bool:
    """Return whether a host is an IP address, not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(address: str) -> bool:
    """Return whether ``host:port`` can only be reached from this machine."""
    host, _ = split_address(address)
    return host == "localhost" or (is_ip(host) and ipaddress.ip_address(host).is_loopback)


def endpoint_address(address: str) -> str:
    """Normalize an endpoint's address, or its base URL as clients write it.

    Raise `ValueError` if it is neither; the message says what is wrong.
    """
    scheme, marked, rest = address.strip().partition("://")
    if not marked:
        scheme, rest = "", scheme
    elif scheme not in _PORTS:
        raise ValueError(f"{address!r}: write host:port, http://host or https://host")
    host_port, _, path = rest.partition("/")
    if "@" in host_port:  # the message must not repeat a password
        raise ValueError("an address can't contain a user or password; a key belongs in `key_file`")
    if scheme and not re.search(r":\d*\Z", host_port):
        host_port += _PORTS[scheme]
    base = f"/{path.rstrip('/')}"
    if not _BASE.fullmatch(base):
        raise ValueError(f"{address!r}: the path after the port must not have a query or spaces")
    found = join_address(*split_address(host_port))
    base = "" if base in ("/", PLAIN.base) else base
    return f"https://{found}{base}" if scheme == "https" else f"{found}{base}"


def _http_url(url: str) -> str:
    if url and not re.match(r"https?://[^/\s]+", url):
        raise ValueError(f"{url!r} is not an http or https URL, such as http://127.0.0.1:8001")
    return url


HttpUrl = Annotated[str, AfterValidator(_http_url)]
"""An http or https URL, or an empty string."""


def check_model_name(name: str) -> str:
    """Return the name if it can be sent in headers and in comma-separated lists.

    Raise `ValueError` if the name is invalid; the message says why.
    """
    if not name.isprintable() or "," in name or name != name.strip():
        raise ValueError(
            f"{name[:40]!r}: model names are sent in headers, so they can't contain commas, "
            "surrounding spaces or control characters"
        )
    if not 0 < len(name) <= MAX_MODEL_NAME_CHARS:
        raise ValueError(f"a model name has 1 to {MAX_MODEL_NAME_CHARS} characters")
    return name


ModelName = Annotated[str, AfterValidator(check_model_name)]


class Endpoint(BaseModel):
    """One endpoint, as written in a file."""

    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra=describe)

    address: Annotated[str, AfterValidator(endpoint_address)]
    """Address as ``ip:port``, ``[v6]:port`` or ``name:port``, or the base URL that an OpenAI client
    would use, such as ``https://name/openai/v1``. Each IP address of a name is an endpoint."""
    ca_file: Path | None = None
    """PEM file with the CAs that verify the certificate of an https address. Envoy needs it too
    (`laar envoy --endpoint-ca`). None: the system's CAs."""
    sni: Annotated[str, Field(max_length=253)] = ""
    """Name sent as host, and over https as SNI, which is also the name in the certificate. Default:
    the name in the address."""
    key_file: Path | None = None
    """File with the engine's API key, reloaded when it changes. Requests carry it in place of the
    client's."""
    model: ModelName | None = None
    """Model that the endpoint serves. Use `models` if it serves several names."""
    models: tuple[ModelName, ...] = Field(default=(), max_length=256)
    """All model names that the endpoint serves. Accuracy and latency are looked up by the first."""
    region: str = ""
    """Region, shown on the page and in records. KV caches are only sent within a region."""
    engine: Engine = "vllm"
    """Engine, which determines the metric names on the endpoint's page."""
    metrics_url: HttpUrl | None = None
    """URL of the metrics page. Default: the engine's own, ``/metrics`` at the address, or
    ``/prometheus/metrics`` for tensorrt-llm. Empty: no page is read."""
    labels: dict[str, str] = {}
    """Labels of the endpoint; laar reads `llm-d.ai/role` and some that begin with `laar.dev/`."""
    priority_field: bool = False
    """Whether laar sends a priority with requests that name an objective, or with all if flow
    control is on. Start vLLM with ``--scheduling-policy priority``, SGLang as its guide says."""
    max_model_len: Annotated[int, Field(ge=1)] | None = None
    """Maximum number of tokens of prompt plus answer, as configured in the engine. None: the value
    that the engine lists at `/v1/models`, or no limit if it lists none."""

    @model_validator(mode="after")
    def _one_way_to_name_models(self) -> Endpoint:
        if (self.model is None) == (not self.models):
            raise ValueError("needs `model: name`, or `models: [name, ...]`, and not both")
        if not self.address.startswith("https://"):
            if self.ca_file:
                raise ValueError("`ca_file` requires an address with https://")
        elif not (self.ca_file or self.sni or dns_name(self.host_port)):
            raise ValueError("an https address without a name needs `sni`, or its own `ca_file`")
        return self

    @property
    def host_port(self) -> str:
        """Address without scheme and base path."""
        return self.address.removeprefix("https://").partition("/")[0]

    def way(self) -> Way:
        """Return how to reach the endpoint.

        Raise `SettingError` if `ca_file` or `key_file` can't be read.
        """
        _, slash, path = self.address.removeprefix("https://").partition("/")
        if self.ca_file is not None and not self.ca_file.is_file():
            raise SettingError(f"{self.ca_file} is not a file (ca_file of {self.address})")
        way = Way(
            base=slash + path or PLAIN.base,
            tls=self.address.startswith("https://"),
            ca_file=str(self.ca_file.absolute()) if self.ca_file is not None else "",
            name=self.sni,
            key=_key(self.key_file) if self.key_file is not None else "",
        )
        return PLAIN if way == PLAIN else way

    def spec(self) -> EndpointSpec:
        """Return the endpoint as a spec for the table; the address may still be a DNS name.

        Raises:
            SettingError: as in `way`.
        """
        return EndpointSpec(
            address=self.host_port,
            way=self.way(),
            models=self.models or (self.model or "",),
            region=self.region,
            engine=self.engine,
            metrics_url=self.metrics_url,
            labels=self.labels,
            priority_field=self.priority_field,
            max_model_len=self.max_model_len,
        )


def _addresses_differ(endpoints: tuple[Endpoint, ...]) -> tuple[Endpoint, ...]:
    first: dict[str, int] = {}
    for index, endpoint in enumerate(endpoints):
        if first.setdefault(endpoint.host_port, index) != index:
            raise ValueError(
                f"[{index}] has the same address as [{first[endpoint.host_port]}] "
                f"({endpoint.host_port}); keep one entry that lists all `models`"
            )
    return endpoints


Endpoints = Annotated[tuple[Endpoint, ...], AfterValidator(_addresses_differ)]
"""Endpoints as listed in a file."""


class EndpointsDocument(BaseModel):
    """The content of an endpoints file."""

    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra=describe)

    endpoints: Endpoints = Field(max_length=MAX_ENDPOINTS)
    """May be empty, as for a fleet scaled to zero."""


def load_endpoints(path: Path) -> tuple[EndpointSpec, ...]:
    """Read an endpoints file; addresses may still be DNS names.

    Raise `SettingError` with a line per error: file, line, key and fix.
    """
    return _specs(path, read_document(path, EndpointsDocument))


def _specs(path: Path, document: EndpointsDocument) -> tuple[EndpointSpec, ...]:
    try:
        return tuple(endpoint.spec() for endpoint in document.endpoints)
    except SettingError as fault:
        raise SettingError(f"{path}: {fault}") from None


def _key(path: Path) -> str:
    """Read an engine's key; raise `SettingError` if the file can't be read, or has no valid key."""
    try:
        key = read_file(path, MAX_KEY_BYTES).decode("ascii", "replace").strip()
    except OSError as error:
        raise SettingError(f"key_file {path}: can't be read: {error.strerror}") from None
    if not re.fullmatch("[!-~]+", key):
        raise SettingError(f"key_file {path} has no key: a key is one line of printable ASCII")
    return key


class EndpointsFile:
    """A collector that reports the file's endpoints at the start and after each change.

    Args:
        sink: receives the endpoints; usually a `Resolver`, since addresses may be DNS names.
    """

    def __init__(self, path: Path, sink: EndpointSink) -> None:
        self.source = f"file {path}"
        self._path = path
        self._sink = sink
        self._files: Sequence[Path] = ()  # the files that it names
        self._loaded: Sequence[Stamp] | None = None  # None: not loaded yet

    def load(self) -> None:
        """Read the file now, so that startup fails immediately if it is invalid.

        Raises:
            SettingError: as in `load_endpoints`.
        """
        self._loaded = self._stamps()
        self._sink.replace(self.source, self._read())

    async def run(self) -> None:
        """Watch the file until cancelled."""
        loop = asyncio.get_running_loop()
        settling, tried_at, is_read = Settling(self._loaded), loop.time(), True
        while True:
            stamp = await asyncio.to_thread(self._stamps)
            again = not is_read and loop.time() - tried_at >= AGAIN_S
            if settling.is_due(stamp, self._loaded, loop.time()) or again:
                is_read = await self._reload()
                self._loaded, tried_at = stamp, loop.time()
            await asyncio.sleep(until_look_s(POLL_S))

    def _stamps(self) -> list[Stamp]:
        return [stamp_of(path) for path in (self._path, *self._files)]

    def _read(self) -> Sequence[EndpointSpec]:
        stamp = stamp_of(self._path)
        document = read_document(self._path, EndpointsDocument)
        if is_overwritten(stamp, stamp_of(self._path)):
            raise SettingError(f"{self._path} was written to while it was read")
        files = {file for each in document.endpoints for file in (each.key_file, each.ca_file)}
        self._files = sorted(file for file in files if file is not None)
        return _specs(self._path, document)

    async def _reload(self) -> bool:
        """Reread the file; return whether it can be used."""
        try:
            specs = await asyncio.to_thread(self._read)
        except (SettingError, OSError) as error:  # such as a directory that can't be entered
            problem = f"the endpoints stay as they were: {error}"
            self._sink.problem(Fault.FILE, problem, str(self._path))
            return False
        self._sink.replace(self.source, specs)
        self._sink.problem(Fault.FILE, None, str(self._path))
        return True
