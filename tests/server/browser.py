"""A real Chromium over the WebDriver protocol: Debian's chromium and chromium-driver packages."""

from __future__ import annotations

import asyncio
import base64
import shutil
from contextlib import asynccontextmanager

import aiohttp

from support import eventually, free_port

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
FLAGS = ("headless=new", "no-sandbox", "disable-gpu", "hide-scrollbars", "disable-dev-shm-usage")


def missing():
    """Return the packages still missing for driving a browser; empty if there are none."""
    return " and ".join(
        package
        for package, binary in (("chromium", "chromium"), ("chromium-driver", "chromedriver"))
        if shutil.which(binary) is None
    )


class Browser:
    """A browser window."""

    def __init__(self, http, session):
        self._http = http
        self.session = session

    async def _call(self, method, path, body=None):
        async with self._http.request(method, f"{self.session}{path}", json=body) as answer:
            value = (await answer.json())["value"]
            assert answer.status == 200, value
            return value

    async def open(self, url, *, width=1280, height=900):
        await self._call("POST", "/window/rect", {"width": width, "height": height})
        await self._call("POST", "/url", {"url": url})

    async def run(self, script, *args):
        """Run a JavaScript function body; return its value."""
        return await self._call("POST", "/execute/sync", {"script": script, "args": list(args)})

    async def text(self, selector):
        return await self.run(
            "return document.querySelector(arguments[0])?.innerText ?? ''", selector
        )

    async def _element(self, selector):
        found = await self._call("POST", "/element", {"using": "css selector", "value": selector})
        return found[ELEMENT]

    async def click(self, selector):
        await self._call("POST", f"/element/{await self._element(selector)}/click", {})

    async def type(self, selector, text):
        await self._call("POST", f"/element/{await self._element(selector)}/value", {"text": text})

    async def emulate(self, command, **params):
        """Send a DevTools command."""
        await self._call("POST", "/goog/cdp/execute", {"cmd": command, "params": params})

    async def errors(self):
        """Return the errors on the console."""
        log = await self._call("POST", "/se/log", {"type": "browser"})
        return [entry["message"] for entry in log if entry["level"] == "SEVERE"]

    async def screenshot(self, path):
        path.write_bytes(base64.b64decode(await self._call("GET", "/screenshot")))


@asynccontextmanager
async def browsing(directory):
    """Run a driver and a browser that can only reach this machine."""
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        "chromedriver",
        f"--port={port}",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    base = f"http://127.0.0.1:{port}"
    try:
        async with aiohttp.ClientSession() as http:

            async def ready():
                try:
                    async with http.get(f"{base}/status") as answer:
                        return (await answer.json())["value"]["ready"]
                except aiohttp.ClientError:
                    return False

            await eventually(ready, what="chromedriver")
            offline = "host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"
            arguments = [*FLAGS, offline, f"user-data-dir={directory}"]
            wanted = {
                "browserName": "chrome",
                "goog:chromeOptions": {"args": [f"--{a}" for a in arguments]},
                "goog:loggingPrefs": {"browser": "ALL"},
            }
            body = {"capabilities": {"alwaysMatch": wanted}}
            async with http.post(f"{base}/session", json=body) as answer:
                value = (await answer.json())["value"]
                assert answer.status == 200, value
            browser = Browser(http, f"{base}/session/{value['sessionId']}")
            try:
                yield browser
            finally:
                await browser._call("DELETE", "")
    finally:
        process.terminate()
        await process.wait()


@asynccontextmanager
async def window(session):
    """Open a window of a running browser, as blank as a new browser's; close it afterwards."""
    async with aiohttp.ClientSession() as http:
        browser = Browser(http, session)
        await browser.errors()  # clear errors from earlier windows
        before = await browser._call("GET", "/window")
        opened = await browser._call("POST", "/window/new", {"type": "window"})
        await browser._call("POST", "/window", {"handle": opened["handle"]})
        try:
            yield browser
        finally:
            await browser.emulate("Network.clearBrowserCookies")
            await browser._call("DELETE", "/window")
            await browser._call("POST", "/window", {"handle": before})
