"""`laar doctor` and `laar explain` against real ports: endpoints, a picker, an Envoy."""

import asyncio
import io
import json
import re
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer
from rich.console import Console
from typer.testing import CliRunner

from laar.cli import app
from laar.cli.explain import explain_live, explain_offline, show_explanation
from laar.doctor import Doctor, Finding, Level, show_findings
from laar.doctor.envoy import override_of
from laar.envoy.options import BootstrapOptions
from laar.envoy.process import EnvoyProcess
from laar.errors import LaarError
from laar.faults import Fault
from laar.fleet.endpoints import Reading
from laar.server.runner import Runner
from laar.settings import load
from laar.telemetry.problems import Problems
from support import eventually, free_port
from support.bootstraps import rendered

PAGE = "vllm:num_requests_waiting 1\nvllm:num_requests_running 2\nvllm:kv_cache_usage_perc 0.5\n"
CHAT = json.dumps({"model": "auto", "messages": [{"role": "user", "content": "hello " * 90}]})


@asynccontextmanager
async def serving(routes):
    """Serve fixed answers by path: JSON, text, or a status and a body."""

    async def answer(request):
        value = routes.get(request.path, (404, b"404: Not Found"))
        if isinstance(value, tuple):
            return web.Response(status=value[0], body=value[1])
        return web.Response(text=value) if isinstance(value, str) else web.json_response(value)

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(application) as server:
        yield f"127.0.0.1:{server.port}"


def endpoint(*models, page=PAGE, chat=(404, b"404: Not Found")):
    models = {"data": [{"id": model} for model in models]}
    return {"/v1/models": models, "/metrics": page, "/v1/chat/completions": chat}


def settings(tmp_path, *endpoints, **sections):
    document = {
        "endpoints": [{"address": a, "model": m, **more} for a, m, more in endpoints],
        "listen": {"admin": f"127.0.0.1:{free_port()}"},
        **sections,
    }
    (tmp_path / "laar.yaml").write_text(yaml.safe_dump(document))
    return load(tmp_path / "laar.yaml").settings


async def examine(given, **places):
    found = await Doctor(given, **{"envoy": None, "picker": None} | places).examine()
    return {(f.where.split()[0], f.level): f for f in found}, found


async def test_a_healthy_endpoint_is_ok_and_a_faulty_one_gets_a_fix(tmp_path):
    async with (
        serving(endpoint("a")) as good,
        serving(endpoint("b")) as other,
        serving(endpoint("a", page="nothing 1\n")) as mute,
        serving({"/v1/models": "?"}) as bare,
    ):
        gone = f"127.0.0.1:{free_port()}"
        given = settings(
            tmp_path,
            (good, "a", {}),
            (other, "a", {}),
            (mute, "a", {}),
            (bare, "a", {}),
            (gone, "a", {}),
        )
        _, found = await examine(given)
    by_address = {finding.where.removeprefix("endpoint "): finding for finding in found}
    assert by_address[good].level is Level.OK
    assert by_address[other].remedy == Fault.MODELS.fix
    assert by_address[other].level is Level.ERROR
    assert "does not list a, but b" in by_address[other].what
    assert by_address[mute].level is Level.WARNING
    assert "has no metrics of vllm" in by_address[mute].what
    assert "/metrics answers 404" in by_address[bare].what
    assert by_address[gone].level is Level.ERROR
    assert re.search(r"no answer at .*/v1/models \(\w+ Cannot connect", by_address[gone].what)
    assert by_address[gone].remedy == Fault.PROBE.fix
    assert by_address[mute].remedy == by_address[bare].remedy == Fault.SCRAPE.fix


async def test_a_sleeping_engine_is_not_an_error_and_gets_no_request(tmp_path):
    states = {"awake": 0, "weights_offloaded": 1, "discard_all": 0}
    page = PAGE + "".join(
        f'vllm:engine_sleep_state{{engine="0",sleep_state="{name}"}} {value}.0\n'
        for name, value in states.items()
    )
    async with serving(endpoint("a", page=page)) as sleeper:
        found, _ = await examine(settings(tmp_path, (sleeper, "a", {})))
    assert list(found) == [("endpoint", Level.OK)]
    assert "asleep" in found["endpoint", Level.OK].what


