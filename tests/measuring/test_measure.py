"""`laar measure` is paced, and resumes after interruptions and in truncated files."""

from __future__ import annotations

import asyncio
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from rich.console import Console

from laar.accuracy.artifact import parse_artifact
from laar.accuracy.fitting.command import run_fit
from laar.accuracy.fitting.outcomes import MeasuredOutcome
from laar.accuracy.fitting.records import parse_records, read_records
from laar.errors import SettingError
from laar.measuring import Asking
from laar.measuring.checks import CheckSpec
from laar.measuring.measure import Counts, Target, answered_in, ask, discover, measure
from laar.measuring.questions import Question, read_questions
from laar.plugins.modes import ModeSettings
from support.scripted_fleet import completion


def question(number: int, check: dict[str, Any] | None = None) -> Question:
    return Question(
        id=f"q{number}",
        ask=lambda: [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": f"これは何 {number}?"},
        ],
        check=CheckSpec.model_validate(check or {"contains": "yes"}),
    )


def echo(number: int, body: dict[str, Any]) -> web.Response:
    asked = body["messages"][-1]["content"]
    return completion("yes" if body["model"] == "good" else f"no {asked}", prompt_tokens=11)


def outcomes_of(out: Path) -> list[MeasuredOutcome]:
    return list(parse_records([(out.read_bytes(), str(out))]).outcomes)


@pytest.mark.parametrize("stream", [True, False])
async def test_one_outcome_is_written_for_each_model_and_question(
    serve: Any, tmp_path: Path, stream: bool
) -> None:
    fleet = await serve(echo, models=("good", "bad"))
    seen: list[int] = []
    out = tmp_path / "outcomes.jsonl"
    summary = Counts()
    await measure(
        await discover([fleet.url]),
        [question(n) for n in range(5)],
        out,
        Asking(stream=stream, headers={"authorization": "Bearer k"}, max_tokens=9),
        summary,
        progress=lambda: seen.append(summary.asked),
    )
    assert summary == Counts(total=10, asked=10, correct=5)
    rows = outcomes_of(out)
    assert Counter((r.model, r.correct) for r in rows) == {("good", True): 5, ("bad", False): 5}
    for row in rows:
        assert (row.language, row.task, row.prompt_tokens) == ("ja", "generic", 11)
        assert row.prompt_chars == len("be brief" + "これは何 0?")
        assert row.latency_s > 0
        assert (row.ttft_s is not None) == stream
    assert seen == list(range(1, 11))
    assert all(b["temperature"] == 0 and b["max_tokens"] == 9 for b in fleet.bodies)
    assert all(h["authorization"] == "Bearer k" for h in fleet.headers)


async def test_a_run_resumes_after_a_truncated_file(serve: Any, tmp_path: Path) -> None:
    fleet = await serve(echo)
    target = [Target(base_url=fleet.url, model="good")]
    out = tmp_path / "outcomes.jsonl"
    await measure(target, [question(n) for n in range(3)], out)
    whole = out.read_bytes()
    out.write_bytes(whole[:-10])
    summary = await measure(target, [question(n) for n in range(5)], out)
    assert (summary.asked, summary.resumed) == (3, 2)
    read = read_records([out])
    assert sorted(r.query_id for r in read.outcomes) == [f"q{n}" for n in range(5)]
    assert read.unreadable == 1
    again = await measure(target, [question(n) for n in range(5)], out)
    assert (again.asked, again.resumed) == (0, 5)


def test_resuming_keeps_all_lines_of_a_file(tmp_path: Path) -> None:
    out = tmp_path / "o.jsonl"
    assert answered_in(out) == set()
    row = {
        "query_id": "q",
        "model": "m",
        "correct": True,
        "language": "en",
        "prompt_chars": 1,
        "latency_s": 1.0,
    }
    line = orjson.dumps(row)
    failed = orjson.dumps(row | {"query_id": "f", "correct": None, "status": 503})
    for content, added in [
        (line, b"\n"),
        (line + b"\n" + line[:9], b"\n"),
        (b"garbage\n" + line + b"\n", b""),
        (line + b'\n{"model": "m"}', b"\n"),
        (line + b"\n" + failed + b"\n", b""),
        (b"", b""),
    ]:
        out.write_bytes(content)
        assert answered_in(out) == ({("q", "m")} if content else set())
        assert out.read_bytes() == content + added


