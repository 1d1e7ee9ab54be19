"""Outcomes reported to a running picker over HTTP and gRPC, and its state across restarts."""

import math
import time

import orjson
import pytest

from laar.accuracy.artifact import Capability, FittedCell, ModelCapability, RetryTerms, Speed
from laar.client import report_outcome, until_correct
from laar.core.decision import Completion
from laar.fleet.membership import EndpointSpec
from laar.server.admin.outcomes import MAX_BATCH, MAX_BODY_BYTES
from support import Answer, eventually, free_port, port_of
from support.requests import request_of

C = 1e-4  # seconds per token of every model here


def artifact(path, probabilities, *, spread=0.0):
    """Write an artifact of models that differ only in P(correct)."""
    cell = FittedCell(language="en", bucket=4096, task="generic", outcomes=50, correct=25)
    path.write_bytes(
        Capability(
            created="2026-01-01",
            data_sha256="0" * 64,
            outcomes=100,
            models={
                name: ModelCapability(
                    intercept=math.log(p / (1 - p)),
                    terms={},
                    mean=p,
                    regularisation=1.0,
                    cells=[cell],
                    speed=Speed(
                        seconds_per_token=C, spread_s_per_token=spread, fixed_s=0.0, samples=50
                    ),
                    chars_per_token={"en": 4.0},
                    held_out=None,
                )
                for name, p in probabilities.items()
            },
            retry=RetryTerms(),
        ).dump()
    )
    return str(path)


async def picker(gateway, models=("a", "b"), *, probabilities=None, accuracy=None, **sections):
    """Start a picker whose endpoints do not exist; the tests call its director directly."""
    gateway.members(*((f"127.0.0.1:{at}", model) for at, model in enumerate(models, start=1)))
    capability = artifact(
        gateway.directory / "capability.json", probabilities or {"a": 0.9, "b": 0.8}
    )
    # Rare readings, as nothing listens at these addresses.
    slow = {"scrape_interval_s": 60, "probe_interval_s": 600}
    runner = await gateway.picker(
        accuracy={"capability": capability, **(accuracy or {})},
        readings=slow,
        **sections,
    )
    await all_refused(runner)
    return runner


async def all_refused(runner):
    """Wait until every endpoint has refused a probe, so that none seems better than another."""
    table = runner.picker.table
    await eventually(lambda: bool((table.failures[table.active] == math.inf).all()))


def ask(
    runner,
    text="hello",
    *more,
    tried="",
    model="auto",
    chars=4000,
    stream=False,
    session="",
    **end,
):
    """Run a request from decision to end; `end` has the fields of its completion."""
    said = {"tried": tried, "stream": stream, "session": session}
    request = request_of(text, *more, model=model, question=text, chars=chars, **said)
    decision = runner.picker.director.decide(request, time.monotonic())
    end = Completion(**{"status": 200, "cause": "complete", "latency_s": 1.0, **end})
    runner.picker.director.settle(decision, end)
    return decision


async def post(gateway, http, body, **headers):
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    headers = {"content-type": "application/json", **headers}
    async with http.post(gateway.url("admin", "/outcomes"), data=data, headers=headers) as answer:
        return answer.status, orjson.loads(await answer.read())


async def get(gateway, http, path):
    async with http.get(gateway.url("admin", path)) as answer:
        assert answer.status == 200
        return await answer.text()


def believed(decision, model):
    """Return P(correct) of a model as seen by a decision."""
    view = decision.view
    specs = [view.table.spec(int(slot)) for slot in view.slots]
    return float(view.probability[[spec.models[0] for spec in specs].index(model)])


@pytest.fixture
def doubtful(monkeypatch):
    """Give the artifact's probabilities the weight of 2.5 outcomes, so that few reports suffice."""
    monkeypatch.setattr("laar.accuracy.online.KAPPA", 2.5)


async def test_posted_failures_move_the_choice_to_the_other_model(gateway, http, doubtful):
    runner = await picker(gateway)
    first = ask(runner)
    assert (first.model, believed(first, "a")) == ("a", pytest.approx(0.9))
    for made in range(1, 9):
        decision = ask(runner, f"question {made}", model="a")
        # So that both models are known to be equally fast.
        ask(runner, f"question {made}", model="b")
        status, answer = await post(gateway, http, {"decision_id": decision.id, "correct": False})
        assert (status, answer["accepted"], answer["verdicts"]) == (200, 1, ["taken"])
        last = ask(runner)
        assert believed(last, "a") == pytest.approx(10 * 0.9 / (10 + made), rel=1e-3)
        assert believed(last, "b") == pytest.approx(0.8)
    assert believed(last, "a") < believed(last, "b")
    assert last.model == "b"