async def test_a_missing_picker_and_a_missing_envoy_are_findings(tmp_path):
    given = settings(tmp_path, ("10.0.0.1:1", "m", {"metrics_url": ""}))
    nowhere = f"http://127.0.0.1:{free_port()}"
    found, _ = await examine(
        given.model_copy(update={"endpoints": ()}), envoy=nowhere, picker=nowhere
    )
    assert set(found) == {("picker", Level.ERROR), ("Envoy", Level.ERROR)}


@pytest.mark.parametrize(
    ("routes", "what"),
    [
        (dict.fromkeys(("/readyz", "/fleet", "/decisions"), "<html>"), "does not return its fleet"),
        ({"/readyz": (503, b"\xff<html>" * 999)}, "does not return its fleet"),
        (
            {"/readyz": "", "/fleet": {"about": {}, "fleet": []}, "/decisions": {"decisions": []}},
            "pages can't be read",
        ),
        ({"/config_dump": "<html>log in</html>"}, "does not answer with a configuration"),
        ({"/config_dump": {"configs": 5}}, "pages can't be read"),
        ({"/config_dump": {"static_resources": {"listeners": [7]}}}, "pages can't be read"),
    ],
)
async def test_pages_of_an_unknown_form_are_a_finding(tmp_path, routes, what):
    given = settings(tmp_path, ("10.0.0.1:1", "m", {})).model_copy(update={"endpoints": ()})
    place = "picker" if "/readyz" in routes else "envoy"
    async with serving(routes) as address:
        found, _ = await examine(given, **{place: f"http://{address}"})
    assert {(where.lower(), level) for where, level in found} == {(place, Level.ERROR)}
    assert all(what in finding.what and len(finding.what) < 300 for finding in found.values())


PROBLEMS = Problems()
for each in Fault:
    PROBLEMS.report(each, "what is wrong")
FLEET = {
    "about": {
        "version": "0.0.1",
        "policy": "laar",
        "enforced": 0.25,
        "holds": {"room": 70, "limit": 30},
        "hold_s": {"enough": 213.4},
    },
    "fleet": [
        {"endpoint": "10.0.0.1:1", "health": "ok"},
        {"endpoint": "10.0.0.2:1", "health": "stale"},
    ],
    "problems": {**PROBLEMS.shown(len(Fault)), "dns a.b": "as versions before 0.4 say it"},
}


def decision(evidence, reason="laar", bucket=8192):
    return {
        "reason": reason,
        "language": "ja",
        "bucket_tokens": bucket,
        "task": "code",
        "candidates": [{"evidence": 30}, {"evidence": evidence}],
    }


async def test_problems_that_the_picker_reports_become_findings(tmp_path):
    given = settings(tmp_path, ("10.0.0.1:1", "m", {})).model_copy(update={"endpoints": ()})
    decisions = [decision(0), decision(0), decision(9), decision(9, "degraded-prefixes")]
    routes = {"/readyz": "ready", "/fleet": FLEET, "/decisions": {"decisions": decisions}}
    async with serving(routes) as address:
        _, found = await examine(given, picker=f"http://{address}")
    texts = [f"{finding.level}: {finding.what}" for finding in found]
    assert any("runs laar 0.0.1" in text for text in texts)
    by_what = {finding.what: finding for finding in found}
    for fault in Fault:
        about = by_what[f"{fault}: what is wrong"]
        assert about.remedy == fault.fix
        assert (about.level is Level.WARNING) == (fault is Fault.RESTART)
    assert "error: dns a.b: as versions before 0.4 say it" in texts
    assert any(text.startswith("warning: enforces 25%") for text in texts)
    [(what, held)] = [each for each in by_what.items() if "30 of 100 turns" in each[0]]
    assert "214 s would have been enough" in what
    assert "timeout-ms: 428000" in held.remedy
    assert any("2 of 4 requests were code tasks in ja up to 8192 tokens" in text for text in texts)
    assert any("1 of 4 decisions are degraded" in text for text in texts)
    assert all(finding.remedy for finding in found if finding.level is not Level.OK)