async def test_an_interruption_loses_only_what_was_in_flight(serve: Any, tmp_path: Path) -> None:
    reached = asyncio.Event()

    def script(number: int, body: dict[str, Any]) -> web.Response:
        if number == 4:
            reached.set()
            return _Silence()  # type: ignore[return-value]
        return echo(number, body)

    fleet = await serve(script)
    out = tmp_path / "outcomes.jsonl"
    target = [Target(base_url=fleet.url, model="good")]
    run = asyncio.create_task(measure(target, [question(n) for n in range(9)], out))
    async with asyncio.timeout(20):
        await reached.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert [r.query_id for r in outcomes_of(out)] == ["q0", "q1", "q2", "q3"]
    summary = await measure(target, [question(n) for n in range(9)], out)
    assert (summary.asked, summary.resumed) == (5, 4)


class _Silence(web.StreamResponse):
    """Never answers."""

    async def prepare(self, request: web.BaseRequest) -> Any:
        await asyncio.sleep(60)


async def test_requests_without_an_answer_are_recorded_and_repeated(
    serve: Any, tmp_path: Path
) -> None:
    broken = True

    def script(number: int, body: dict[str, Any]) -> web.Response:
        return web.Response(status=400, text="no") if broken else echo(number, body)

    fleet = await serve(script)
    out = tmp_path / "outcomes.jsonl"
    target = [Target(base_url=fleet.url, model="good")]
    summary = await measure(target, [question(0)], out)
    assert (summary.asked, summary.failed) == (1, 1)
    row = orjson.loads(out.read_bytes())
    assert (row["status"], row["correct"]) == (400, None)
    assert "HTTP 400" in row["error"]
    broken = False
    assert (await measure(target, [question(0)], out)).resumed == 0
    assert [r.correct for r in outcomes_of(out)] == [True]


async def test_invalid_arguments_are_reported(serve: Any, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="same id 'q1'"):
        await measure([], [question(1), question(1)], tmp_path / "o.jsonl")
    target = [Target(base_url="http://127.0.0.1:9", model="m")]
    with pytest.raises(SettingError, match="nowhere"):
        await measure(target, [question(1)], tmp_path / "nowhere" / "o.jsonl")
    with pytest.raises(SettingError, match="is it running"):
        await discover(["http://127.0.0.1:9"])
    empty = await serve(echo, models=())
    with pytest.raises(SettingError, match="is one loaded"):
        await discover([empty.url])
    unnameable = await serve(echo, models=("a,b",))
    with pytest.raises(SettingError, match="valid names"):
        await discover([unnameable.url])


