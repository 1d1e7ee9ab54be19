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
    monkeypatch.setattr("laar.server.admin.feed.INTERVAL_S", 0.1)
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


async def test_the_last_hour_and_the_shares_of_traffic_are_drawn(page):
    history = page.runner.picker.observability.history
    picker, clock = page.runner.picker, page.runner.picker.clock
    began = clock()
    for minute in range(10):
        picker.clock = lambda at=began - 600 + 60 * minute: at
        for number in range(4):
            decision = ask(page.runner, model="small")
            settle(page.runner, decision, ttft_s=0.2 + 0.1 * minute, status=500 if number else 200)
    picker.clock = clock
    assert len([v for v in history.curves(clock())["ttft_s"] if v is not None]) == 10
    await page.open(page.url)
    await shows(page, "#hour", "Time to first token")
    await shows(page, "#hour", "between 0.20 s and 1.10 s")
    await shows(page, "#hour", "Time to a correct answer: not measured yet")
    assert await page.run("return document.querySelectorAll('#hour polyline').length") >= 3
    await shows(page, "#shares", "100 %")
    await shows(page, "#uncalibrated", "laar calibrate")
    assert await page.run("return document.querySelectorAll('#heat li').length") == 3
    await keep(page, "hour")
    assert await page.errors() == []


async def test_fleet_and_decisions_can_be_filtered(page):
    wrong = ask(page.runner, model="small")
    settle(page.runner, wrong, status=500, cause="reset")
    for _ in range(20):
        settle(page.runner, ask(page.runner, model="large"))
    await page.open(page.url)
    await shows(page, "#fleet", "10.9.0.3")
    await page.type("#fleet-find", "LARGE")
    rows = "return document.querySelectorAll('#fleet tbody tr').length"
    await eventually(lambda: page.run(f"{rows} === 1"), what="one endpoint")
    items = "return [...document.querySelectorAll('#list details')].map((d) => d.dataset.id)"
    assert wrong.id not in await page.run(items)
    await page.run(
        "const k = document.querySelector('#filter-kind'); k.value = 'failed';"
        "k.dispatchEvent(new Event('input', { bubbles: true }))"
    )
    await shows(page, "#filter-note", "1 of the 21 remembered decisions")
    assert await page.run(items) == [wrong.id]
    await page.type("#filter-text", "large")
    await shows(page, "#filter-note", "0 of the 21 remembered decisions")


async def test_a_pasted_request_can_be_explained(page):
    await page.open(page.url)
    await page.type(
        "#ask-body", '{"model": "large", "messages": [{"role": "user", "content": "Hi"}]}'
    )
    await page.type("#ask-tried", "large, large, large")
    await page.click("#ask button")
    await shows(page, "#answer", "large at 10.9.0.2:8000")
    await shows(page, "#answer", "tried large x3")
    assert page.runner.picker.observability.memory.decided_total == 0
    await page.run("document.querySelector('#ask-body').value = ''")
    await page.type("#ask-body", "{}")
    await page.click("#ask button")
    await shows(page, "#ask-note", "400: ")


async def test_weights_and_settings_are_shown_without_secrets(page):
    await page.open(page.url)
    for text in ("routing.k_rtt", "listen.admin", "laar.yaml:"):
        await shows(page, "#settings", text)


async def test_names_are_shown_as_plain_text_and_prompts_are_never_shown(page):
    ask(page.runner, id=HOSTILE)
    await page.open(page.url)
    await shows(page, "#fleet", HOSTILE)
    await shows(page, "#list", " at 10.9.0.")
    await page.click("#list summary")
    await shows(page, "#list", HOSTILE)
    assert await page.run("return [document.title, document.images.length]") == ["laar", 0]
    assert PROMPT.strip() not in await page.run("return document.documentElement.outerHTML")


