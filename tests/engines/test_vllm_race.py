"""`laar race` on two real vLLM engines sends texts of the right length, and empties caches.

Part of `make test-vllm`; see `test_vllm_real` for what it needs. Tokens are asserted, but no times.
"""

from __future__ import annotations

import os
from statistics import fmean

import orjson
import pytest
import typer
from typer.testing import CliRunner

pytest.importorskip("tokenizers", reason="NO tokenizers HERE: install laar[tokenizers]")
from vllm_server import NEEDS_VLLM, running, write_model

from laar_lab.cli.race import race

pytestmark = [*NEEDS_VLLM, pytest.mark.timeout(1800)]

APP = typer.Typer(add_completion=False)
APP.command()(race)


def test_every_router_gets_the_same_tokens(tmp_path, monkeypatch):
    monkeypatch.setitem(os.environ, "VLLM_SERVER_DEV_MODE", "1")
    write_model(tmp_path)
    with running(tmp_path, tmp_path, 2, "--num-gpu-blocks-override", "800") as engines:
        urls = [option for engine in engines for option in ("--engines", engine.url)]
        told = [
            *urls,
            *("--with", "round-robin", "--traffic", "agents", "--sessions", "4"),
            *("--most-tokens", "3000", "--seconds", "15", "--warm-up", "0", "--repeat", "2"),
            *("--rows", str(tmp_path / "rows.jsonl"), "--json", str(tmp_path / "race.json")),
        ]
        ran = CliRunner().invoke(APP, told, catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    rows = [orjson.loads(line) for line in (tmp_path / "rows.jsonl").read_bytes().splitlines()]
    assert not any(row["fault"] for row in rows)
    assert "CACHES NOT EMPTIED" not in ran.output
    firsts: dict[tuple[int, str], list[int]] = {}
    for row in sorted(rows, key=lambda row: row["due_s"]):
        firsts.setdefault((row["repetition"], row["router"]), []).append(row["prompt_tokens"])
    for repetition in (0, 1):
        # Only the first prompts of the sessions: later ones depend on the speed of answers.
        ours, theirs = (
            sorted(firsts[repetition, router][:4]) for router in ("laar", "round-robin")
        )
        assert ours == theirs
    for router in ("laar", "round-robin"):
        cached = [row["cached_tokens"] for row in rows if row["router"] == router]
        assert fmean(cached) > 0, "later turns of a session are partly cached"
    assert all(row["completion_tokens"] > 0 for row in rows)
    assert max(row["prompt_tokens"] for row in rows) <= 3100, "texts have the length of the trace"
    numbers = orjson.loads((tmp_path / "race.json").read_bytes())
    assert len(numbers["turns"]) == 4
