"""The words that CONTRIBUTING replaces are not in what users read."""

from __future__ import annotations

import re

import pytest
from docs_pages import PAGES, ROOT

WORDS = re.compile(
    r"\b(nobody|whoever|somebody|anybody|people|lately|anew|foretold|goes by|put right|beyond hope"
    r"|what (came|became) of|what is believed)\b",
    re.IGNORECASE,
)
# Decisions and results are records of their day.
RECORDS = {"decisions", "results"}
READ = [page for page in (*PAGES, ROOT / "SECURITY.md") if not RECORDS.intersection(page.parts)]


@pytest.mark.parametrize("page", READ, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_names_components_and_outcomes(page):
    lines = page.read_text().splitlines()
    assert [f"{n}: {line}" for n, line in enumerate(lines, 1) if WORDS.search(line)] == []
