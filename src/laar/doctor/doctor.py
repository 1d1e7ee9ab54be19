"""`laar doctor`: check the endpoints, the picker and Envoy, and suggest fixes.

Everything is read over HTTP with short timeouts. Nothing is changed, and each endpoint generates at
most a few tokens. The picker's admin port provides recent traffic and the age of its readings; the
endpoints are also queried directly, since the doctor must work even if the picker does not start.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from importlib.metadata import version
from math import ceil, inf, isnan
from typing import Any

import aiohttp
import orjson

from laar.datalayer.asking import MAX_UNDER_WAY, ask, new_session
from laar.datalayer.discovery import LISTED_BY_LAAR, OTHER_LAAR
from laar.datalayer.endpoints_file import is_ip, split_address
from laar.datalayer.fetching import fault_of, options_for, read_capped
from laar.datalayer.metrics_page import ENGINES, page_url, read_page
from laar.datalayer.scrape import MAX_PAGE_BYTES
from laar.datalayer.served_names import read_served
from laar.doctor.answers import answer_findings
from laar.doctor.envoy import (
    configuration,
    envoy_findings,
    fails_open,
    host_findings,
    keeps_to_models,
    oldest,
)
from laar.doctor.findings import Finding, error, fine, warning
from laar.envoy.endpoints_file import are_alike, without_picker
from laar.envoy.options import envoy_options
from laar.faults import Fault
from laar.fleet.membership import DRAIN_LABEL, EndpointSpec
from laar.settings import Settings
from laar.telemetry.page_model import MAX_FLEET
from laar.telemetry.problems import PASSWORD

_TIMEOUT_S = 3.0
_MAX_ENDPOINTS = 200
_MAX_SHOWN = 5
_MAX_SHOWN_CHARS = 200
_MAX_ADMIN_BYTES = 64 << 20
_SERVER_FAULT = 500
_ASLEEP = "asleep, so it was not asked to answer"
_DECISIONS = 200
_Names = dict[str, list[str] | None]  # the model names that each address lists
_LATE_S = 1.0
_MAX_SHORT = 0.1  # share of held turns that may be sent without room
_LOOPBACK = ("127.", "[::1]:", "localhost:")
_NEAR_S = 0.05  # no round trip within a machine or a region takes as long
_REFUSED = {
    "key": (error, "give all pickers the same share.secret_file"),
    "schema": (warning, "run one version of laar"),
}
_COUNTERS = {
    "failure_mode_allowed": ("requests went on without the picker's choice", Fault.BYPASSED.fix),
    "message_timeouts": ("the picker did not answer in time", Fault.BYPASSED.fix),
    "spurious_msgs_received": ("the picker's answer did not match Envoy's state", "see laar's log"),
    "rejected_header_mutations": ("a header set by the picker was rejected", "see laar's log"),
}
_OF_BREAKERS = re.compile(r"upstream_(cx|rq)_\w*overflow")


@dataclass
class Doctor:
    """Checks one deployment.

    Args:
        settings: settings of the picker.
        envoy: URL of Envoy's admin port; None skips it.
        picker: URL of the picker's admin port; None skips it.
        token: the viewers' token, if the picker requires one.
        key: headers with a client's key, for endpoints that require one.
    """

    settings: Settings
    _: KW_ONLY
    envoy: str | None
    picker: str | None
    token: str | None = None
    key: Mapping[str, str] = field(default_factory=dict)
    _served: _Names = field(default_factory=dict, init=False)
    _fails_open: bool = field(default=False, init=False)
    _keeps_to_models: bool = field(default=False, init=False)

    async def examine(self) -> list[Finding]:
        """Check everything; return the findings on endpoints, picker and Envoy, in order."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S)) as http:
            parts = await asyncio.gather(
                self._endpoints(http),
                _readable(f"picker {self.picker}", self._picker(http)),
                _readable(f"Envoy {self.envoy}", self._envoy(http)),
            )
        return [*(finding for part in parts for finding in part), *self._without_picker()]

    def _without_picker(self) -> Iterator[Finding]:
        """Yield what becomes of requests where Envoy chooses the endpoint itself."""
        names = [set(names) for names in self._served.values() if names]
        aliases = self.settings.routing.director.aliases
        if not self._fails_open or not names:
            return
        what, alike = without_picker(names, aliases), are_alike(names)
        if (alike or self._keeps_to_models) and not (alike and set(aliases).difference(*names)):
            yield fine("Envoy", what)
        elif alike:
            yield warning("Envoy", what, "start vLLM with --served-model-name NAME ALIAS")
        else:
            yield warning(
                "Envoy",
                "fails open to endpoints of any model: while no picker decides, requests get 404",
                "render its bootstrap again with `laar envoy`, or let requests fail with "
                "--no-fail-open",
            )

    # -- endpoints -----------------------------------------------------------------------------

    async def _endpoints(self, http: aiohttp.ClientSession) -> list[Finding]:
        declared = [spec for spec in self.settings.declared() if not spec.drains]
        gate, answers = asyncio.Semaphore(MAX_UNDER_WAY), []

        async def one(spec: EndpointSpec) -> list[Finding]:
            async with gate:
                found = await _endpoint(http, spec, self.key, self._served)
                if found[-1].what != _ASLEEP:
                    answers.append((spec, await ask(session, spec)))
                return found

        async with new_session() as session:
            session.headers.update(self.key)
            parts = await asyncio.gather(*(one(spec) for spec in declared[:_MAX_ENDPOINTS]))
        answers.sort(key=lambda answer: answer[0].address)  # not in order of arrival
        parts = [[*_not_asked(self.settings, len(declared))], answer_findings(answers), *parts]
        return [finding for part in parts for finding in part]

    # -- picker --------------------------------------------------------------------------------

    async def _picker(self, http: aiohttp.ClientSession) -> list[Finding]:
        url = self.picker
        if url is None:
            return []
        where = f"picker {url}"
        status, body = await _get(http, f"{url}/readyz")
        if not status:
            what = "its admin port does not answer (--picker gives its address)"
            return [error(where, what, Fault.GONE.fix)]
        headers = {"authorization": f"Bearer {self.token}"} if self.token else {}
        about = await _get_json(http, f"{url}/fleet", headers)
        recent = await _get_json(http, f"{url}/decisions?limit={_DECISIONS}", headers)
        found = []
        if status != 200:
            why = body.decode(errors="replace").strip()[:_MAX_SHOWN_CHARS]
            found.append(error(where, why, Fault.NO_ENDPOINTS.fix))
        if not {"about", "fleet", "decisions"} <= {*about, *recent}:
            remedy = "give the token with --token-file, or the right address with --picker"
            return [*found, error(where, "does not return its fleet", remedy)]
        if (other := _other_fleet(url, about, self.settings.declared())) is not None:
            return [*found, other]
        found += _fleet_findings(url, about)
        return [*found, *_coverage(recent["decisions"], about["about"].get("calibrated", True))]

    # -- Envoy ---------------------------------------------------------------------------------

    async def _envoy(self, http: aiohttp.ClientSession) -> list[Finding]:
        url = self.envoy
        if url is None:
            return []
        document = await _get_json(http, f"{url}/config_dump")
        if not document:
            what = "its admin port does not answer with a configuration"
            remedy = "give its address with --envoy: loopback, port 19000 in laar's bootstraps"
            return [error(f"Envoy {url}", what, remedy)]
        config = configuration(document)
        self._fails_open, self._keeps_to_models = fails_open(config), keeps_to_models(config)
        found = envoy_findings(config, envoy_options(self.settings))
        hosts = await _get_json(http, f"{url}/clusters?format=json")
        found += host_findings(config, hosts.get("cluster_statuses", ()))
        known = await _get_json(http, f"{url}/server_info")
        found += _envoy_version(str(known.get("version", "")), oldest(config))
        counted = await _get_json(http, f"{url}/stats?format=json&filter=ext_proc|overflow")
        return [*found, *_envoy_counters(counted.get("stats", []))]


