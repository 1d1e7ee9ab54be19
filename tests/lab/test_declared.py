"""Experiments are declared in YAML files next to their modules."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.report import Report

TEXT = """
one:
  about: It is faster
  source: A paper, section 1
  seeds: 4
  minutes: 0.5
  takes: [data]
  claims:
    published:
      says: It is faster
      metric: seconds, ours / theirs
      asks: ratio below 8.9/13.7
      published: 8.9 s against 13.7 s
    ours:
      says: None is lost
      metric: requests lost
      asks: every below 0
      seeds: 1
"""


def run(scope: Scope) -> Report:
    raise NotImplementedError


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "package_of_one").mkdir()
    (tmp_path / "package_of_one" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "package_of_one", raising=False)
    return tmp_path / "package_of_one"


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("every below 0", "never below 0", "ours"),
        ("every below 0", "every under 0", "ours"),
        ("one:", "two:", r"declares \['two'\], module.py runs \['one'\]"),
        ("metric: requests lost", "metrics: requests lost", "metrics"),
    ],
)
def test_a_contradictory_declaration_is_rejected(
    package: Path, before: str, after: str, fault: str
) -> None:
    (package / "module.yaml").write_text(TEXT.replace(before, after))
    with pytest.raises((ValueError, TypeError), match=fault):
        declared("package_of_one.module", {"one": run})