async def test_an_engine_gets_one_question_at_a_time_and_none_that_are_too_long(
    tmp_path: Path,
) -> None:
    """vLLM, for example, lists a base model and its adapters, which share the engine's queue."""
    card = {"id": "m", "root": "./m", "parent": None, "max_model_len": 1000}
    adapters = [{"id": x, "root": x, "parent": "m", "max_model_len": None} for x in ("l1", "l2")]
    in_flight, most, longest = 0, 0, 0

    async def models(_request: web.Request) -> web.Response:
        return web.json_response({"data": [card, *adapters]})

    async def chat(request: web.Request) -> web.Response:
        nonlocal in_flight, most, longest
        chars = len((await request.json())["messages"][0]["content"])
        in_flight, most = in_flight + 1, max(most, in_flight + 1)
        longest = max(longest, chars)
        await asyncio.sleep(0.001)
        in_flight -= 1
        return completion("yes", prompt_tokens=chars // 2)

    def asked(number: int, chars: int) -> Question:
        content = [{"role": "user", "content": "x" * chars}]
        return Question(id=f"{number}", ask=lambda: content, check=CheckSpec(contains="yes"))

    app, out = web.Application(), tmp_path / "o.jsonl"
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/chat/completions", chat)
    async with TestServer(app) as server:
        targets = await discover([str(server.make_url(""))])
        questions = [asked(n, chars) for n, chars in enumerate((500, 1900, 2100, 30_000))]
        summary = await measure(targets, questions, out, Asking(stream=False))
    assert {(t.model, t.base, t.window_tokens) for t in targets} == {
        ("m", None, 1000), ("l1", "m", 1000), ("l2", "m", 1000)
    }  # fmt: skip
    assert most == 1
    assert (longest, summary.asked, summary.too_long, summary.failed) == (1900, 6, 6, 0)
    assert {each.base for each in outcomes_of(out) if each.model != "m"} == {"m"}


async def test_models_with_unusable_names_are_not_asked(serve: Any, tmp_path: Path) -> None:
    fleet = await serve(echo, models=("good", "", "x" * 300, "a,b"))
    summary = await measure(await discover([fleet.url]), [question(1)], tmp_path / "o.jsonl")
    assert (summary.asked, summary.correct) == (1, 1)


async def test_a_rejected_key_is_not_printed() -> None:
    async with TestServer(web.Application()) as server:
        with pytest.raises(SettingError, match="404") as raised:
            await discover(
                [str(server.make_url("/"))], headers={"authorization": "Bearer a-secret"}
            )
    shown = "".join(traceback.format_exception(raised.value))
    assert "a-secret" not in shown


def test_an_evaluation_set_is_read(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    messages = [{"role": "user", "content": "hi"}]
    lines = [
        {"id": "one", "messages": messages, "check": {"exact": "x"}, "task": "qa"},
        {"messages": messages, "check": {"number": 1, "tolerance": 0.1}},
    ]
    path.write_bytes(b"\n\n".join(map(orjson.dumps, lines)))
    one, two = read_questions(path)
    assert (one.id, one.task, one.check.exact) == ("one", "qa", "x")
    assert one.ask() == messages
    assert len(two.id) == 24
    assert two.task is None
    assert [q.id for q in read_questions(path)] == ["one", two.id]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"{", "not JSON"),
        (b"[]", "dict|object|instance"),
        (b'{"messages": [], "check": {"exact": "x"}}', "messages"),
        (b'{"messages": [{}], "check": {}}', "check"),
        (b'{"messages": [{}], "check": {"exact": "x"}, "chek": 1}', "chek"),
        (b'{"messages": [{}], "check": {"exact": "x"}, "task": "%s"}' % (b"t" * 300), "task"),
    ],
)
def test_a_bad_line_of_an_evaluation_set_is_reported(
    tmp_path: Path, line: bytes, complaint: str
) -> None:
    path = tmp_path / "set.jsonl"
    good = b'{"messages": [{"role": "user", "content": "hi"}], "check": {"exact": "x"}}\n'
    path.write_bytes(good + line)
    with pytest.raises(SettingError, match=complaint) as fault:
        list(read_questions(path))
    assert f"{path}:2" in str(fault.value)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        list(read_questions(tmp_path / "nowhere.jsonl"))


async def test_each_mode_is_asked_and_fitted_as_a_model(serve: Any, tmp_path: Path) -> None:
    def answer(number: int, body: dict[str, Any]) -> web.Response:
        return completion("no" if "effort" in body else "yes", prompt_tokens=11)

    fleet = await serve(answer, models=("m", "other"))
    modes = {
        "m": {
            "low": ModeSettings(chat={"effort": "low", "temperature": 1}),
            "unasked": ModeSettings(responses={"effort": "low"}),
        }
    }
    out, artifact = tmp_path / "outcomes.jsonl", tmp_path / "capability.json"
    asked, console = [question(n) for n in range(40)], Console(quiet=True)
    for total in (120, 0):  # the second run finds all of them answered
        counts = await asyncio.to_thread(
            ask, [fleet.url], [], asked, out, Asking(), console=console, modes=modes
        )
        assert (counts.asked, counts.total) == (total, 120)
    rows = Counter((row.model, row.base, row.correct) for row in outcomes_of(out))
    assert rows == {("m", None, True): 40, ("m:low", "m", False): 40, ("other", None, True): 40}
    sent = Counter((b["model"], b.get("effort"), b["temperature"]) for b in fleet.bodies)
    assert sent == {("m", None, 0): 40, ("m", "low", 1): 40, ("other", None, 0): 40}
    await asyncio.to_thread(run_fit, [out], out=artifact)
    fitted = parse_artifact(artifact.read_bytes(), source="").models
    assert {name: model.mean for name, model in fitted.items()} == {"m": 1, "m:low": 0, "other": 1}