async def test_outcomes_of_an_adapter_do_not_count_for_its_model(gateway, http):
    log = gateway.directory / "decisions.jsonl"
    runner = await picker(gateway, decisions={"log": str(log)})
    adapted = EndpointSpec(address="127.0.0.1:9", models=("a", "sql"), adapters=frozenset({"sql"}))
    runner.picker.table.replace("adapted", [adapted])
    for number in range(4):
        decision = ask(runner, f"question {number}", model="sql")
        retry = ask(runner, f"question {number}", model="sql", tried=decision.model)
        told = {"decision_id": retry.id, "correct": False}
        assert (await post(gateway, http, told))[1]["verdicts"] == ["taken"]
    assert believed(ask(runner), "a") == pytest.approx(0.9)
    page = await get(gateway, http, "/metrics")
    assert 'laar_retry_outcomes_total{verdict="taken"} 4.0' in page
    assert 'laar_model_prior_weight{model="sql"}' in page
    assert 'laar_model_prior_weight{model="a"}' not in page

    async def written():
        return log.exists() and len(log.read_bytes().splitlines()) == 9 + 8

    await eventually(written, what="decisions, reports, and failures that retries showed")
    models = orjson.loads(await get(gateway, http, "/models"))["models"]
    outcomes = {entry["model"]: entry["reported"]["outcomes"] for entry in models}
    assert outcomes == {"a": 0.0, "b": 0.0, "sql": pytest.approx(8.0, rel=1e-3)}


async def test_a_decision_counts_once_even_if_reported_again(gateway, http):
    runner = await picker(gateway)
    one, two = ask(runner, "one"), ask(runner, "two")
    outcomes = [
        {"decision_id": one.id, "correct": True},
        {"decision_id": one.id, "correct": True},
        {"decision_id": one.id, "correct": False},
        {"decision_id": "never-made", "correct": False},
        {"decision_id": two.id, "correct": False},
    ]
    _, answer = await post(gateway, http, {"outcomes": outcomes})
    assert answer == {
        "accepted": 2,
        "ignored": 3,
        "verdicts": ["taken", "repeated", "contradictory", "unknown", "taken"],
    }
    _, again = await post(gateway, http, {"outcomes": outcomes})
    assert again["accepted"] == 0
    assert believed(ask(runner), "a") == pytest.approx((50 * 0.9 + 1) / 52, rel=1e-3)
    page = await get(gateway, http, "/metrics")
    assert 'laar_outcomes_total{verdict="taken"} 2.0' in page
    assert 'laar_outcomes_total{verdict="unknown"} 2.0' in page


INVALID = [
    (b"nonsense", 400, "not JSON"),
    (b"", 400, "not JSON"),
    (b"[]", 400, "the body"),
    (b"{}", 400, "decision_id"),
    (b'{"decision_id":"x","correct":"yes"}', 400, "correct"),
    (b'{"decision_id":"x","correct":1}', 400, "correct"),
    (b'{"decision_id":"","correct":true}', 400, "decision_id"),
    (b'{"decision_id":"x","correct":true,"model":"a"}', 400, "model"),
    (b'{"outcomes":[{"decision_id":"x"}]}', 400, "outcomes.0.correct"),
    (
        orjson.dumps({"outcomes": [{"decision_id": "x", "correct": True}] * (MAX_BATCH + 1)}),
        400,
        "outcomes",
    ),
    (b" " * (MAX_BODY_BYTES + 1), 413, "longer"),
    (b"[" * 100_000, 400, "not JSON"),
]


async def test_invalid_reports_get_an_error_in_openais_format(gateway, http):
    await picker(gateway)
    for body, status, says in INVALID:
        got, answer = await post(gateway, http, body)
        assert got == status, body[:80]
        assert says in answer["error"]["message"], body[:80]
        assert answer["error"]["type"] == "invalid_request_error", body[:80]
        valid = {"decision_id": "x", "correct": True}
        assert (await post(gateway, http, valid))[0] == 200, body[:80]


async def test_reports_need_the_token_if_one_is_set(gateway, http):
    token_file = gateway.directory / "token"
    token_file.write_text("correct-horse\n")
    runner = await picker(gateway, accuracy={"outcomes_token_file": str(token_file)})
    outcome = {"decision_id": ask(runner).id, "correct": True}
    wrong = {"authorization": "Bearer wrong"}
    for sent in ({}, *[wrong] * 20, {"authorization": "correct-horse"}):
        status, answer = await post(gateway, http, outcome, **sent)
        assert (status, answer["error"]["type"]) == (401, "authentication_error")
    status, answer = await post(gateway, http, outcome, authorization="Bearer correct-horse")
    assert (status, answer["accepted"]) == (200, 1)
    assert "correct-horse" not in await get(gateway, http, "/config")


async def test_without_a_token_only_this_machine_can_report(gateway, http):
    host = "0.0.0.0"
    gateway.members(("127.0.0.1:1", "a"))
    runner = await gateway.picker(listen={"admin": f"{host}:{free_port()}"})
    url = f"http://127.0.0.1:{port_of(runner, 'admin')}"
    async with http.post(f"{url}/outcomes", json={"decision_id": "x", "correct": True}) as answer:
        assert answer.status == 403
        assert "accuracy.outcomes_token_file" in await answer.text()
    async with http.get(f"{url}/fleet") as answer:
        assert answer.status == 403
    async with http.get(f"{url}/metrics") as answer:
        assert answer.status == 200


