"""The site builds, is whole, and loads nothing from elsewhere."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from docs_pages import PAGES, READMES, ROOT

_LOADED = re.compile(r"<(?:script|img|iframe)[^>]*\ssrc=[\"']?(?:https?:)?//[^\s>]*")
_LINKED = re.compile(r"<link[^>]*\shref=[\"']?(?:https?:)?//[^\s>]*")
_LINK = re.compile(r"\]\(([^)\s]+)\)")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site; every warning is an error."""
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


def test_every_page_is_built(site):
    assert (site / "index.html").is_file()
    for page in ("quick-start", "concepts", "guides/vllm", "reference/settings", "design"):
        assert (site / page / "index.html").is_file()
    assert (site / "reference/settings.schema.json").is_file()


def test_nothing_is_loaded_from_another_host(site):
    for page in site.rglob("*.html"):
        text = page.read_text()
        assert _LOADED.findall(text) == [], page
        assert _LINKED.findall(text) == [], page


@pytest.mark.parametrize("page", READMES, ids=lambda page: page.parent.name)
def test_links_of_the_readmes_lead_somewhere(page):
    for target in _LINK.findall(page.read_text()):
        if not target.startswith(("http://", "https://", "#")):
            assert (page.parent / Path(target.partition("#")[0])).exists(), target


def test_every_picture_is_shown_and_taken_by_the_script():
    source = (ROOT / "docs" / "screenshots.py").read_text()
    texts = "".join(page.read_text() for page in PAGES)
    for picture in (ROOT / "docs" / "images").iterdir():
        assert f'"{picture.stem}": ' in source
        assert f"images/{picture.name})" in texts
        assert picture.stat().st_size < 300_000
