"""The page's table of routers is generated from data, and each cell has evidence."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.scripts import module_of

DOCS = Path(__file__).parents[2] / "docs"
compare = module_of(DOCS / "compare.py")


def test_the_page_contains_the_generated_table() -> None:
    page = (DOCS / "compare.md").read_text("utf-8")
    assert compare.written(page, compare.DATA) == page


def test_each_cell_has_evidence() -> None:
    projects = compare.DATA["projects"]
    for row in compare.DATA["rows"]:
        assert row.keys() == {"feature", *projects}
        for name, project in projects.items():
            cell = row[name]
            if "file" in cell:
                assert "package" in project
                assert len({"has", "lacks"} & cell.keys()) == 1
            elif "page" in cell:
                assert cell["page"].startswith("https://")
                assert "read" in project
            else:
                assert (DOCS / cell["see"]).is_file()


@pytest.mark.slow  # downloads five packages
def test_every_probe_holds() -> None:
    for name, project in compare.DATA["projects"].items():
        if "package" in project:
            _newest, _count, faults = compare._probe(name)
            assert not faults, name
