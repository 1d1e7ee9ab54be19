"""Explanations over HTTP: explain, decisions, and the viewers' token."""

import asyncio
import json

import pytest
from watching import PROMPT, ask, read, settle, watched_picker

from laar.cli.explain import explain_live
from laar.errors import LaarError
from laar.faults import Fault
from laar.fleet.membership import POOL_LABEL, EndpointSpec
from laar.server.admin import explain as explaining
from support import eventually

CHAT = {"model": "auto", "messages": [{"role": "user", "content": PROMPT * 50}]}


async def post(http, url, body, **headers):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"content-type": "application/json", **headers}
    async with http.post(f"{url}/explain", data=data, headers=headers) as answer:
        return answer.status, await answer.json(content_type=None)


async def get(http, url, **options):
    async with http.get(url, **options) as answer:
        return answer.status, await answer.json(content_type=None)


async def test_explain_shows_every_candidate_and_changes_nothing(tmp_path, http):
    async with watched_picker(tmp_path) as (runner, url):
        status, shown = await post(http, url, CHAT, **{"x-laar-tried-models": "small"})
        assert status == 200
        assert {row["endpoint"] for row in shown["candidates"]} == {
            "10.9.0.1:8000",
            "10.9.0.2:8000",
            "10.9.0.3:8000",
        }
        assert shown["candidates"][-1]["model"] == "small"
        assert shown["candidates"][-1]["penalty"] >= 100
        assert shown["sentence"].startswith("large at ")
        assert shown["tried_models"] == ["small"]
        assert PROMPT.strip() not in json.dumps(shown)
        assert not runner.picker.table.in_flight.any()
        assert len(runner.picker.observability.memory) == 0


async def test_explain_decides_for_the_pool_that_the_query_names(tmp_path, http):
    async with watched_picker(tmp_path) as (runner, url):
        pooled = EndpointSpec(
            address="10.9.0.9:8000", models=("large",), labels={POOL_LABEL: "team/p"}
        )
        runner.picker.table.replace("pools", [pooled])
        shown = await explain_live(url, json.dumps(CHAT).encode(), {":pool": "team/p"}, None)
        assert [row["endpoint"] for row in shown["candidates"]] == [pooled.address]
        with pytest.raises(LaarError, match="503"):
            await explain_live(url, json.dumps(CHAT).encode(), {":pool": "team/none"}, None)


async def test_explain_reads_the_path_from_the_body_or_the_query(tmp_path, http):
    async with watched_picker(tmp_path) as (_, url):
        status, shown = await post(http, url, {"model": "small", "prompt": "once upon a time"})
        assert (status, shown["model"], shown["asked_model"]) == (200, "small", "small")
        sent = {"data": b"\x00", "headers": {"content-type": "application/json"}}
        async with http.post(f"{url}/explain?path=/v1/files", **sent) as answer:
            assert "drawn at random" in (await answer.json())["sentence"]
        status, shown = await post(
            http, url, CHAT, **{"x-gateway-destination-endpoint-subset": "10.9.0.2"}
        )
        assert shown["endpoint"] == "10.9.0.2:8000"
        assert {row["why"] for row in shown["filtered"]} == {"outside the gateway's subset"}


async def test_only_a_few_bodies_are_in_memory_at_a_time(tmp_path, http, monkeypatch):
    given, waiting, most, go_on = explaining.body_of, set(), 0, asyncio.Event()

    async def body_of(request, max_bytes):
        nonlocal most
        waiting.add(request)
        most = max(most, len(waiting))
        await go_on.wait()
        waiting.remove(request)
        return await given(request, max_bytes)

    monkeypatch.setattr(explaining, "body_of", body_of)
    async with watched_picker(tmp_path) as (_, url):
        posts = [asyncio.create_task(post(http, url, CHAT)) for _ in range(12)]
        await eventually(lambda: len(waiting) >= explaining.MAX_BODIES, what="the first bodies")
        assert (await get(http, f"{url}/fleet"))[0] == 200  # others are served meanwhile
        go_on.set()
        assert {status for status, _ in await asyncio.gather(*posts)} == {200}
        assert most == explaining.MAX_BODIES


REFUSED = [
    (b'{"model": ', 400, None),
    (b"", 400, None),
    (b"[1]", 400, None),
    (b'{"model": 7, "messages": []}', 400, None),
    (json.dumps(CHAT | {"model": "nobody"}).encode(), 404, "unknown-model"),
    (b"x" * 5000, 413, "body-too-large"),
]


async def test_a_request_that_would_be_refused_gets_the_refusal(tmp_path, http):
    async with watched_picker(tmp_path, bodies={"max_body_bytes": 4096}) as (_, url):
        for body, status, reason in REFUSED:
            got, answer = await post(http, url, body)
            assert got == status, (body[:80], answer)
            assert answer["error"]["message"], body[:80]
            assert reason is None or answer["error"]["code"] == reason, body[:80]


