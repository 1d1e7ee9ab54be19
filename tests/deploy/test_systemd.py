"""The systemd units: systemd accepts them, and starts the picker where it runs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest
import yaml

from support import eventually, free_port

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    for unit in UNITS.iterdir():
        text = re.sub(r"/(opt/laar|usr)/bin/(laar|envoy)\b", "/bin/true", unit.read_text())
        (tmp_path / unit.name.replace("@", "@0")).write_text(text)
    units = sorted(tmp_path.iterdir())
    done = subprocess.run(
        ["systemd-analyze", "verify", *units],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


async def run(*command: str | Path) -> None:
    process = await asyncio.create_subprocess_exec(*command)
    assert await process.wait() == 0


@pytest.mark.skipif(not Path("/run/systemd/system").exists(), reason="systemd is not running")
async def test_systemd_runs_the_picker_as_the_unit_says(
    http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    admin = f"127.0.0.1:{free_port()}"
    others = {name: f"127.0.0.1:{free_port()}" for name in ("ext_proc", "health")}
    settings = {
        "endpoints": [{"address": "127.0.0.1:1", "model": "m"}],
        "listen": {"admin": admin, **others},
    }
    (tmp_path / "laar.yaml").write_text(yaml.safe_dump(settings))
    own = re.findall(
        r"^\w+=.*$", (UNITS / "laar.service").read_text().partition("[Service]")[2], re.MULTILINE
    )
    elsewhere = ("Exec", "User=", "RuntimeDir", "StateDir", "WantedBy", "PrivateTmp", "ProtectHome")
    properties = [f"--property={each}" for each in own if not each.startswith(elsewhere)]
    scope = ["--user"] if os.geteuid() else []
    unit, laar = f"laar-test-{os.getpid()}", Path(sys.executable).with_name("laar")
    command = ["systemd-run", *scope, "--collect", f"--unit={unit}", *properties]
    await run(*command, laar, "serve", "-c", tmp_path / "laar.yaml")

    async def lives() -> bool:
        with contextlib.suppress(aiohttp.ClientError):
            async with http.get(f"http://{admin}/healthz") as answer:
                return answer.status == 200
        return False

    try:
        await eventually(lives)
    finally:
        await run("systemctl", *scope, "stop", unit)
    assert not await lives()