async def test_an_open_decision_stays_while_new_ones_arrive(page):
    first = ask(page.runner)
    await page.open(page.url)
    await shows(page, "#list", "under way")
    await page.click("#list summary")
    await shows(page, "#list details", f"Decision {first.id}")
    assert "Rank" in await page.text("#list details table")
    for _ in range(15):
        ask(page.runner)
    await shows(page, "#decisions-title", "held while the pointer is on them")
    assert await page.run("return document.querySelectorAll('#list > li').length") == 1
    await page.click("#retries-title")
    selector = f"details[data-id='{first.id}']"
    await eventually(
        lambda: page.run("return document.querySelectorAll('#list > li').length >= 13"),
        what="the new decisions",
    )
    assert await page.run("return document.querySelector(arguments[0]).open", selector)
    settle(page.runner, first)
    await page.run("document.querySelector('#pause').focus()")
    assert await page.run("return document.querySelector(arguments[0]).open", selector)


async def test_a_decision_can_be_looked_up_by_its_id(page):
    wanted = ask(page.runner, model="large")
    await page.open(page.url)
    await page.type("#id", wanted.id)
    await page.click("#find button")
    await shows(page, "#found", "large at 10.9.0.2:8000 was the only candidate")
    assert "does not serve large" in await page.text("#found")
    await page.type("#id", "-unknown")
    await page.press(ENTER)
    await shows(page, "#find-note", "no decision has this id")
    assert await page.text("#found") == ""


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


async def test_a_url_opens_the_page_at_a_decision_or_at_a_time(page):
    first = ask(page.runner)
    settle(page.runner, first)
    earlier = page.runner.picker.observability.memory.get(first.id)
    earlier.time_s -= 1000.0
    later = ask(page.runner)
    await page.open(f"{page.url}/#decision={first.id}")
    await shows(page, "#found", first.id)
    [link] = await page.run(
        "return [...document.querySelectorAll('#found a')].map((a) => a.href)"
        ".filter((to) => to.includes('until'))"
    )
    shown = "return [...document.querySelectorAll('#list details')].map((d) => d.dataset.id)"
    await page.open("about:blank")
    await page.open(link)
    await shows(page, "#filter-note", "up to ")

    async def only_the_first():
        return await page.run(shown) == [first.id]

    await eventually(only_the_first, what="the decisions up to then")
    await page.click("#filter-note a")

    async def both():
        return set(await page.run(shown)) == {first.id, later.id}

    await eventually(both, what="the current decisions")
    until = f"{page.url}/decisions?until=soon"
    async with aiohttp.ClientSession() as http, http.get(until) as answer:
        assert answer.status == 400


async def test_sessions_are_shown_once_there_are_any(page):
    await page.open(page.url)
    await shows(page, "#link", "live")
    assert await page.run("return document.querySelector('#sessions').hidden")
    place = {"endpoint": "10.9.0.1:8000", "tokens": 9000, "busy": 0, "idle_s": 12.0}
    place["reread_s"] = 3.5
    page.runner.picker.admission.shown = lambda _now: {
        "counts": {"placed": 1, "waiting": 1},
        "inside": [{"session": HOSTILE, **place}],
        "waiting": [{"session": "second", "tokens": 70_000, "waited_s": 5.0}],
    }
    await page.open(page.url)
    await shows(page, "#sessions-of", "1 with a place in a cache, 1 waiting for a place")
    text = await page.text("#sessions tbody")
    assert text.split() == [
        *("second", "waits", "-", "70k", "5.00", "s", "-"),
        *HOSTILE.split(),
        *("idle", "10.9.0.1:8000", "9000", "12.00", "s", "3.50", "s"),
    ]


BROKEN_WORDS = """
const broken = [];
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let text; (text = texts.nextNode());) {
  if (!text.parentElement.closest('thead th')) continue;
  for (const word of text.data.matchAll(/\\S+/g)) {
    const range = new Range();
    range.setStart(text, word.index);
    range.setEnd(text, word.index + word[0].length);
    if (range.getClientRects().length > 1) broken.push(word[0]);
  }
}
return broken;
"""


