"""Checked-in generated code matches its sources, and the Makefile names existing folders."""

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_generated_protocol_buffers_are_up_to_date(tmp_path):
    (tmp_path / "laar/wire").mkdir(parents=True)
    runpy.run_path(str(ROOT / "proto/generate.py"))["generate"](tmp_path)
    made = {p.name: p.read_text() for p in (tmp_path / "laar/wire").iterdir()}
    kept = {p.name: p.read_text() for p in (ROOT / "src/laar/wire").iterdir() if p.is_file()}
    assert made == kept


def test_the_folders_used_by_make_targets_exist():
    lists = re.findall(
        r"^(?:QUICK|COVERED) := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE
    )
    names = {name for each in lists for name in each.split()}
    assert len(lists) == 2
    assert [name for name in sorted(names) if not (ROOT / "tests" / name).is_dir()] == []
