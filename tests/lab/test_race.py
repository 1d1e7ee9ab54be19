"""`laar race` sends all routers the same requests, empties caches, and shows gains and losses."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path

import orjson
import pytest
from aiohttp import ClientSession, web
from aiohttp.typedefs import Handler
from typer.testing import CliRunner

from laar.cli import app
from laar.errors import SettingError
from laar_lab.race.clients import Asking, Row
from laar_lab.race.command import traffic_of
from laar_lab.race.engines import Engines, emptied, look_at, simulated
from laar_lab.race.result import Turn, numbers_of, ratios, report, sentence
from laar_lab.race.routers import named
from laar_lab.race.traffic import Traffic
from laar_lab.sim.fleet import Prompt, spread

PLAIN = Engines(urls=("http://e",), model="m", context_tokens=4096, chars_per_token=6.0)


def prompt(shared_blocks: int, own: int, tokens: int = 1600) -> Prompt:
    blocks = spread(1, shared_blocks) + spread(own << 20, tokens // 16 - shared_blocks)
    return Prompt(prompt_tokens=tokens, output_tokens=4, blocks=blocks)


def asking(mark: str = "000 000", chars_per_token: float = 6.0) -> Asking:
    return Asking(
        engines=Engines(
            urls=PLAIN.urls, model="m", context_tokens=4096, chars_per_token=chars_per_token
        ),
        mark=mark,
        time_scale=1.0,
        deadline_s=1.0,
        in_flight=4,
        most_tokens=4096,
    )


def text(of: Prompt, **how: object) -> str:
    return orjson.loads(asking(**how).body(of, ""))["messages"][0]["content"]


@pytest.mark.parametrize("chars", [4.3, 6.0])
def test_bodies_share_text_in_proportion_to_shared_blocks(chars: float) -> None:
    one, other = (text(prompt(40, own), chars_per_token=chars) for own in (7, 8))
    same = next(i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
    mark = len("000 000\n")
    assert 40 * 16 * chars - 1 <= same - mark < 41 * 16 * chars
    assert len(one) == pytest.approx(1600 * chars + mark, abs=1)


def test_bodies_of_two_turns_share_nothing() -> None:
    one, other = text(prompt(40, 7)), text(prompt(40, 7), mark="000 001")
    assert one[8:] == other[8:]
    assert one[:7] != other[:7]


def turns(ours: list[tuple[float, float]], theirs: list[tuple[float, float]]) -> list[Turn]:
    """Return turns with these mean and median TTFTs by repetition; everything else is equal."""
    equal = {
        "ttft_p95_s": 1.0,
        "answer_mean_s": 1.0,
        "answer_p95_s": 1.0,
        "answers_per_s": 1.0,
        "cached": 0.5,
        "requests": 9,
        "failed_percent": 0.0,
        "late_p95_s": 0.0,
        "cpu_ms": 1.0,
    }
    return [
        Turn(
            router=router,
            repetition=number,
            numbers={"ttft_mean_s": mean, "ttft_p50_s": median, **equal},
        )
        for router, values in (("laar", ours), ("smg", theirs))
        for number, (mean, median) in enumerate(values)
    ]


def test_the_summary_lists_gains_and_losses() -> None:
    seen = turns([(0.5, 1.2), (0.6, 1.3), (0.5, 1.2)], [(1.0, 1.0), (1.2, 1.0), (1.1, 1.0)])
    said = sentence(seen, "laar", "smg")
    better, _, rest = said.partition("; worse in ")
    worse, _, rest = rest.partition("; no difference is shown in ")
    assert "TTFT mean -5" in better
    assert worse.startswith("TTFT median +2")
    assert "answer mean" in rest
    assert "TTFT" not in rest.replace("TTFT p95", "")


def test_no_difference_is_claimed_after_one_repetition() -> None:
    seen = turns([(0.5, 1.2)], [(1.0, 1.0)])
    assert "better in nothing; worse in nothing" in sentence(seen, "laar", "smg")
    assert "One repetition has no intervals, so nothing is shown." in report(seen, "t", []).remarks


def test_a_router_without_answers_has_no_ratio() -> None:
    failed = [Row(number=1, session="", due_s=20.0, late_s=0.0, status=503, fault="status 503")]
    numbers = numbers_of(failed, from_s=15.0, until_s=90.0, cpu_s=None)
    assert numbers["failed_percent"] == 100.0
    seen = [
        *(turn for turn in turns([(1.0, 1.0)] * 3, []) if turn.router == "laar"),
        *(Turn(router="smg", repetition=number, numbers=numbers) for number in range(3)),
    ]
    assert str(ratios(seen, "laar", "smg")["ttft_mean_s"]) == "none"
    assert "100 % of smg's" in sentence(seen, "laar", "smg")


def test_warm_up_requests_do_not_count() -> None:
    rows = [
        Row(number=n, session="", due_s=10.0 * n, late_s=0.0, ttft_s=float(n), answer_s=float(n))
        for n in range(4)
    ]
    numbers = numbers_of(rows, from_s=15.0, until_s=40.0, cpu_s=0.2)
    assert (numbers["requests"], numbers["ttft_mean_s"]) == (2, 2.5)
    assert numbers["answers_per_s"] == 2 / 25
    assert numbers["cpu_ms"] == 50.0
    assert numbers["late_p95_s"] == 0.0


def made(name: str, most_tokens: int = 4000, **changed: object) -> Traffic:
    given = {"seconds": 60.0, "rate_per_s": 5.0, "clients": 3, "speed": 1.0, "block_tokens": 512}
    return traffic_of(name, **(given | changed))(most_tokens)


def test_generated_chats_fit_the_engines_and_depend_on_the_seed() -> None:
    traffic = made("chats")
    assert traffic.arrivals is not None
    one, same, other = (list(traffic.arrivals(seed)) for seed in (1, 1, 2))
    assert one == same
    assert one != other
    assert len(one) > 30
    assert max(each.prompt.prompt_tokens + each.prompt.output_tokens for each in one) <= 4000


def test_each_client_has_its_own_sessions() -> None:
    traffic = made("agents")
    assert traffic.sessions is not None
    first, again, second = (
        [turn.prompt for _, turns in islice(traffic.sessions(1, client), 3) for turn in turns]
        for client in (0, 0, 1)
    )
    assert first == again
    assert first != second
    assert max(each.prompt_tokens for each in first) <= 4000


def test_recorded_sessions_are_distributed_over_clients(tmp_path: Path) -> None:
    path = tmp_path / "sessions.jsonl"
    line = (
        '{{"session": {}, "input_length": 600, "output_length": 4, "hash_ids": [1, 2], "t_s": 0}}\n'
    )
    path.write_text("".join(line.format(number) for number in range(7)))
    traffic = made(str(path))
    assert traffic.sessions is not None
    held = [[name for name, _ in traffic.sessions(5, client)] for client in range(3)]
    assert sorted(chain.from_iterable(held)) == [str(number) for number in range(7)]
    assert max(map(len, held)) == 3


def test_each_repetition_gets_the_next_part_of_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    line = '{{"timestamp": {}, "input_length": {}, "output_length": 4, "hash_ids": [1, 2]}}\n'
    path.write_text("".join(line.format(10_000 * n, 600 + n) for n in range(30)))
    traffic = made(str(path), speed=2.0)  # 145 s of traffic; a repetition takes 60 s
    assert traffic.arrivals is not None
    first, second, again = (list(traffic.arrivals(seed)) for seed in (4, 5, 6))
    assert (
        [each.at_s for each in first]
        == [each.at_s for each in second]
        == [5.0 * n for n in range(12)]
    )
    assert [each.prompt.prompt_tokens for each in first + second] == [600 + n for n in range(24)]
    assert first == again


@pytest.mark.parametrize("name", ["smg", "vllm-router:--enable-program-scheduling"])
def test_a_missing_router_is_reported_with_install_instructions(name: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="peers/bin/pip install"):
        named(name, tmp_path)


@asynccontextmanager
async def engine(resets: str, busy: list[int], key: str = "") -> AsyncIterator[str]:
    """Run a stub engine; each scrape shows the next value of `busy`, and the API requires `key`."""

    @web.middleware
    async def checks_key(request: web.Request, handler: Handler) -> web.StreamResponse:
        asks = key and request.path.startswith("/v1/")
        if asks and request.headers.get("authorization") != f"Bearer {key}":
            raise web.HTTPUnauthorized
        return await handler(request)

    async def metrics(_: web.Request) -> web.Response:
        waiting = busy.pop(0) if busy else 0
        return web.Response(text=f'vllm:num_requests_running{{model="m"}} {waiting}.0\n')

    async def done(_: web.Request) -> web.Response:
        return web.Response()

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m", "max_model_len": 2048}]})

    async def chat(request: web.Request) -> web.Response:
        content = (await request.json())["messages"][0]["content"]
        return web.json_response({"usage": {"prompt_tokens": 9 + len(content) // 4}})

    app = web.Application(middlewares=[checks_key])
    app.add_routes(
        [
            web.get("/metrics", metrics),
            web.get("/v1/models", models),
            web.post("/v1/chat/completions", chat),
            web.post(resets, done),
        ]
    )
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[union-attr]
    finally:
        await runner.cleanup()


async def test_caches_are_emptied_once_engines_are_idle() -> None:
    busy = [2, 1]
    async with (
        engine("/reset_prefix_cache", busy) as vllm,
        engine("/flush_cache", []) as sglang,
        engine("/nothing", []) as other,
    ):
        seen = await look_at([vllm, sglang], None)
        assert await emptied(replace(seen, urls=(vllm, sglang, other))) == [other]
        assert not busy
        assert (seen.model, seen.context_tokens, seen.chars_per_token) == ("m", 2048, 4.0)
    with pytest.raises(SettingError, match=f"--engines {vllm}: no list of models"):
        await look_at([vllm], None)


async def test_engines_that_require_a_key_get_it() -> None:
    async with engine("/reset_prefix_cache", [], key="k") as keyed:
        seen = await look_at([keyed], None, {"authorization": "Bearer k"})
        assert (seen.model, await emptied(seen)) == ("m", [])
        with pytest.raises(SettingError, match="--key-env"):
            await look_at([keyed], None)


def raced(directory: Path, *options: str) -> tuple[str, list[dict], dict]:
    rows, numbers = directory / "rows.jsonl", directory / "race.json"
    told = ["--rows", str(rows), "--json", str(numbers), "--deadline", "20", *options]
    ran = CliRunner().invoke(app, ["race", *told], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    kept = [orjson.loads(line) for line in rows.read_bytes().splitlines()]
    return ran.output, kept, orjson.loads(numbers.read_bytes())


@pytest.mark.envoy
def test_a_race_runs_on_existing_engines(tmp_path: Path) -> None:
    """laar, with a real Envoy, races against one of the engines in place of a router."""

    async def go() -> tuple[str, list[dict], dict]:
        async with simulated(tmp_path, "parallel", 2, 0.05, "") as engines:
            one, other = engines.urls
            return await asyncio.to_thread(
                raced,
                tmp_path,
                *("--engines", one, "--engines", other, "--with", one),
                *("--seconds", "2", "--warm-up", "0", "--rate", "10", "--repeat", "1"),
                *("--most-tokens", "3000"),
            )

    output, rows, numbers = asyncio.run(go())
    by = {
        name: {row["number"]: row for row in rows if row["router"] == name}
        for name in {row["router"] for row in rows}
    }
    ours, theirs = by.pop("laar"), by.popitem()[1]
    assert len(ours) >= 8
    assert {n: row["prompt_tokens"] for n, row in ours.items()} == {
        n: row["prompt_tokens"] for n, row in theirs.items()
    }
    assert not any(row["fault"] for row in rows)
    assert all(row["answer_s"] >= row["ttft_s"] > 0.0 for row in rows)
    assert "CACHES NOT EMPTIED" in output
    assert "One repetition has no intervals" in numbers["sentences"][1]
    assert "every request is in rows.jsonl" in numbers["sentences"]
    assert len(numbers["turns"]) == 2


@pytest.mark.envoy
async def test_a_race_uses_the_settings_of_a_given_file(tmp_path: Path) -> None:
    """Round-robin splits equal prompts evenly; laar's default does not."""
    settings = tmp_path / "mine.yaml"
    settings.write_text(
        "endpoints:\n- {address: '127.0.0.1:1', model: theirs}\n"
        "listen: {admin: '127.0.0.1:2'}\n"
        "share: {url: 'redis://127.0.0.1:3'}\n"
        "routing: {policy: round-robin}\n"
    )
    router = named(str(settings))
    async with simulated(tmp_path, "parallel", 2, 0.01, "") as engines:
        body = replace(asking(), engines=engines).body(prompt(40, 7), "")
        async with router.running(tmp_path, engines) as running, ClientSession() as session:
            for _ in range(6):
                url = f"{running.url}/v1/chat/completions"
                async with session.post(url, data=body) as answer:
                    assert answer.status == 200
                    await answer.read()
            counts = []
            for url in engines.urls:
                async with session.get(f"{url}/metrics") as page:
                    found = re.findall(
                        r"^vllm:request_success_total.* (\S+)$", await page.text(), re.MULTILINE
                    )
                counts.append(sum(map(float, found)))
    assert counts[0] == counts[1] == 3.0
    assert not (tmp_path / "learned.json").exists()


