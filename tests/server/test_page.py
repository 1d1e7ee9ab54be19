"""The live page in a real Chromium; skipped with install instructions if there is none."""

import os
import random
from pathlib import Path

import pytest
from browser import missing, window
from watching import PROMPT, ask, read, settle, watched_picker

from laar.faults import Fault
from support import eventually

pytestmark = pytest.mark.skipif(
    bool(missing()), reason=f"the page is not tested: apt-get install {missing()}"
)

HOSTILE = "<img src=x onerror=document.title='owned'>"
MARKUP = ("<script>document.title='owned'</script>", '"><svg/onload=document.title="owned">')
NAMES = (HOSTILE, *MARKUP, "__proto__", "constructor", "m" * 200, "a name" * 30, "a", "qwen3-8b")
ENTER = "\ue007"


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
    assert await page.run("return document.querySelectorAll('#fleet tbody tr').length") == 3
    # Endpoints without a metrics page are only probed.
    assert "not read" not in await page.text("#fleet")
    assert await page.run("return document.querySelectorAll('#list summary rect').length") >= 10
    assert await page.run("return document.querySelectorAll('#scatter circle').length") == 1
    assert not await page.run("return document.querySelector('#problems').checkVisibility()")
    page.runner.picker.problems.report(Fault.SCRAPE, "answered 500", "10.9.0.1:8000")
    await shows(page, "#problems", "answered 500")
    page.runner.picker.problems.report(Fault.SCRAPE, None, "10.9.0.1:8000")
    await eventually(
        lambda: page.run("return document.querySelector('#problems').hidden"), what="no problem"
    )
    await keep(page, "page")
    assert await page.errors() == []


async def test_the_first_line_says_since_when_a_model_is_full_and_what_waits(page):
    first = ask(page.runner, tried="small")
    settle(page.runner, first, status=429)
    page.runner.picker.problems.report(Fault.FULL, "its endpoints are full", first.model)
    read(page.runner, first.address, waiting=7.0, running=4.0, kv_usage=0.9)
    await page.open(page.url)
    await shows(page, "#headline", f"{first.model}: its only endpoint is full since ")
    await shows(page, "#headline", "1 of the last 1 requests failed for it.")
    await shows(page, "#headline", "7 requests wait in engines, 0 at the picker.")


async def test_names_are_shown_as_plain_text_and_prompts_are_never_shown(page):
    ask(page.runner, id=HOSTILE)
    await page.open(page.url)
    await shows(page, "#fleet", HOSTILE)
    await shows(page, "#list", " at 10.9.0.")
    await page.click("#list summary")
    await shows(page, "#list", HOSTILE)
    assert await page.run("return [document.title, document.images.length]") == ["laar", 0]
    assert PROMPT.strip() not in await page.run("return document.documentElement.outerHTML")


@pytest.mark.parametrize("number", [0, 1, 5, 50, 500])
async def test_a_fleet_of_any_size_fits_the_screen_whatever_its_names(tmp_path, chromium, number):
    rng = random.Random(number)
    fleet = [
        (f"10.9.{i // 250}.{i % 250}:8000", rng.choice(NAMES), rng.choice(NAMES))
        for i in range(number)
    ]
    listed = tmp_path / "endpoints.yaml"
    listed.write_text("endpoints: []")
    watched = watched_picker(tmp_path, fleet, endpoints_file=str(listed))
    async with watched as (runner, url), window(chromium) as browser:
        for address, _, _ in rng.sample(fleet, number * 9 // 10):
            used = {"waiting": rng.choice([0.0, 0.0, 7.0]), "kv_usage": rng.random()}
            read(runner, address, running=rng.randrange(9), **used)
        for i in range(min(number, 20)):
            settle(runner, ask(runner, id=rng.choice(NAMES)), status=rng.choice([200, 200, 500]))
            ask(runner, id=f"{i}")
        for width in (1280, 390):
            screen = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 600}
            await browser.emulate("Emulation.setDeviceMetricsOverride", **screen)
            await browser.open(url)
            await shows(browser, "#glance-of", f"{number} endpoint")
            assert await browser.run("return document.documentElement.scrollWidth") <= width
            tiles = await browser.run(
                "return [...document.querySelectorAll('#glance li')].map("
                "(e) => [e.title.split(', ')[0], e.getBoundingClientRect().toJSON()])"
            )
            assert sorted(name for name, _ in tiles) == sorted(address for address, _, _ in fleet)
            assert all(at["width"] > 9 and 0 <= at["left"] <= width - 9 for _, at in tiles)
            loaded = "[document.title, document.images.length, document.scripts.length]"
            assert await browser.run(f"return {loaded}") == ["laar", 0, 2]
            await keep(browser, f"fleet-{number}-{width}")
        assert await browser.errors() == []


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