async def test_every_table_fits_a_typical_screen(page):
    for _ in range(3):
        settle(page.runner, ask(page.runner, tried="small"), status=503)
    await page.emulate(
        "Emulation.setDeviceMetricsOverride",
        width=1280, height=800, deviceScaleFactor=1, mobile=False,
    )  # fmt: skip
    await page.open(page.url)
    await shows(page, "#list", " at 10.9.0.")
    await page.click("#list summary")
    await keep(page, "usual")
    cut = await page.run(
        "return [...document.querySelectorAll('.scroll')].filter((e) => e.checkVisibility()"
        " && e.scrollWidth > e.clientWidth).map((e) => `${e.ariaLabel ?? ''}"
        " ${e.getAttribute('aria-labelledby')} ${e.scrollWidth} > ${e.clientWidth}`)"
    )
    assert cut == []
    assert await page.run(BROKEN_WORDS) == []


async def test_pausing_freezes_the_page(page):
    await page.open(page.url)
    await shows(page, "#link", "live")
    await page.click("#pause")
    await shows(page, "#link", "paused")
    ask(page.runner)
    made = page.runner.picker.observability.feed._newest
    await eventually(lambda: page.runner.picker.observability.feed._newest != made, what="a frame")
    assert "No decision yet" in await page.text("#list")
    await page.click("#pause")
    await shows(page, "#list", " at 10.9.0.")


async def test_everything_is_reachable_by_keyboard_and_focus_survives_updates(page):
    ask(page.runner)
    await page.open(page.url)
    await shows(page, "#list", "under way")
    reached = []
    for _ in range(16):
        await page.press(TAB)
        reached.append(
            await page.run(
                "const e = document.activeElement;"
                "return e.id || e.className || e.tagName.toLowerCase()"
            )
        )
    assert reached[0] == "skip"
    parts = {"pause", "fleet-find", "filter-text", "filter-kind", "id", "button", "scroll"}
    assert {*parts, "summary", "ask-body"} <= set(reached)
    await page.run("document.querySelector('#list summary').focus()")
    await page.press(ENTER)
    assert await page.run("return document.querySelector('#list details').open")
    for _ in range(2):
        made = page.runner.picker.observability.feed._newest
        await eventually(
            lambda m=made: page.runner.picker.observability.feed._newest != m, what="a frame"
        )
    assert await page.run("return document.activeElement.tagName") == "SUMMARY"


CONTRAST = """
const rgb = (text) => text.match(/[0-9.]+/g).map(Number);
const light = (c) => c.slice(0, 3).map((v) => v / 255)
  .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const ground = (e) => {
  for (; e; e = e.parentElement) {
    const c = rgb(getComputedStyle(e).backgroundColor);
    if (c.length < 4 || c[3] > 0) return c;
  }
};
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
const low = [];
while (walk.nextNode()) {
  const e = walk.currentNode.parentElement;
  const drawn = e.checkVisibility() && !e.closest('[aria-hidden], svg');
  if (!walk.currentNode.data.trim() || !drawn) continue;
  const [a, b] = [light(rgb(getComputedStyle(e).color)), light(ground(e))].sort((x, y) => y - x);
  if ((a + 0.05) / (b + 0.05) < 4.5) low.push(walk.currentNode.data.trim().slice(0, 40));
}
return low;
"""


@pytest.mark.parametrize(("scheme", "pixels"), [("light", 320), ("dark", 390)])
async def test_the_page_is_readable_on_a_phone_in_light_and_dark_mode(page, scheme, pixels):
    for _ in range(3):
        settle(page.runner, ask(page.runner, tried="small"))
    await page.emulate(
        "Emulation.setDeviceMetricsOverride",
        width=pixels, height=844, deviceScaleFactor=2, mobile=True,
    )  # fmt: skip
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    await page.emulate("Emulation.setEmulatedMedia", features=features)
    await page.open(page.url)
    await shows(page, "#list", " at 10.9.0.")
    await page.click("#list summary")
    await keep(page, f"phone-{scheme}")
    width = await page.run("return [document.documentElement.scrollWidth, innerWidth]")
    assert width == [pixels, pixels]
    assert await page.run(CONTRAST) == []
    ground = await page.run("return getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(251, 251, 250)") == (scheme == "light")