async def test_round_trips_too_long_for_the_network_are_warnings(tmp_path):
    given = settings(tmp_path, ("10.0.0.1:1", "m", {})).model_copy(update={"endpoints": ()})
    places = [
        ("127.0.0.1:1", "", 0.06, True),
        ("127.0.0.1:2", "", 0.01, False),
        ("[::1]:3", "far", 1.0, True),
        ("10.0.0.1:1", "eu", 0.101, False),
        ("10.0.0.2:1", "eu", 0.4, True),
        ("10.0.1.1:1", "us", 0.2, False),
        ("10.0.2.1:1", "", 0.9, False),
        ("10.0.2.2:1", "", None, False),
    ]
    rows = [
        {"endpoint": address, "region": region, "rtt_s": rtt_s, "health": "ok"}
        for address, region, rtt_s, _ in places
    ]
    fleet = {**FLEET, "fleet": rows}
    routes = {"/readyz": "ready", "/fleet": fleet, "/decisions": {"decisions": [decision(0)]}}
    async with serving(routes) as address:
        _, found = await examine(given, picker=f"http://{address}")
    told = {
        finding.what.split(": a round trip")[0]
        for finding in found
        if "a round trip" in finding.what
    }
    assert told == {address for address, *_, is_odd in places if is_odd}


async def test_another_fleets_picker_is_a_warning(tmp_path):
    fleet = {**FLEET, "fleet": [{"endpoint": "10.9.9.9:80", "health": "ok"}]}
    routes = {"/readyz": "ready", "/fleet": fleet, "/decisions": {"decisions": []}}
    given = settings(tmp_path, ("127.0.0.1:1", "m", {"metrics_url": ""}))
    async with serving(routes) as address:
        _, found = await examine(given, picker=f"http://{address}")
    [about_it] = [finding for finding in found if finding.where.startswith("picker")]
    assert about_it.level is Level.ERROR
    assert "serves other endpoints (10.9.9.9:80) than these settings list" in about_it.what
    assert "--picker" in about_it.remedy


async def test_envoy_counters_are_reported(tmp_path):
    given = settings(tmp_path, ("10.0.0.1:1", "m", {})).model_copy(update={"endpoints": ()})
    stats = [
        {"name": "http.data.ext_proc.laar.failure_mode_allowed", "value": 3},
        {"name": "cluster.laar-picker.upstream_rq_pending_overflow", "value": 2},
        {"name": "cluster.laar-picker.upstream_cx_overflow", "value": 0},
        {"name": "cluster.endpoints.outlier_detection.ejections_overflow", "value": 86},
        {"name": "listener.data.downstream_cx_overflow", "value": 5},
        {"name": "cluster.endpoints.upstream_rq_retry_overflow", "value": 1},
        {"histograms": {}},
    ]
    routes = {
        "/config_dump": {"configs": []},
        "/server_info": {"version": "abc/1.31.2/Clean/RELEASE/BoringSSL"},
        "/stats": {"stats": stats},
    }

    async with serving(routes) as address:
        _, found = await examine(given, envoy=f"http://{address}")
    texts = " | ".join(finding.what for finding in found)
    assert "failure_mode_allowed 3" in texts
    assert "turned 3 requests away" in texts
    assert "1.31.2" in texts


@pytest.mark.parametrize(
    ("shape", "version", "needs"),
    [
        ("standalone", "1.38.3", "1.39"),
        ("standalone", "1.39.0", None),
        ("full-duplex", "1.36.2", None),
        ("full-duplex", "1.34.9", "1.35"),
    ],
)
async def test_an_envoy_too_old_for_its_shape_is_reported(tmp_path, shape, version, needs):
    given = settings(tmp_path, ("10.0.0.1:1", "m", {})).model_copy(update={"endpoints": ()})
    routes = {
        "/config_dump": rendered(shape, BootstrapOptions()),
        "/server_info": {"version": f"abc/{version}/Clean/RELEASE/BoringSSL"},
    }
    async with serving(routes) as address:
        _, found = await examine(given, envoy=f"http://{address}")
    [about] = [finding for finding in found if version in finding.what]
    assert about.level is (Level.WARNING if needs else Level.OK)
    assert needs is None or needs in about.remedy


