"""`laar context advise`: what keeps prompts from being cached, from the command line."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from laar.cli import app


def bodies(count):
    rules = "\n".join(f"Rule {n}: put each coin of kind {n} in its place." for n in range(30))
    for n in range(count):
        system = f"Today is 2026-10-{n % 28 + 1:02d}.\n{rules}"
        messages = [{"role": "system", "content": system}, {"role": "user", "content": f"{n}"}]
        body = {"model": "m", "messages": messages}
        yield json.dumps({"custom_id": f"{n}", "body": body} if n % 2 else body)


def test_errors_give_the_line_in_files_of_bodies_and_of_batch_entries(tmp_path):
    path = tmp_path / "bodies.jsonl"
    path.write_text("\n".join(["no json", "[1]", *bodies(20), '{"model": 1}']))
    done = CliRunner().invoke(app, ["context", "advise", str(path)])
    assert "character 9 of the system prompt: a date" in done.output
    told = CliRunner().invoke(app, ["context", "advise", "-", "--json"], path.read_text())
    assert json.loads(told.output)[0]["prompts"] == 20


def test_missing_advice_is_reported():
    few = CliRunner().invoke(app, ["context", "advise", "-"], "\n".join(bodies(5)))
    assert "no advice" in few.output
