"""The documentation's site builds completely, and loads nothing from other hosts."""

import importlib.util
import os
import re
import subprocess
import sys

import pytest
from docs_pages import READMES, ROOT

_LOADED = re.compile(r"<(?:script|img|iframe)[^>]*\ssrc=[\"']?(?:https?:)?//[^\s>]*")
_LINKED = re.compile(r"<link[^>]*\shref=[\"']?(?:https?:)?//[^\s>]*")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
OUTSIDE = sorted({*READMES, *ROOT.glob("*.md")})
"""Pages that are not part of the site."""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site, with warnings as errors; return its folder."""
    if importlib.util.find_spec("material") is None:
        pytest.skip("THE DOCUMENTATION WAS NOT BUILT: pip install --group docs")
    directory = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [*(sys.executable, "-m", "mkdocs", "build", "--strict"), "--site-dir", str(directory)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return directory


def test_nothing_is_loaded_from_another_host(site):
    for page in site.rglob("*.html"):
        text = page.read_text()
        assert _LOADED.findall(text) == [], page
        assert _LINKED.findall(text) == [], page


def anchors(page):
    """Return the anchors of a page's headings, as the site and GitHub make them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", OUTSIDE, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_pages_outside_the_site_are_valid(page):
    for target in _LINK.findall(page.read_text()):
        if not target.startswith(("http://", "https://")):
            name, _, anchor = target.partition("#")
            found = page.parent / name if name else page
            assert found.exists(), target
            assert not anchor or anchor in anchors(found), target