async def test_everything_has_a_name_for_screen_readers(page):
    ask(page.runner)
    await page.open(page.url)
    await shows(page, "#list", " at 10.9.0.")
    unnamed = await page.run(
        """
        const name = (e) => e.getAttribute('aria-label') || e.textContent.trim()
          || [...(e.labels ?? [])].map((l) => l.textContent).join('')
          || document.getElementById(e.getAttribute('aria-labelledby'))?.textContent;
        const all = 'button, input, select, textarea, form[role], summary, section, '
          + '[role=region], svg[role=img]';
        return [...document.querySelectorAll(all)]
          .filter((e) => !name(e)).map((e) => e.outerHTML.slice(0, 80));
        """
    )
    assert unnamed == []
    heads = "return [...document.querySelectorAll('th')].every((th) => th.scope && th.textContent)"
    assert await page.run(heads)
    assert await page.run("return document.documentElement.lang") == "en"
    levels = await page.run(
        "return [...document.querySelectorAll('h1, h2, h3')].map((h) => h.tagName)"
    )
    assert levels[0] == "H1"
    assert set(levels[1:]) == {"H2"}


async def test_a_lost_picker_is_reported_and_a_returning_one_is_found(page, tmp_path):
    await page.open(page.url)
    await shows(page, "#link", "live")
    page.runner.picker.observability.feed.end_streams()
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


async def test_an_open_page_asks_for_the_token_after_it_was_replaced(
    tmp_path, chromium, monkeypatch
):
    """Retries with the old token once locked out the page's address, which others shared."""
    monkeypatch.setattr("laar.server.admin.port.TOKENS_S", 0.05)
    token = tmp_path / "token"
    token.write_text("let-me-look-please")
    async with (
        watched_picker(tmp_path, decisions={"viewers_token_file": str(token)}) as (_, url),
        window(chromium) as browser,
        aiohttp.ClientSession() as http,
    ):
        await browser.open(url)
        await browser.type("#token", "let-me-look-please" + ENTER)
        await shows(browser, "#link", "live")
        token.write_text("a-token-of-today")
        await shows(browser, "main", "Token (decisions.viewers_token_file)")
        today = {"authorization": "Bearer a-token-of-today"}
        async with http.get(f"{url}/fleet", headers=today) as answer:
            assert answer.status == 200


async def test_the_page_shows_what_another_policy_would_choose(tmp_path, chromium):
    routing = {"compare": "least-loaded", "compare_share": 1.0}
    async with (
        watched_picker(tmp_path, routing=routing) as (runner, url),
        window(chromium) as browser,
    ):
        settle(runner, ask(runner))
        await browser.open(url)
        await shows(browser, "#compared", "least-loaded would choose another endpoint for 0 of 1")


async def test_in_shadow_mode_the_page_shows_agreement(tmp_path, chromium):
    async with (
        watched_picker(tmp_path, routing={"mode": "shadow"}) as (runner, url),
        window(chromium) as browser,
    ):
        for other in (False, True, False, False):
            decision = ask(runner, shadow=True)
            address = decision.address
            if other:
                address = next(
                    s.address for s in runner.picker.table.specs() if s.address != address
                )
            runner.picker.director.served_by(decision, address, runner.picker.clock())
            settle(runner, decision)
        await browser.open(url)
        await shows(browser, "#about", "shadow")
        await shows(browser, "#shadow", "Agreed in 3 of 4 (75 %).")