async def _readable(where: str, findings: Coroutine[None, None, list[Finding]]) -> list[Finding]:
    """Return the findings, or a single error if the pages have a form that this code can't read."""
    try:
        return await findings
    except (AttributeError, LookupError, TypeError, ValueError) as fault:
        what = f"its pages can't be read ({type(fault).__name__}: {fault})"
        remedy = f"check the address; a picker must be laar {version('laar')}, like this command"
        return [error(where, what, remedy)]


async def _get(
    http: aiohttp.ClientSession,
    url: str,
    headers: Mapping[str, str] | None = None,
    spec: EndpointSpec | None = None,
) -> tuple[int, bytes]:
    """Return a page's status and body, or 0 and the error; an endpoint's key replaces `headers`."""
    try:
        options = {} if spec is None else options_for(spec, url)
        headers = {**(headers or {}), **options.pop("headers", {})}
        # The picker doesn't follow redirects either.
        async with http.get(url, headers=headers, allow_redirects=False, **options) as answer:
            max_bytes = _MAX_ADMIN_BYTES if spec is None else MAX_PAGE_BYTES
            return answer.status, await read_capped(answer.content, max_bytes)
    except (aiohttp.ClientError, OSError, ValueError) as fault:
        return 0, fault_of(fault).encode()


async def _get_json(
    http: aiohttp.ClientSession, url: str, headers: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the JSON object in a successful answer; an empty one for any other answer."""
    status, body = await _get(http, url, headers)
    with contextlib.suppress(orjson.JSONDecodeError):
        if status == 200 and isinstance(found := orjson.loads(body), dict):
            return found
    return {}


# -- findings ----------------------------------------------------------------------------------


def _not_asked(settings: Settings, declared: int) -> Iterable[Finding]:
    """Yield findings on endpoints that are not checked."""
    if declared > _MAX_ENDPOINTS:
        what = f"only the first {_MAX_ENDPOINTS} of {declared} are checked"
        yield warning("endpoints", what, "check the others with separate settings (-c)")
    if settings.kubernetes:
        yield warning(
            "endpoints",
            "the endpoints of `kubernetes` are not checked; only the picker's view is shown",
            "to check some, list them under `endpoints` in separate settings (-c)",
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join([*names[:_MAX_SHOWN], *(["..."] if len(names) > _MAX_SHOWN else ())])


async def _endpoint(
    http: aiohttp.ClientSession, spec: EndpointSpec, key: Mapping[str, str], names: _Names
) -> list[Finding]:
    """Return findings on an endpoint, and put the names that it lists in `names`."""
    where = f"endpoint {spec.address}"
    url = spec.url("/v1/models")
    status, body = await _get(http, url, key, spec)
    if not status:
        return [error(where, f"no answer at {url} ({body.decode()})", Fault.PROBE.fix)]
    found = []
    if status >= _SERVER_FAULT:
        found.append(error(where, f"answers {status} at {url}", Fault.ENDPOINT.fix))
    served = None
    with contextlib.suppress(ValueError):  # it lists no models
        listed = read_served(body, most=None)
        served = [*listed.weights, *listed.adapters]
    names[spec.address] = served
    if LISTED_BY_LAAR in body:
        return [error(where, OTHER_LAAR, "list its engines instead")]
    if served and (missing := [n for n in spec.models if n not in served]):
        # Other engines, or proxies, may accept names that they do not list.
        finding = error if spec.engine == "vllm" and spec.metrics_url != "" else warning
        what = f"does not list {', '.join(missing)}, but {_some(served)}"
        found.append(finding(where, what, Fault.MODELS.fix))
    if spec.metrics_url != "":
        found += await _metrics(http, spec, where)
    seen = f"serves {', '.join(spec.models)}"
    if not served:
        seen = f"lists no models (it answers {status} at /v1/models)"
    read = "it has no metrics page" if spec.metrics_url == "" else "its metrics can be read"
    return found or [fine(where, f"{seen}; {read}")]


async def _metrics(http: aiohttp.ClientSession, spec: EndpointSpec, where: str) -> list[Finding]:
    status, page = await _get(http, page_url(spec), spec=spec)
    url = PASSWORD.sub("", page_url(spec))
    if status != 200:
        says = f"answers {status}" if status else "does not answer"
        return [error(where, f"{url} {says}: its queue is unknown", Fault.SCRAPE.fix)]
    reading, _ = read_page(page, spec.engine, None)
    if reading.asleep:
        return [fine(where, _ASLEEP)]
    if isnan(reading.waiting) and isnan(reading.running):  # some have no kv_usage
        what = f"{url} has no metrics of {spec.engine} (engines: {', '.join(ENGINES)})"
        return [warning(where, what, Fault.SCRAPE.fix)]
    return []


def _other_fleet(
    url: str, shown: Mapping[str, Any], declared: Sequence[EndpointSpec]
) -> Finding | None:
    """Return an error if the picker has none of the declared endpoints, else None.

    If any of them is given by DNS name, skip the check, since the picker shows IP addresses.
    """
    rows = [row["endpoint"] for row in shown["fleet"]]
    own = [spec.address for spec in declared]
    named = any(not is_ip(split_address(address)[0]) for address in own)
    if not own or not rows or named or not set(own).isdisjoint(rows) or len(rows) >= MAX_FLEET:
        return None
    return error(
        f"picker {url}",
        f"serves other endpoints ({rows[0]}) than these settings list ({own[0]}): it has "
        "different settings, so it is not checked further",
        "give the address of the right picker with --picker, or start it on other ports (listen)",
    )


def _fleet_findings(url: str, shown: Mapping[str, Any]) -> Iterator[Finding]:
    where = f"picker {url}"
    running = shown["about"]["version"]
    if running != version("laar"):
        what = f"runs laar {running}, but this is {version('laar')}"
        yield warning(where, what, "install the same version, then check again")
    for source, problem in shown["problems"].items():
        finding = warning if source == Fault.RESTART else error
        what, remedy = problem, Fault.PROBLEM.fix  # as versions before 0.4 tell it
        if isinstance(problem, dict):
            what, remedy = problem["message"], f"{problem['remedy']} ({problem['runbook']})"
        yield finding(where, f"{source}: {what}", remedy)
    states = Counter(row["health"] for row in shown["fleet"])
    if slow := [row["endpoint"] for row in shown["fleet"] if row["health"] == "slow"]:
        what = f"{', '.join(slow[:_MAX_SHOWN])}: slower than others with its model"
        yield warning(where, what, "see its log, and what else uses its accelerator")
    for address, rtt_s in _not_the_networks(shown["fleet"]):
        what = f"{address}: a round trip of {rtt_s:.2f} s can't be the network's: it gets less work"
        yield warning(where, what, "see what blocks its server, or a proxy in front of it")
    for row in shown["fleet"]:
        if row["health"] == "draining":
            what = f"{row['endpoint']} drains: no new requests, {row['in_flight']} in flight"
            yield warning(where, what, f"stop it once nothing runs there, or remove {DRAIN_LABEL}")
    if drained := shown["about"].get("drained"):
        what = f"drained, and may be stopped: {_some(drained)}"
        yield fine(where, what)
    if waiting := shown["about"].get("waiting_turns"):
        what = f"{waiting} turns wait for room in a cache: all caches are full"
        yield warning(where, what, Fault.NO_ROOM.fix)
    yield from _patience(where, shown["about"])
    if shown["about"]["enforced"] < 1.0:
        what = f"enforces {shown['about']['enforced']:.0%} of its decisions; the rest are shadow"
        remedy = "once you trust them, set routing.mode: enforce and routing.enforce_share: 1"
        yield warning(where, what, remedy)
    models = {row.get("model") for row in shown["fleet"]}
    if shown["about"].get("calibrated") is False and len(models) > 1:
        what = "not calibrated: `auto` chooses the model that answers fastest, right or wrong"
        yield warning(where, what, Fault.ARTIFACT.fix)
    yield from sharing_findings(where, shown["about"].get("sharing"))
    counts = ", ".join(f"{count} {state}" for state, count in states.items()) or "no endpoints"
    yield fine(where, f"laar {running}, policy {shown['about']['policy']}: {counts}")


def _patience(where: str, about: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield whether turns of sessions would have had room if their clients waited for longer."""
    holds, hold_s = about.get("holds") or {}, about.get("hold_s") or {}
    short = holds.get("limit", 0)
    if short > _MAX_SHORT * (total := short + holds.get("room", 0)):
        enough_s = ceil(hold_s["enough"])
        what = (
            f"{short} of {total} turns that waited for room in a cache were sent "
            f"without it; {enough_s} s would have been enough for 9 of 10"
        )
        remedy = (
            f"let clients wait, and say so (x-envoy-upstream-rq-timeout-ms: {2000 * enough_s}), "
            f"with `laar envoy --longest-hold {enough_s}` or more, or add endpoints"
        )
        yield warning(where, what, remedy)


def _not_the_networks(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, float]]:
    """Yield endpoints on this machine, or near others, whose round trips are too long for that."""
    nearest_s: dict[str, float] = {}
    known = [row for row in rows if row.get("rtt_s") is not None]
    for row in known:
        region = row.get("region", "")
        nearest_s[region] = min(row["rtt_s"], nearest_s.get(region, inf))
    for row in known:
        region = row.get("region", "")
        is_here = row["endpoint"].startswith(_LOOPBACK)
        expected_s = 0.0 if is_here else nearest_s[region] if region else inf
        if row["rtt_s"] - expected_s >= _NEAR_S:
            yield row["endpoint"], row["rtt_s"]


