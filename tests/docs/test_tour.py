"""The tour and the design page name existing functions, files and decisions."""

from __future__ import annotations

import re

from bench.bench_road import usual_request
from docs_pages import DOCS, ROOT

TOUR = (DOCS / "tour.md").read_text()
STOPS = re.findall(r"^\| \d+ \| `([\w/.]+)` \| `([\w.]+)` \|", TOUR, re.MULTILINE)


async def test_a_request_calls_the_functions_of_the_tour_in_order() -> None:
    assert len(STOPS) >= 14
    trail = iter(await usual_request())
    for stop in STOPS:
        assert stop in trail, f"{stop} is not called, or not after the one before"


def test_the_files_of_the_tour_exist() -> None:
    for path in re.findall(r"`([\w/]+/[\w.]+\.py)`", TOUR):
        assert any((ROOT / top / path).is_file() for top in ("src/laar", ".")), path


def test_the_design_page_lists_every_decision() -> None:
    design = (DOCS / "design.md").read_text()
    for path in (DOCS / "decisions").glob("*.md"):
        title = path.read_text().partition("\n")[0].lstrip("# ")
        assert f"* [{title}](decisions/{path.name})" in design