@pytest.mark.parametrize("header", ["x-session-id", "session-id", "session_id", "tenant"])
async def test_explain_reads_every_header_that_the_data_path_reads(
    tmp_path, http, header, monkeypatch
):
    """Codex, for example, sends session headers without `x-`."""
    sections = {"routing": {"policy": "session-affinity"}, "flow": {"tenant_header": "tenant"}}
    async with watched_picker(tmp_path, **sections) as (runner, url):
        director, read = runner.picker.director, []
        choose = director.choose
        monkeypatch.setattr(
            director, "choose", lambda asked, now: read.append(asked) or choose(asked, now)
        )
        secret = {"authorization": "Bearer secret", "cookie": "laar_viewer=secret"}
        status, _ = await post(http, url, CHAT, **{header: "s-1"}, **secret)
        assert status == 200
        assert "s-1" in (read[0].session, read[0].tenant)


async def test_decisions_are_listed_and_found_by_id_with_their_end_and_outcome(tmp_path, http):
    async with watched_picker(tmp_path) as (runner, url):
        first, second = ask(runner, id="r-1"), ask(runner, id="r-2")
        settle(runner, first, latency_s=2.25, cached_tokens=5, prompt_tokens=50)
        runner.picker.learning.reports.report(first.id, False, 0.0)
        status, listed = await get(http, f"{url}/decisions?limit=1")
        assert (status, listed["remembered"]) == (200, 2)
        assert [shown["id"] for shown in listed["decisions"]] == [second.id]
        assert "completion" not in listed["decisions"][0]
        status, shown = await get(http, f"{url}/decisions/{first.id}")
        assert (status, shown["request_id"], shown["correct"]) == (200, "r-1", False)
        assert shown["completion"]["latency_s"] == 2.25
        assert PROMPT.strip() not in json.dumps(shown)


async def test_a_bad_limit_gets_a_400(tmp_path, http):
    async with watched_picker(tmp_path) as (_, url):
        for limit in ("0", "x", "999", "-1", "9" * 99):
            status, answer = await get(http, f"{url}/decisions?limit={limit}")
            assert (status, answer["error"]["code"]) == (400, "bad-limit"), limit


@pytest.mark.parametrize(
    ("called", "query", "count", "found", "turns"),
    [("explained", "limit=200", 100, 100, 50), ("outcome_of", "kind=wrong", 500, 0, 2)],
)
async def test_requests_are_served_while_decisions_are_listed_or_searched(
    tmp_path, http, monkeypatch, called, query, count, found, turns
):
    monkeypatch.setattr("laar.slices.SLICE_S", 0.0)
    async with watched_picker(tmp_path) as (runner, url):
        for number in range(count):
            ask(runner, id=f"r-{number}")
        memory, turn, called_in = runner.picker.observability.memory, 0, []
        call = getattr(memory, called)
        setattr(memory, called, lambda of: called_in.append(turn) or call(of))
        asking = asyncio.create_task(get(http, f"{url}/decisions?{query}"))
        while not asking.done():
            await asyncio.sleep(0)
            turn += 1
        assert len((await asking)[1]["decisions"]) == found
        assert len(called_in) == count
        assert len(set(called_in)) > turns, "in turns with the requests"


async def test_an_unknown_id_gets_a_404_with_advice(tmp_path, http):
    async with watched_picker(tmp_path) as (_, url):
        for unknown in ("nothing", "%00", "a" * 2000, "..%2f..%2fetc"):
            async with http.get(f"{url}/decisions/{unknown}") as answer:
                assert answer.status == 404
        _, answer = await get(http, f"{url}/decisions/nothing")
        assert "decisions.log" in answer["error"]["message"]


async def test_the_fleet_is_shown_with_the_age_and_health_of_its_readings(tmp_path, http):
    async with watched_picker(tmp_path) as (runner, url):
        address = "10.9.0.1:8000"
        read(
            runner, address, waiting=2, kv_usage=0.5, prefix_queries_tokens=0, prefix_hits_tokens=0
        )
        read(
            runner,
            address,
            waiting=3,
            kv_usage=0.99,
            prefix_queries_tokens=10,
            prefix_hits_tokens=4,
        )
        _, shown = await get(http, f"{url}/fleet")
        first, second, _ = shown["fleet"]
        assert (first["health"], first["waiting"], first["hit_rate"]) == ("saturated", 3.0, 0.4)
        assert 0.0 <= first["read_age_s"] < 10.0
        assert (second["health"], second["waiting"], second["hit_rate"]) == ("not read", None, None)


async def test_the_log_agrees_with_headers_page_and_metrics(tmp_path, http):
    log = tmp_path / "decisions.jsonl"
    async with watched_picker(tmp_path, decisions={"log": "decisions.jsonl"}) as (runner, url):
        for _ in range(3):
            ask(runner)  # still in flight, so not in the log
        first = ask(runner)
        settle(runner, first)
        await eventually(lambda: log.exists() and first.id in log.read_text(), what="a line")
        async with http.get(f"{url}/metrics") as answer:
            page = await answer.text()
        assert 'laar_decision_log_lines_total{result="written"} 1.0' in page
        assert "laar_decisions_remembered 4.0" in page
        last = ask(runner)
        settle(runner, last)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["id"] for line in lines] == [first.id, last.id]
    assert PROMPT.strip() not in log.read_text()