def test_an_invalid_settings_file_is_reported(tmp_path: Path) -> None:
    settings = tmp_path / "mine.yaml"
    settings.write_text("flow: {max_hold: 5}\n")
    with pytest.raises(SettingError, match=r"mine\.yaml:1: flow\.max_hold"):
        named(str(settings))


def test_rows_are_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("{}")
    ran = CliRunner().invoke(app, ["race", "--rows", str(tmp_path / "rows.jsonl")])
    assert ran.exit_code == 2
    assert "rows are never overwritten" in ran.stderr


def test_a_race_that_cannot_start_leaves_no_rows(tmp_path: Path) -> None:
    told = ["--engines", "http://127.0.0.1:1", "--rows", str(tmp_path / "rows.jsonl")]
    ran = CliRunner().invoke(app, ["race", *told])
    assert ran.exit_code == 2
    assert "--engines http://127.0.0.1:1: no list of models" in ran.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.envoy
@pytest.mark.timeout(300)
def test_a_race_runs_on_simulated_engines(tmp_path: Path) -> None:
    output, rows, numbers = raced(
        tmp_path,
        *("--with", "round-robin", "--traffic", "agents", "--sessions", "6", "--repeat", "2"),
        *("--simulate", "3", "--profile", "parallel", "--time-scale", "0.05", "--seconds", "40"),
        *("--warm-up", "5"),
    )
    assert {(row["router"], row["repetition"]) for row in rows} == {
        (router, number) for router in ("laar", "round-robin") for number in (0, 1)
    }
    assert not any(row["fault"] for row in rows)
    cached = {
        router: sum(row["cached_tokens"] for row in rows if row["router"] == router)
        / sum(row["prompt_tokens"] for row in rows if row["router"] == router)
        for router in ("laar", "round-robin")
    }
    assert cached["laar"] > cached["round-robin"], "laar keeps each session at its endpoint"
    assert "laar, compared with round-robin, is better in" in output.replace("\n", " ")
    assert numbers["ratios"]["round-robin"].keys() == {*numbers["ratios"]["round-robin"]}


@pytest.mark.slow
@pytest.mark.envoy
@pytest.mark.timeout(300)
def test_all_routers_meet_a_failing_engine(tmp_path: Path) -> None:
    _, rows, numbers = raced(
        tmp_path,
        *("--with", "round-robin", "--simulate", "2", "--time-scale", "0.05", "--repeat", "1"),
        *("--seconds", "30", "--warm-up", "0", "--rate", "2", "--fault", "503@1"),
    )
    failed = {
        name: sum(bool(row["fault"]) for row in rows if row["router"] == name)
        for name in ("laar", "round-robin")
    }
    of = sum(row["router"] == "laar" for row in rows)
    assert failed["laar"] <= 0.1 * of, "the other engines answer what the failing one refuses"
    assert len(numbers["turns"]) == 2
