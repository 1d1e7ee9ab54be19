"""Write the file from which Envoy reads the endpoints (EDS).

Envoy watches the file's directory and reads the file when another file is renamed to it, so the
list is written under a temporary name first, and Envoy never sees a partial list. The bytes depend
only on the set of endpoints, and nothing is written if they are unchanged: a collector may call
`write_eds` on every event.

A single invalid entry makes Envoy reject the whole file and keep its old list, so addresses are
validated here. EDS does not resolve names: hosts are IP addresses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import orjson
import xxhash

from laar.datalayer.endpoints_file import is_ip, split_address
from laar.datalayer.files import replace_file
from laar.errors import SettingError
from laar.faults import Fault
from laar.fleet.membership import EndpointSpec
from laar.latest import Latest
from laar.protocol.agreed import ALIKE_KEY, LB_NAMESPACE, NAME_KEY
from laar.protocol.paths import HEALTH_PATHS

if TYPE_CHECKING:
    from laar.telemetry.problems import Problems

ENVOY_LEARNS_S = 0.5
"""Seconds after the rename until Envoy is assumed to have read the file: it takes about 10 ms, more
on a busy machine."""
WRITE_AGAIN_S = 1.0

ENDPOINTS_CLUSTER = "laar-endpoints"
"""Name of the cluster, which must be the same in the file and in the bootstrap."""

METADATA_NAMESPACE = "laar"
MAX_NAMES = 1000
"""Maximum number of names by which Envoy chooses itself: each takes 10 to 40 kB in each worker."""
_KEPT_IN_PATHS = ("", "/", "/!$&'()*+,:;=@")
"""Characters besides letters, digits and ``-._~`` that clients may not encode in a path."""
TLS_NAMESPACE = "envoy.transport_socket_match"

_ASSIGNMENT = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"


class EnvoyFile:
    """Writes the endpoints file of a running picker, and tracks which endpoints Envoy knows."""

    def __init__(self, path: Path, problems: Problems) -> None:
        self._path = path
        self._is_first = True
        self._problems = problems
        self._listed: Mapping[str, EndpointSpec] = {}
        self._models = Latest[str, None](MAX_NAMES)
        self.known: frozenset[str] = frozenset()
        """Addresses that Envoy knows."""
        self.again_s: float | None = None
        """Seconds until the file must be rewritten, since endpoints were removed or writing failed
        (full disk, directory mounted late); None if it need not be."""

    async def write(self, wanted: Mapping[str, EndpointSpec]) -> bool:
        """Write the endpoints, by address; return whether Envoy knows them.

        Removed endpoints stay listed for at least `ENVOY_LEARNS_S`, since requests that were sent
        to them may not have arrived yet.
        """
        known = self.known
        listed = wanted if wanted.keys() == known else {**self._listed, **wanted}
        self.known &= wanted.keys()  # an endpoint that is removed and returns meanwhile is new
        fault = None
        specs, keeps = list(listed.values()), not self._listed
        if self._is_first:
            self._models.update(_models_in(self._path))
        self._models.update({spec.models[0]: None for spec in specs})
        expected = frozenset(self._models)
        try:  # in a thread, since thousands of endpoints take tens of milliseconds
            await asyncio.to_thread(
                write_eds, self._path, specs, keeps_others=keeps, expected=expected
            )
        except OSError as error:
            fault = (
                f"envoy.eds_file {self._path} cannot be written ({error.strerror}); Envoy keeps "
                "the endpoints it has"
            )
        self._problems.report(Fault.EDS, fault)
        left_s = ENVOY_LEARNS_S if len(listed) > len(wanted) else None
        self.again_s = left_s if fault is None else WRITE_AGAIN_S
        if fault is not None:
            self.known = known
            return False
        if not self._is_first and not known.issuperset(wanted):
            # Requests may be waiting for a new endpoint, even if the fleet was empty.
            await asyncio.sleep(ENVOY_LEARNS_S)
            listed = wanted  # the next write drops what was removed before this one
        self._is_first, self._listed, self.known = False, listed, frozenset(wanted)
        return True


def write_eds(
    path: Path,
    specs: Sequence[EndpointSpec],
    *,
    keeps_others: bool = False,
    expected: Set[str] = frozenset(),
) -> None:
    """Write exactly these endpoints to ``path``, unless the file has this content already.

    Envoy alone sends no request to just any endpoint if a model in `expected` has none at present.

    Creates the directory. Several processes may write one file; the last wins. With `keeps_others`,
    an empty list does not replace a file: a starting picker has no endpoints until its cluster's
    first list or the first DNS answer, and until then Envoy uses the file of the previous picker.
    Raise `SettingError` if an address is a hostname, not an IP address, and `OSError` if the file
    can't be written; the old content stays.
    """
    if keeps_others and not specs and path.is_file():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    content = _discovery_response(specs, expected)
    if not path.is_file() or path.read_bytes() != content:
        replace_file(path, content, mode=0o666)


def _discovery_response(specs: Sequence[EndpointSpec], expected: Set[str]) -> bytes:
    entries = {split_address(spec.address): spec for spec in specs}
    names = _labels([spec for spec in entries.values() if spec.takes_requests], expected)
    resource = {
        "@type": _ASSIGNMENT,
        "cluster_name": ENDPOINTS_CLUSTER,
        "endpoints": [
            {"lb_endpoints": [_lb_endpoint(*key, entries[key], names) for key in sorted(entries)]}
        ],
    }
    version = xxhash.xxh64_hexdigest(orjson.dumps(resource, option=orjson.OPT_SORT_KEYS))
    return orjson.dumps(
        {"version_info": version, "resources": [resource]},
        option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE,
    )


def are_alike(names: Iterable[Iterable[str]]) -> bool:
    """Return whether all endpoints accept the same names, so that any can replace any other."""
    return len(set(map(frozenset, names))) <= 1


def without_picker(names: Sequence[Set[str]], aliases: Iterable[str] = ()) -> str:
    """Describe what Envoy does while no picker decides.

    Args:
        names: the names that each endpoint accepts.
        aliases: names that the picker resolves.
    """
    unknown = sorted(set(aliases).difference(*names))
    if are_alike(names):
        text = "fails open: while no picker decides, any endpoint gets any request"
        return text + (f", but none lists {', '.join(unknown)} (vLLM: 404)" if unknown else "")
    others = ", ".join([*unknown, "forms"])
    return (
        "fails open within each model: while no picker decides, only endpoints that accept a "
        f"request's model get it; if Envoy can't know any ({others}), it answers 503"
    )


def _labels(specs: Sequence[EndpointSpec], expected: Set[str]) -> Set[str] | None:
    """Return the names by which Envoy chooses an endpoint; None if any will do.

    Models come before adapters.
    """
    names = sorted({(name != s.models[0], name) for s in specs for name in (*s.models, *s.aliases)})
    alike = are_alike((*spec.models, *spec.aliases) for spec in specs)
    if alike and expected <= {name for _, name in names}:
        return None
    return {name for _, name in names[:MAX_NAMES]}


def _lb_endpoint(
    host: str, port: int, spec: EndpointSpec, names: Set[str] | None
) -> dict[str, object]:
    if not is_ip(host):
        raise SettingError(
            f"endpoint {host!r}: Envoy's endpoints file needs IP addresses, not names; "
            "resolve the name first"
        )
    address = {"address": host, "port_value": port}
    reached: dict[str, object] = {"address": {"socket_address": address}}
    # The access log shows the model.
    metadata: dict[str, object] = {METADATA_NAMESPACE: {"model": spec.models[0]}}
    if spec.takes_requests:
        # Envoy compares the name in a path as the client encodes it.
        plain = [name for name in (*spec.models, *spec.aliases) if name in (names or ())]
        encoded = (quote(name, kept) for name in plain for kept in _KEPT_IN_PATHS)
        # Paths that any endpoint may serve are listed like names of models.
        accepted = dict.fromkeys(("", *HEALTH_PATHS, *plain, *encoded))
        metadata[LB_NAMESPACE] = {NAME_KEY: [*accepted], ALIKE_KEY: names is None}
    if spec.way.name:
        reached["hostname"] = spec.way.name
    if spec.way.ca is not None:
        metadata[TLS_NAMESPACE] = tls_match(spec.way.ca, named=bool(spec.way.name))
    return {"endpoint": reached, "metadata": {"filter_metadata": metadata}}


def _models_in(path: Path) -> dict[str, None]:
    """Return the models of the endpoints in a file; none if it has another form."""
    try:
        (group,) = orjson.loads(path.read_bytes())["resources"][0]["endpoints"]
        marks = [entry["metadata"]["filter_metadata"] for entry in group["lb_endpoints"]]
        return {str(each[METADATA_NAMESPACE]["model"]): None for each in marks}
    except (OSError, ValueError, LookupError, TypeError):
        return {}


def tls_match(ca: str, *, named: bool) -> dict[str, object]:
    """Return the endpoint metadata that selects TLS settings in the bootstrap."""
    return {"tls": True, "ca": ca, "named": named}
