"""The live page in a real Chromium; skipped with install instructions if there is none."""

import logging
import os
import re
from pathlib import Path

import aiohttp
import pytest
from browser import missing, window
from watching import PROMPT, ask, settle, watched_picker

from support import eventually

pytestmark = pytest.mark.skipif(
    bool(missing()), reason=f"the page is not tested: apt-get install {missing()}"
)

HOSTILE = "<img src=x onerror=document.title='owned'>"
TAB, ENTER = "\ue004", "\ue007"


@pytest.fixture
async def page(tmp_path, chromium, monkeypatch):
    """Yield a browser and a picker that has made some decisions."""
    monkeypatch.setattr("laar.server.admin.live_page.FRAME_S", 0.0)
    endpoints = (
        ("10.9.0.1:8000", "small", "eu-west"),
        ("10.9.0.2:8000", "large", HOSTILE),
        ("10.9.0.3:8000", HOSTILE, "eu-west"),
    )
    async with (
        watched_picker(tmp_path, endpoints) as (runner, url),
        window(chromium) as browser,
    ):
        browser.url, browser.runner = url, runner
        yield browser


async def shows(browser, selector, text):
    async def there():
        return text in await browser.text(selector)

    await eventually(there, what=f"{text!r} in {selector}")


async def keep(browser, name):
    """Save a screenshot if LAAR_SCREENSHOTS names a folder."""
    if folder := os.environ.get("LAAR_SCREENSHOTS"):
        await browser.screenshot(Path(folder) / f"{name}.png")


async def test_the_page_follows_the_picker_and_every_part_has_content(page):
    first = ask(page.runner, tried="small")
    await page.open(page.url)
    await shows(page, "#link", "live")
    await shows(page, "#list", "tried small")
    await shows(page, "#list", "under way")
    settle(page.runner, first, latency_s=2.5, ttft_s=0.5, prompt_tokens=100, cached_tokens=40)
    await shows(page, "#list", "200 complete in 2.50 s, first token 0.50 s")
    await shows(page, "#figures", "0.50 s")
    await shows(page, "#predicted", "40 %")
    settle(page.runner, ask(page.runner), status=401)
    await shows(page, "#figures", "of the last 2, 1 of them 401 of ")
    await shows(page, "#retries", "2")
    assert await page.run("return document.querySelectorAll('#fleet tbody tr').length") == 3
    # Endpoints without a metrics page are only probed.
    assert "not read" not in await page.text("#fleet")
    assert await page.run("return document.querySelectorAll('#list summary rect').length") >= 10
    assert await page.run("return document.querySelectorAll('#scatter circle').length") == 1
    assert not await page.run("return document.querySelector('#problems').checkVisibility()")
    page.runner.picker.problems.report("scrape 10.9.0.1:8000", "answered 500")
    await shows(page, "#problems", "answered 500")
    page.runner.picker.problems.report("scrape 10.9.0.1:8000", None)
    await eventually(
        lambda: page.run("return document.querySelector('#problems').hidden"), what="no problem"
    )
    await keep(page, "page")
    assert await page.errors() == []


async def test_the_first_line_shows_what_is_wrong_since_when_and_for_whom(page, caplog):
    caplog.set_level(logging.INFO, "laar")
    picker = page.runner.picker
    await page.open(page.url)
    await shows(page, "#headline", "All 3 endpoints take requests")
    settle(page.runner, ask(page.runner, model="large"), status=500)
    await shows(page, "#headline", "1 of the last 1 requests failed, 1 of them 500 of large")
    picker.problems.report("endpoint 10.9.0.2:8000", "takes no requests: refuses connections")
    await shows(page, "#events", "endpoint 10.9.0.2:8000: takes no requests")
    slot = picker.table.slot("10.9.0.2:8000")
    picker.table.failures[slot] = 99
    await shows(
        page, "#headline", "large: its only endpoint is out: 10.9.0.2:8000 unreachable since"
    )
    await shows(page, "#headline", "1 of the last 1 requests failed for it")
    picker.table.failures[slot] = 0
    picker.problems.report("endpoint 10.9.0.2:8000", None)
    await shows(page, "#events", "endpoint 10.9.0.2:8000: works again")
    await shows(page, "#headline", "All 3 endpoints take requests")
    await keep(page, "headline")
    assert await page.errors() == []


async def test_names_are_shown_as_plain_text_and_prompts_are_never_shown(page):
    ask(page.runner, id=HOSTILE)
    await page.open(page.url)
    await shows(page, "#fleet", HOSTILE)
    await shows(page, "#list", " at 10.9.0.")
    await page.click("#list summary")
    await shows(page, "#list", HOSTILE)
    assert await page.run("return [document.title, document.images.length]") == ["laar", 0]
    assert PROMPT.strip() not in await page.run("return document.documentElement.outerHTML")


async def test_failures_and_problems_link_to_the_runbook(page):
    settle(page.runner, ask(page.runner), status=503)
    settle(page.runner, ask(page.runner), status=401)
    page.runner.picker.problems.report("scrape 10.9.0.1:8000", "answered 500")
    await page.open(page.url)
    await shows(page, "#failures", "503")
    await shows(page, "#failures", "401")
    await shows(page, "#failures-of", "2 of the last 2 requests")
    await shows(page, "#problems", "What to do")
    script = "return [...document.querySelectorAll('#failures a, #problems a')].map((a) => a.href)"
    links = await page.run(script)
    assert len(links) >= 3
    async with aiohttp.ClientSession() as http, http.get(f"{page.url}/runbook") as answer:
        runbook = await answer.text()
    source = await page.run("return JSON.stringify([RUNBOOK.map((each) => each[1]), OF_STATUS])")
    anchors = {link.partition("#")[2] for link in links} | set(
        re.findall(r"[a-z0-9-]{12,}", source)
    )
    assert {anchor for anchor in anchors if f'id="{anchor}"' not in runbook} == set()
    await page.open(links[0])
    assert links[0].partition("#")[0] == f"{page.url}/runbook"
    assert await page.run("return document.querySelector(':target').tagName") == "H2"


async def test_a_lost_picker_is_reported_and_a_returning_one_is_found(page, monkeypatch):
    await page.open(page.url)
    await shows(page, "#link", "live")
    with monkeypatch.context() as broken:
        broken.delattr("laar.telemetry.page_model.PageModel.frame")
        await shows(page, "#link", "connection lost")
    await shows(page, "#link", "live")


async def test_the_token_is_asked_for_in_a_form(tmp_path, chromium):
    (tmp_path / "token").write_text("let-me-look-please")
    sections = {"decisions": {"viewers_token_file": str(tmp_path / "token")}}
    async with (
        watched_picker(tmp_path, **sections) as (_, url),
        window(chromium) as browser,
    ):
        await browser.open(url)
        assert await browser.text("#fleet") == ""
        await browser.type("#token", "wrong" + ENTER)
        await shows(browser, "main", "That token is wrong.")
        await keep(browser, "token")
        await browser.type("#token", "let-me-look-please" + ENTER)
        await shows(browser, "#link", "live")
        assert await browser.run("return document.cookie") == ""
