"""`laar context`: planning a batch, and advice, from the command line."""

from __future__ import annotations

import json

import orjson
import pytest
from typer.testing import CliRunner

from laar.cli import app

DOCS = {i: f'<document id="d{i}">{f"text {i} " * 60}</document>' for i in range(9)}


def line(number, ids):
    content = "\n".join(DOCS[i] for i in ids) + "\n\nWhy?"
    body = {"model": "m", "messages": [{"role": "user", "content": content}]}
    return orjson.dumps({"custom_id": f"r{number}", "body": body})


@pytest.fixture
def batch(tmp_path):
    path = tmp_path / "requests.jsonl"
    contexts = [[1, 2, 3], [7, 8, 5], [3, 1, 2], [8, 7, 5], [2, 3, 1]]
    lines = [line(i, ids) for i, ids in enumerate(contexts)]
    path.write_bytes(b"\n".join([*lines, b"no json"]) + b"\n")
    return path


def run(*arguments):
    return CliRunner().invoke(app, ["context", "plan", *map(str, arguments)])


def test_a_batch_is_written_in_sending_order_with_expected_hits(batch, tmp_path):
    figures = tmp_path / "figures.json"
    done = run(batch, "--json", figures)
    assert done.exit_code == 0, done.output
    written = (tmp_path / "requests.planned.jsonl").read_bytes().splitlines()
    assert written[-1] == b"no json"
    ids = [orjson.loads(one)["custom_id"] for one in written[:-1]]
    assert sorted(ids) == [f"r{i}" for i in range(5)]
    assert {frozenset(ids[:3]), frozenset(ids[3:])} == {
        frozenset({"r0", "r2", "r4"}),
        frozenset({"r1", "r3"}),
    }
    report = json.loads(figures.read_text())
    assert (report["requests"], report["planned"], report["left"]) == (6, 5, {"invalid_json": 1})
    assert report["hit_planned"] == pytest.approx(9 / 15)
    assert report["hit_received"] == 0.0
    assert "0.0% as received, 60.0% as planned" in done.output
    assert "invalid_json: 1" in done.output


def test_each_error_is_reported_on_one_line(batch, tmp_path):
    for arguments, text in (
        ((tmp_path / "none.jsonl",), "none.jsonl: No such file"),
        ((batch, "--out", batch), "is the input"),
        ((batch, "--json", tmp_path / "none" / "x.json"), "x.json: No such file"),
    ):
        done = run(*arguments)
        assert done.exit_code == 2
        assert text in done.output


class TestAdvise:
    @staticmethod
    def bodies(count):
        rules = "\n".join(f"Rule {n}: put each coin of kind {n} in its place." for n in range(30))
        for n in range(count):
            system = f"Today is 2026-10-{n % 28 + 1:02d}.\n{rules}"
            messages = [{"role": "system", "content": system}, {"role": "user", "content": f"{n}"}]
            body = {"model": "m", "messages": messages}
            yield json.dumps({"custom_id": f"{n}", "body": body} if n % 2 else body)

    def test_errors_give_the_line_in_files_of_bodies_and_of_batch_entries(self, tmp_path):
        path = tmp_path / "bodies.jsonl"
        path.write_text("\n".join(["no json", "[1]", *self.bodies(20), '{"model": 1}']))
        done = CliRunner().invoke(app, ["context", "advise", str(path)])
        assert "character 9 of the system prompt: a date" in done.output
        told = CliRunner().invoke(app, ["context", "advise", "-", "--json"], path.read_text())
        assert json.loads(told.output)[0]["prompts"] == 20

    def test_missing_advice_is_reported(self):
        few = CliRunner().invoke(app, ["context", "advise", "-"], "\n".join(self.bodies(5)))
        assert "no advice" in few.output
