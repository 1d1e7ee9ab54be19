"""Checked-in generated code is what the sources say."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_generating_the_protocol_buffers_again_changes_nothing(tmp_path):
    (tmp_path / "laar/v1").mkdir(parents=True)
    runpy.run_path(str(ROOT / "proto/generate.py"))["generate"](tmp_path)
    made = {p.name: p.read_text() for p in (tmp_path / "laar/v1").iterdir()}
    kept = {p.name: p.read_text() for p in (ROOT / "src/laar/v1").iterdir() if p.is_file()}
    assert made == kept
