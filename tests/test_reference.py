"""The reference pages match the code, and describe everything."""

import re
import runpy
from pathlib import Path

import pytest

from laar.settings import Settings

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
RUNBOOK = "../../src/laar/server/admin/page/runbook.html"


@pytest.fixture(scope="module")
def generator():
    return runpy.run_path(str(FOLDER / "generate.py"))


@pytest.mark.parametrize(
    "name",
    ["settings.md", "metrics.md", "python-api.md", "stream.md", "settings.schema.json", RUNBOOK],
    ids=lambda name: Path(name).name,
)
def test_a_reference_page_is_up_to_date(generator, name):
    remedy = "run `python docs/reference/generate.py`"
    assert (FOLDER / name).read_text() == generator["PAGES"][name](), remedy


def test_no_markup_is_left_in_the_runbook():
    assert not re.search(r"```|\]\(|\*\*", (FOLDER / RUNBOOK).read_text())


def undescribed(model, generator, path=""):
    for name, field in generator["_fields"](model).items():
        below = generator["_nested"](field.annotation)
        if not field.description and below is None:
            yield f"{path}{name}"
        if below is not None:
            yield from undescribed(below, generator, f"{path}{name}.")


def test_every_setting_is_described(generator):
    assert list(undescribed(Settings, generator)) == []


def test_every_metric_has_laars_prefix_and_a_description():
    rows = (FOLDER / "metrics.md").read_text().split("| --- | --- | --- | --- |\n")[1].splitlines()
    assert len(rows) > 30
    for row in rows:
        _, name, _, _, told, _ = row.split(" | ") if row.count(" | ") == 5 else row.split("|")
        assert name.strip().startswith("`laar_")
        assert told.strip().endswith("."), row


def test_a_section_below_a_list_is_found():
    page = (FOLDER / "settings.md").read_text()
    assert "## `endpoints[]`" in page
    assert "| `flow.max_requests` | whole number, >= 1, <= 100000 | `256` |" in page