def sharing_findings(where: str, shown: Mapping[str, Any] | None) -> Iterator[Finding]:
    """Yield findings on a picker's view of the others; `_fleet_findings` reports store problems.

    Args:
        where: the picker.
        shown: the section on sharing in `/fleet`; None if sharing is off.
    """
    if not shown or not shown["connected"]:
        return
    if not shown["pickers"]:
        remedy = "start another with the same share.url and share.namespace, or remove `share`"
        what = "shares its data, but receives none from other pickers: it is alone"
        yield warning(where, what, remedy)
        return
    for reason, (finding, remedy) in _REFUSED.items():
        if count := shown["refused"].get(reason):
            what = f"could not use {count} batches from pickers that use a different {reason}"
            yield finding(where, what, remedy)
    age_s = float(shown["age_s"])
    if age_s > _LATE_S:
        what = f"records from other pickers are {age_s:.1f} s old, by both machines' clocks"
        yield warning(where, what, "check how fast the store answers, and run NTP")
    what = f"other pickers: {shown['pickers']}; their records are {1e3 * age_s:.0f} ms old"
    yield fine(where, what)


def _coverage(decisions: Sequence[Mapping[str, Any]], calibrated: bool) -> Iterator[Finding]:
    """Yield findings on recent decisions, and on whether outcomes are known for such requests."""
    if not decisions:
        yield warning("decisions", "none yet, so there is nothing to check", "send requests")
        return
    bare = Counter(
        (decision["language"], decision["bucket_tokens"], decision["task"])
        for decision in decisions
        if calibrated and any(row.get("evidence", 1) <= 0 for row in decision["candidates"])
    )
    for (language, bucket, task), count in bare.most_common(_MAX_SHOWN):
        if bucket:
            yield warning(
                "artifact",
                f"{count} of {len(decisions)} requests were {task or 'any'} tasks in {language} up "
                f"to {bucket} tokens, and some model has no outcome for them",
                "report outcomes (POST /outcomes), or use `laar measure` and `laar fit`",
            )
    if calibrated and not bare:
        yield fine("artifact", f"covers the last {len(decisions)} requests")
    if degraded := sum(d["reason"].startswith("degraded") for d in decisions):
        what = f"{degraded} of {len(decisions)} decisions are degraded: a component failed"
        yield error("decisions", what, Fault.DEGRADED.fix)