@pytest.mark.parametrize(
    ("fail_open", "by_model", "other", "level", "said"),
    [
        (True, True, ("b",), Level.OK, "fails open within each model"),
        (True, False, ("b",), Level.WARNING, "fails open to endpoints of any model"),
        (True, True, ("a", "auto"), Level.OK, "any endpoint gets any request"),
        (True, True, ("a",), Level.OK, "fails open within each model"),
        (False, True, ("b",), None, "fails open"),
    ],
)
async def test_what_happens_without_a_picker_is_reported(
    tmp_path, fail_open, by_model, other, level, said
):
    bootstrap = rendered("sidecar", BootstrapOptions(eds_path="/e.json", fail_open=fail_open))
    if not by_model:  # as older versions rendered it
        subsets = override_of(bootstrap["static_resources"]["clusters"][0])["fallback_policy"]
        subsets["policies"][0]["typed_extension_config"]["typed_config"]["subset_selectors"].pop()
    async with (
        serving(endpoint("a", "auto")) as one,
        serving(endpoint(*other)) as two,
        serving({"/config_dump": bootstrap}) as envoy,
    ):
        given = settings(tmp_path, (one, "a", {}), (two, other[0], {}))
        _, found = await examine(given, envoy=f"http://{envoy}")
    levels = [finding.level for finding in found if said in finding.what]
    assert levels == ([level] if level else [])


def test_findings_are_printed_worst_first_with_the_fix_below():
    console = Console(width=60, record=True, file=io.StringIO())
    show_findings(
        console,
        [
            Finding(level=Level.OK, where="a", what="fine"),
            Finding(level=Level.ERROR, where="b [x]", what="\x1b[2Jbad\nok", remedy="set x: true"),
        ],
    )
    assert console.export_text().splitlines() == [
        "error   b [x]:  [2Jbad",
        "        ok",  # not a finding of its own
        "        -> set x: true",
        "ok      a: fine",
    ]


@pytest.mark.envoy
async def test_an_envoy_with_a_picker_and_endpoints_has_no_findings_about_hosts(
    tmp_path, envoy_binary
):
    ports = {name: f"127.0.0.1:{free_port()}" for name in ("ext_proc", "health", "admin")}
    eds, admin = tmp_path / "run" / "endpoints.json", free_port()
    more = {"shutdown": {"drain_s": 0, "grace_s": 0}, "envoy": {"eds_file": str(eds)}}
    given = settings(tmp_path, ("127.0.0.1:1", "m", {"metrics_url": ""}), listen=ports, **more)
    options = BootstrapOptions(
        picker=ports["ext_proc"], listen_port=0, ready_port=0, admin_port=admin, eds_path=str(eds)
    )
    runner, started = Runner(given), asyncio.Event()
    running = asyncio.create_task(runner.run(started=started))
    await started.wait()
    (tmp_path / "envoy").mkdir()

    async def fine():
        _, found = await examine(given, envoy=f"http://127.0.0.1:{admin}")
        return not any("cluster" in finding.where for finding in found)

    try:
        async with EnvoyProcess(rendered("standalone", options), tmp_path / "envoy"):
            await eventually(fine, what="an Envoy without a fault", timeout_s=20.0)
    finally:
        runner.stop()
        await running


# -- explain -----------------------------------------------------------------------------------


