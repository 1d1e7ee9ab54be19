"""The script that takes the documentation's pictures still works."""

from __future__ import annotations

import asyncio
import runpy
import sys
from pathlib import Path

import pytest
from docs_pages import ROOT

sys.path.insert(0, str(ROOT / "tests" / "server"))

from browser import missing

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.slow
@pytest.mark.envoy
@pytest.mark.skipif(bool(missing()), reason=f"no pictures: apt-get install {missing()}")
def test_the_pictures_are_taken_without_errors_on_the_page(tmp_path: Path) -> None:
    script = runpy.run_path(str(ROOT / "docs" / "screenshots.py"))
    asyncio.run(script["main"](tmp_path, traffic_s=10.0))
    assert {path.stem for path in tmp_path.iterdir()} == set(script["PICTURES"])
    assert all(path.read_bytes().startswith(PNG) for path in tmp_path.iterdir())