def _envoy_version(text: str, least: tuple[int, int]) -> Iterator[Finding]:
    """Check a version string such as ``commit/1.40.0/Clean/RELEASE/BoringSSL``."""
    found = re.search(r"/((\d+)\.(\d+)[^/]*)", text)
    if found is not None and (int(found[2]), int(found[3])) < least:
        what = f"is {found[1]}: it may lack override_host, or end the picker's streams too early"
        yield warning("Envoy", what, f"use {least[0]}.{least[1]} or later")
    elif found is not None:
        yield fine("Envoy", f"version {found[1]}")


def _envoy_counters(stats: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    totals: Counter[str] = Counter()
    for stat in stats:
        name, value = str(stat.get("name", "")), stat.get("value", 0)
        if isinstance(value, int):
            totals[name.rpartition(".")[2]] += value
    for name, (what, remedy) in _COUNTERS.items():
        if count := totals[name]:
            yield warning("Envoy", f"{name} {count}: {what}", remedy)
    # Other counters of overflows are not theirs: `outlier_detection.ejections_overflow`, say.
    if overflows := sum(n for name, n in totals.items() if _OF_BREAKERS.fullmatch(name)):
        what = f"circuit breakers turned {overflows} requests away"
        yield warning("Envoy", what, "raise circuit_breakers.thresholds of the cluster")