def test_explain_works_from_the_settings_alone(tmp_path):
    given = settings(tmp_path, ("10.0.0.1:1", "small", {}), ("10.0.0.2:1", "large", {}))
    shown = explain_offline(given, CHAT.encode(), {"x-laar-tried-models": "small"})
    assert shown["model"] == "large"
    console = Console(width=120, record=True, file=io.StringIO())
    show_explanation(console, shown)
    text = console.export_text()
    assert "large at 10.0.0.2:1 won by" in text
    assert "x100" in text
    for row in (line.split() for line in text.splitlines() if line.strip()[:1].isdigit()):
        *parts, _, risk, cost = row[7:]
        assert sum(map(float, parts)) + float(risk) == pytest.approx(float(cost), abs=0.003), row
    assert "so time decided" not in text
    for policy in ("random", "least-loaded"):
        show_explanation(console, explain_offline(given, CHAT.encode(), {"x-laar-policy": policy}))
        text = console.export_text()
        # Under a rule two endpoints tie; under `random` one always scores higher.
        assert f"same score by {policy}" in text or "won by the score of random" in text
    opaque = explain_offline(given, b"\x00\xff", {":path": "/v1/files"})
    show_explanation(console, opaque)
    assert "drawn at random" in console.export_text()


async def test_explain_asks_a_running_picker_and_repeats_its_messages(tmp_path):
    given = settings(tmp_path, ("10.0.0.1:1", "m", {}))
    runner = Runner(given)
    runner.picker.table.replace("test", [e.spec() for e in given.endpoints])
    runner.picker.table.read("10.0.0.1:1", Reading(waiting=1), runner.picker.clock())
    admin = runner.admin.open()
    task = asyncio.create_task(admin.run_until_stopped())
    url = f"http://127.0.0.1:{admin.port}"
    try:
        shown = await explain_live(url, CHAT.encode(), {}, None)
        assert shown["endpoint"] == "10.0.0.1:1"
        with pytest.raises(LaarError, match="404: the model `nobody` does not exist"):
            await explain_live(url, CHAT.replace("auto", "nobody").encode(), {}, None)
        with pytest.raises(LaarError, match=r"no picker's admin port answers \(\w+ Cannot connect"):
            await explain_live(f"http://127.0.0.1:{free_port()}", b"{}", {}, None)
    finally:
        admin.should_exit = True
        await task


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n<html>",
        b"\0\0\x12\4\0\0\0\0\0\0\3\0\0\0\x64",  # the first bytes from a gRPC port
    ],
    ids=["a page", "HTTP/2"],
)
async def test_explain_reports_that_a_port_is_not_the_admin_port(answer):
    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(LaarError) as caught:
            await explain_live(f"http://127.0.0.1:{port}", b"{}", {}, None)
    remedy = "not the admin port of a picker (listen.admin, 9090 by default)"
    assert str(caught.value) == f"http://127.0.0.1:{port}/explain: {remedy}"


def test_commands_exit_with_their_documented_status(tmp_path):
    settings(tmp_path, ("127.0.0.1:1", "m", {"metrics_url": ""}))
    run = CliRunner().invoke
    config = ["-c", str(tmp_path / "laar.yaml")]
    (tmp_path / "request.json").write_text(CHAT)
    good = run(app, ["explain", str(tmp_path / "request.json"), *config, "--json"])
    assert (good.exit_code, json.loads(good.stdout)["endpoint"]) == (0, "127.0.0.1:1")
    (tmp_path / "bad.json").write_text('{"model":')
    for arguments in (
        ["explain", str(tmp_path / "bad.json"), *config],
        ["explain", str(tmp_path / "none.json"), *config],
        ["explain", str(tmp_path / "request.json"), *config, "--header", "nonsense"],
    ):
        failed = run(app, arguments)
        assert failed.exit_code == 2, arguments
        assert failed.stderr.startswith("laar: ")
    (tmp_path / "faulty.yaml").write_text("routng: {}")
    faulty = run(app, ["doctor", "-c", str(tmp_path / "faulty.yaml")])
    assert faulty.exit_code == 2
    assert faulty.stderr.endswith("A running picker ignores this file until it is corrected\n")
    ill = run(app, ["doctor", *config, "--envoy", "http://127.0.0.1:1", "--json"])
    assert ill.exit_code == 1
    assert {finding["level"] for finding in json.loads(ill.stdout)} == {"error"}
    assert json.loads(run(app, ["check", "--schema"]).stdout)["title"] == "Settings"


