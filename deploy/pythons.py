"""Run tests on the other Python versions that pyproject.toml claims: `make test-pythons`.

Each version has an environment `.venv-X.Y`, pinned by constraints.txt. Versions not installed on
this machine are reported at the end; no interpreter is downloaded.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]

TESTS = [
    *("accuracy", "cli", "core", "datalayer", "envoy", "explain", "flow", "health", "policies"),
    *("prefix", "protocol", "settings", "sharing", "telemetry"),
    *(f"server/test_{name}.py" for name in ("gateway", "share_tls", "tls", "ways", "wire")),
]
"""Tests of code that depends on the interpreter: parsers, TLS, asyncio, numbers."""

_PLACES = (".pyenv/versions/{}.*/bin/python", ".local/share/uv/python/cpython-{}.*/bin/python3")


def claimed() -> list[str]:
    """Return the versions that pyproject.toml claims, except the running one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = (re.fullmatch(r"Programming.*:: (3\.\d+)", line) for line in project["classifiers"])
    own = f"3.{sys.version_info.minor}"
    return [each[1] for each in found if each is not None and each[1] != own]


def interpreter(version: str) -> str:
    """Return the interpreter for a version; empty if not installed."""
    places = [str(path) for place in _PLACES for path in Path.home().glob(place.format(version))]
    for command in (f"python{version}", *sorted(places)):
        try:
            said = subprocess.run([command, "-V"], capture_output=True, text=True, check=False)
        except OSError:
            continue
        if said.returncode == 0 and said.stdout.startswith(f"Python {version}."):
            return command
    return ""


def install(command: str, environment: Path) -> None:
    """Create an environment like the Makefile's `.venv`, unless it exists."""
    done = environment / ".installed"
    if done.exists():
        return
    pip = environment / "bin" / "pip"
    for step in (
        [command, "-m", "venv", environment],
        [environment / "bin" / "python", "-m", "pip", "install", "-q", "--upgrade", "pip>=25.1"],
        [pip, "install", "-q", "-c", "constraints.txt", "-e", ".[all]", "-e", "engine", "-e", "lab",
         "--group", "dev", "--group", "docs"],
    ):  # fmt: skip
        subprocess.run(step, cwd=ROOT, check=True)
    done.touch()


def main() -> None:
    """Run the tests on each version; exit with 1 on failures, not for missing interpreters."""
    failed, absent = [], []
    for version in claimed():
        command = interpreter(version)
        if not command:
            absent.append(f"{version}: this machine has no such interpreter")
            continue
        environment = ROOT / f".venv-{version}"
        try:
            install(command, environment)
        except subprocess.CalledProcessError as fault:
            absent.append(f"{version}: it could not be installed ({fault})")
            continue
        print(f"== Python {version}", flush=True)
        pytest = [environment / "bin" / "pytest", "-q", "-n", "4", "--dist", "worksteal"]
        only = ["-m", "not slow and not vllm", "--ignore", "tests/accuracy/fitting"]
        paths = [f"tests/{each}" for each in TESTS]
        if subprocess.run([*pytest, *only, *paths], cwd=ROOT, check=False).returncode:
            again = ["--last-failed", "--last-failed-no-failures", "none"]
            alone = [pytest[0], "-q", *again, *only, *paths]
            if subprocess.run(alone, cwd=ROOT, check=False).returncode:
                failed.append(version)
    for why in absent:
        print(f"!! NOT TESTED on Python {why}")
    if failed:
        sys.exit(f"tests fail on Python {', '.join(failed)}")


if __name__ == "__main__":
    main()