# What the picker shows about models.


async def test_the_speed_of_a_model_that_became_slower_is_learned_and_shown(gateway, http):
    runner = await picker(gateway)
    runner.picker.table.lateness.on_time_until = math.inf  # although it reads 200 answers at once
    for n in range(200):
        tokens = 1000 + 250 * (n % 17)
        ask(runner, model="a", chars=4 * tokens, stream=True, ttft_s=0.2 + 3 * C * tokens)
    models = {m["model"]: m for m in orjson.loads(await get(gateway, http, "/models"))["models"]}
    speed = models["a"]["seconds_per_token"]
    assert speed["measured"] == C
    assert speed["seen"] == pytest.approx(3 * C, rel=0.3)
    assert 0 < speed["error"] < 0.2 * speed["seen"]
    assert speed["samples"] == 200
    assert models["a"]["chars_per_token"]["en"] == pytest.approx(4.0)
    assert models["a"]["fitted"] == {"outcomes": 50, "success_rate": 0.9}
    assert models["a"]["reported"]["prior_weight"] == 50
    assert models["b"]["seconds_per_token"]["seen"] is None
    page = await get(gateway, http, "/metrics")
    assert 'laar_model_seconds_per_token{model="a",source="measured"} 0.0001' in page


async def test_an_uncertain_speed_is_ignored_with_a_warning(gateway, http):
    runner = await picker(gateway)
    artifact(gateway.directory / "capability.json", {"a": 0.9, "b": 0.8}, spread=0.6 * C)
    problems = runner.picker.problems
    await eventually(lambda: "artifact" in problems, what="the warning")
    assert "gives a, b a us/token with a spread" in problems["artifact"]
    models = {m["model"]: m for m in orjson.loads(await get(gateway, http, "/models"))["models"]}
    assert models["a"]["seconds_per_token"]["measured"] is None


# Through a real Envoy.


async def chat(http, url, **headers):
    body = orjson.dumps({"model": "auto", "messages": [{"role": "user", "content": "why?"}]})
    async with http.post(
        url + "/v1/chat/completions",
        data=body,
        headers={"content-type": "application/json"} | headers,
    ) as answer:
        assert answer.status == 200
        return answer.headers


@pytest.mark.envoy
async def test_one_report_by_the_library_settles_its_earlier_retries(gateway, http):
    upstreams = {name: await gateway.upstream() for name in "ab"}
    gateway.members(*((upstream.address, name) for name, upstream in upstreams.items()))
    token = gateway.directory / "token"
    token.write_text("correct-horse")
    capability = artifact(gateway.directory / "capability.json", {"a": 0.9, "b": 0.8})
    runner = await gateway.picker(
        accuracy={"capability": capability, "outcomes_token_file": str(token)},
    )
    for name, upstream in upstreams.items():
        message = {"role": "assistant", "content": f"I am {name}"}
        upstream.default_answer = Answer(body=orjson.dumps({"choices": [{"message": message}]}))
    outcome = await until_correct(
        [{"role": "user", "content": "who?"}],
        lambda text: text == "I am b",
        base_url=(await gateway.envoy()).url(),
        session=http,
    )
    assert [attempt.model for attempt in outcome.attempts] == ["a", "b"]
    admin = gateway.url("admin", "")
    assert not await report_outcome(outcome, admin)
    assert not await report_outcome(outcome, "http://127.0.0.1:9", token="correct-horse")
    assert believed(ask(runner), "a") == pytest.approx(0.9)
    assert await report_outcome(outcome, admin, token="correct-horse")
    assert not await report_outcome(outcome, admin, token="correct-horse")
    assert believed(ask(runner), "a") == pytest.approx(50 * 0.9 / 51, rel=1e-3)
    assert believed(ask(runner), "b") == pytest.approx((50 * 0.8 + 1) / 51, rel=1e-3)


async def test_an_artifact_for_other_models_is_reported(gateway, http):
    """For example, its names are those of a model hub, and the engines serve shorter names."""
    runner = await picker(
        gateway, ("llama", "phi"), probabilities={"org/llama": 0.9, "org/phi": 0.8}
    )
    told = runner.picker.problems["artifact"]
    assert "org/llama, org/phi" in told
    assert "llama, phi" in told.replace("org/", "", 1)
    assert not runner.picker.learning.calibrated(runner.picker.table.models)
    artifact(gateway.directory / "capability.json", {"llama": 0.9})
    await eventually(lambda: "artifact" not in runner.picker.problems, what="a mended artifact")
    assert runner.picker.learning.calibrated(runner.picker.table.models)
    gateway.members(("127.0.0.1:7", "mistral"))
    await eventually(
        lambda: "mistral" in runner.picker.problems.get("artifact", ""),
        what="a new fleet",
    )