ANSWERS = {
    "fine": (200, b'data: {"choices":[{"index":0,"delta":{"content":"1"}}]}\n\ndata: [DONE]\n\n'),
    "no key": (401, b'{"error":"Unauthorized"}'),
    "no credit": (402, b"no credit"),
    "no model": (404, b"no model m"),
    "redirects": (302, b"Found"),
    "boom": (500, b"boom"),
    "loading": (503, b"loading"),
    "error inside": (200, b'data: {"error": {"code": 500}}\n\n'),
}


@pytest.mark.parametrize(
    ("names", "level", "what", "remedy"),
    [
        ("fine fine no-key", "error", "answers 401 to a chat request", Fault.ENDPOINT.fix),
        ("fine fine boom", "error", "answers 500 to a chat request: boom", Fault.ENDPOINT.fix),
        ("fine fine error-inside", "error", "answers 200 with an error inside", Fault.ENDPOINT.fix),
        ("no-key no-key", "warning", "its endpoints answer: 2 x 401", "--key-env"),
        ("loading", "error", "its endpoints answer: 1 x 503", "see its endpoints"),
        ("no-credit", "error", "answers 402 to a chat request: no credit", Fault.ENDPOINT.fix),
        ("no-model", "warning", "answers 404 to a chat request: no model m", "that it accepts"),
        ("redirects", "error", "answers 302 and nothing usable", Fault.ENDPOINT.fix),
    ],
)
async def test_endpoints_that_do_not_answer_a_chat_request_are_reported(
    tmp_path, names, level, what, remedy
):
    answers = [ANSWERS[name.replace("-", " ")] for name in names.split()]
    async with AsyncExitStack() as stack:
        at = [
            await stack.enter_async_context(serving(endpoint("m", chat=answer)))
            for answer in answers
        ]
        _, found = await examine(settings(tmp_path, *((address, "m", {}) for address in at)))
    about = next(finding for finding in found if what in finding.what)
    assert about.level is Level(level)
    assert remedy in about.remedy
    others = "others with its model answer" in about.what
    summary = next(finding for finding in found if finding.where == "model m")
    assert others == (summary.level is Level.OK) == ("fine" in names)
    assert ("2 x 200" in summary.what) == ("fine" in names)


async def test_another_laar_as_an_engine_is_an_error(tmp_path):
    own = {"data": [{"id": "m", "object": "model", "created": 0, "owned_by": "laar"}]}
    listed = {"/v1/models": json.dumps(own, separators=(",", ":"))}
    async with serving(listed) as address:
        _, found = await examine(settings(tmp_path, (address, "m", {"metrics_url": ""})))
    [loop] = [finding for finding in found if "is a laar picker, not an engine" in finding.what]
    assert loop.level is Level.ERROR


async def test_a_key_is_sent_only_to_endpoints(tmp_path):
    seen = []

    async def look(request):
        seen.append((request.path, request.headers.get("authorization")))
        return web.json_response({"data": [{"id": "m"}]})

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", look)
    async with TestServer(application) as engine, TestServer(application) as other:
        given = settings(tmp_path, (f"127.0.0.1:{engine.port}", "m", {"metrics_url": ""}))
        url, key = f"http://127.0.0.1:{other.port}", {"authorization": "Bearer secret"}
        _, found = await examine(given, picker=url, envoy=url, key=key)
    keyed = {path for path, sent in seen if sent}
    assert keyed == {"/v1/models", "/v1/chat/completions"}
    assert "secret" not in str(found)


async def test_an_engine_that_does_not_chat_is_reported_until_it_is_labelled(tmp_path):
    async with serving(endpoint("e")) as silent, serving(endpoint("f")) as labeled:
        labels = {"labels": {"laar.dev/task": "embed"}}
        given = settings(tmp_path, (silent, "e", {}), (labeled, "f", labels))
        _, found = await examine(given)
    [warning] = [finding for finding in found if "chat request" in finding.what]
    assert (warning.level, warning.where) == (Level.WARNING, f"endpoint {silent}")
    assert "laar.dev/task: embed" in warning.remedy
    models = {finding.where: finding.level for finding in found}
    assert (models["model e"], models["model f"]) == (Level.WARNING, Level.OK)