# -- the token ---------------------------------------------------------------------------------

TOKEN = "let-me-look-please"
GUARDED = ("/", "/decisions", "/decisions/x", "/frame", "/fleet", "/config", "/page.js", "/models")


async def test_with_a_token_only_health_and_metrics_are_open(tmp_path, http):
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    sections = {"decisions": {"viewers_token_file": str(tmp_path / "token")}}
    async with watched_picker(tmp_path, **sections) as (_, url):
        for path in ("/metrics", "/healthz", "/readyz"):
            async with http.get(f"{url}{path}") as answer:
                assert answer.status == 200, path
        for path in GUARDED:
            for headers in (
                {},
                {"authorization": "Bearer wrong-token"},
                {"authorization": f"Basic {TOKEN}"},
                {"cookie": "laar_viewer=wrong"},
                {"cookie": 'a="b; laar_viewer'},
            ):
                async with http.get(f"{url}{path}", headers=headers) as answer:
                    assert answer.status == 401, (path, headers)
                    assert path == "/" or "--token-file" in await answer.text(), path
                    assert "10.9.0.1" not in await answer.text()
        async with http.post(f"{url}/explain", json=CHAT) as answer:
            assert answer.status == 401
        bearer = {"authorization": f"Bearer {TOKEN}"}
        assert (await get(http, f"{url}/decisions", headers=bearer))[0] == 200
        assert (await post(http, url, CHAT, **bearer))[0] == 200


async def test_a_token_that_is_replaced_in_its_file_is_replaced_in_the_picker(
    tmp_path, http, monkeypatch
):
    monkeypatch.setattr("laar.server.admin.port.TOKENS_S", 0.05)
    files = {name: tmp_path / name for name in ("viewers", "outcomes")}
    for name, file in files.items():
        file.write_text(f"{name}-that-leaked")
    sections = {
        "decisions": {"viewers_token_file": str(files["viewers"])},
        "accuracy": {"outcomes_token_file": str(files["outcomes"])},
    }
    async with watched_picker(tmp_path, **sections) as (runner, url):
        problems = runner.picker.problems

        async def asked(which):
            sent = [{"authorization": f"Bearer {name}-{which}"} for name in files]
            async with (
                http.get(f"{url}/fleet", headers=sent[0]) as fleet,
                http.post(f"{url}/outcomes", json={"outcomes": []}, headers=sent[1]) as report,
            ):
                return fleet.status, report.status

        assert await asked("that-leaked") == (200, 200)
        files["viewers"].unlink()  # as happens while a volume is being mounted
        await eventually(lambda: "tokens" in problems, what="the problem")
        assert await asked("that-leaked") == (200, 200)
        for name in ("outcomes", "viewers"):  # the missing file last, as it ends the problem
            files[name].write_text(f"{name}-anew")
        await eventually(lambda: "tokens" not in problems, what="the new tokens")
        assert await asked("anew") == (200, 200)
        assert await asked("that-leaked") == (401, 401)


async def test_the_form_stores_the_token_in_a_cookie_that_scripts_cannot_read(tmp_path, http):
    (tmp_path / "token").write_text(TOKEN)
    sections = {"decisions": {"viewers_token_file": str(tmp_path / "token")}}
    async with watched_picker(tmp_path, **sections) as (_, url):
        options = {"allow_redirects": False}
        async with http.post(f"{url}/login", data={"token": "guess"}, **options) as answer:
            assert answer.status == 401
            assert "token is wrong" in await answer.text()
        async with http.post(f"{url}/login", data={"token": "x" * 20_000}, **options) as answer:
            assert answer.status == 413
        async with http.post(f"{url}/login", data={"token": TOKEN}, **options) as answer:
            assert answer.status == 303
            cookie = answer.headers["set-cookie"]
            assert "HttpOnly" in cookie
            assert "SameSite=strict" in cookie
        sent = {"cookie": cookie.partition(";")[0]}
        assert (await get(http, f"{url}/fleet", headers=sent))[0] == 200


# -- the frames --------------------------------------------------------------------------------


async def test_frames_show_decisions_their_ends_and_problems(tmp_path, http, monkeypatch):
    async with watched_picker(tmp_path) as (runner, url):
        decision = ask(runner)
        _, frame = await get(http, f"{url}/frame")
        assert [shown["id"] for shown in frame["decisions"]] == [decision.id]
        settle(runner, decision, ttft_s=0.75, cached_tokens=20, prompt_tokens=80)
        runner.picker.problems.report(Fault.SCRAPE, "answered 500", "10.9.0.1:8000")
        assert (await get(http, f"{url}/frame"))[1] == frame  # viewers share it
        monkeypatch.setattr("laar.server.admin.live_page.FRAME_S", 0.0)
        _, frame = await get(http, f"{url}/frame")
        assert frame["ttft_s"] == {"n": 1, "p50": 0.75, "p90": 0.75, "p99": 0.75}
        assert frame["predicted"]["cached_share"]["measured_p50"] == 0.25
        assert frame["problems"]["scrape 10.9.0.1:8000"]["message"] == "answered 500"
