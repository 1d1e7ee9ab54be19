"""Libraries and coding agents from npm, in front of a real Envoy: `make test-clients`."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path

import pytest

pytestmark = [pytest.mark.envoy, pytest.mark.slow, pytest.mark.timeout(600)]

CLIENTS = Path(os.environ.get("LAAR_CLIENTS", "/nowhere"))
AGENT_S = 120.0
SAY_HELLO = "Say hello."


@pytest.fixture(scope="module", autouse=True)
def clients() -> None:
    if shutil.which("node") is None or not (CLIENTS / "node_modules").is_dir():
        pytest.skip(f"no Node, or no clients in {CLIENTS}: run `make test-clients`")


async def output_of(*command: str | Path, where: Path, **env: str) -> tuple[int, str]:
    """Run a command with a home of its own; return its status and what it printed."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=where,
        env={"PATH": os.environ["PATH"], "HOME": str(where), **env},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        printed, _ = await asyncio.wait_for(process.communicate(), AGENT_S)
    except TimeoutError:
        process.kill()
        raise
    return process.returncode or 0, printed.decode(errors="replace")


def named(*packages: str) -> str:
    """Return the names and versions of packages from npm."""
    found = []
    for package in packages:
        of = json.loads((CLIENTS / "node_modules" / package / "package.json").read_text())
        found.append(f"{package} {of['version']}")
    return ", ".join(found)


async def served(gateway) -> str:
    """Start three simulated engines behind laar and Envoy; return the URL."""
    engines = [await gateway.simulated(time_scale=0.001, max_model_len=1 << 20) for _ in range(3)]
    gateway.members(*((engine.address, "m") for engine in engines))
    await gateway.picker()
    return (await gateway.envoy("standalone")).url()


async def test_javascript_libraries_get_answers_and_typed_errors(gateway, tmp_path, figure):
    url = await served(gateway)
    script = tmp_path / "libraries.mjs"
    shutil.copy(Path(__file__).with_name("libraries.mjs"), script)
    (tmp_path / "node_modules").symlink_to(CLIENTS / "node_modules")
    status, printed = await output_of("node", script, url, where=tmp_path)
    assert status == 0, printed
    told = json.loads(printed)
    of_answers = ("chat", "events", "response", "message", "deltas", "listed")
    assert min(told[of] for of in of_answers) > 0, told
    for vendor in ("openai", "anthropic"):
        assert (told[vendor]["status"], told[vendor]["code"]) == (404, "unknown-model"), told
        assert told[vendor]["id"], told
    figure(f"{named('openai', '@anthropic-ai/sdk')}: answers, typed errors", "6, 2", "6, 2")


PACKAGES = {
    "codex": "@openai/codex",
    "claude": "@anthropic-ai/claude-code",
    "qwen": "@qwen-code/qwen-code",
}
AGENTS = {
    "codex": (
        *("exec", "--skip-git-repo-check", "--sandbox", "read-only", "-m", "m"),
        *("-c", 'openai_base_url="{url}/v1"', SAY_HELLO),
    ),
    "claude": ("-p", SAY_HELLO, "--model", "m"),
    "qwen": ("-p", SAY_HELLO, "--auth-type", "openai", "-m", "m"),
}


@pytest.mark.parametrize("agent", AGENTS)
async def test_an_agent_gets_its_answer_without_its_user_noticing_laar(
    gateway, tmp_path, agent, figure
):
    command = CLIENTS / "node_modules" / ".bin" / agent
    if not command.exists():
        pytest.skip(f"{agent} is not in {CLIENTS}: npm could not install it")
    url = await served(gateway)
    keys = dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "CODEX_API_KEY"), "any")
    keys |= {"ANTHROPIC_BASE_URL": url, "OPENAI_BASE_URL": f"{url}/v1", "OPENAI_MODEL": "m"}
    given = [part.format(url=url) for part in AGENTS[agent]]
    status, printed = await output_of(command, *given, where=tmp_path, **keys)
    # Claude Code calls it an error that simulated engines write as much as they may.
    assert status == 0 or "output token maximum" in printed, printed[-3000:]
    counted = gateway.runner.picker.table.decisions
    assert counted > 0, printed[-3000:]
    assert "426" not in printed or "error" not in printed.lower(), printed[-3000:]
    figure(f"{named(PACKAGES[agent])}: requests, with an answer", f"{counted}, yes", "> 0, yes")
