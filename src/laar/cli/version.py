"""Say what runs: a release, or a commit on the way to the next one.

The build (`deploy/commit.py`) runs this file too, so it imports nothing but the standard library.
"""

from __future__ import annotations

import subprocess
import tomllib
from importlib.metadata import version
from pathlib import Path

COMMIT_FILE = "commit.txt"
"""In the package of a wheel that was built from a checkout of a development version."""


def described(package: Path = Path(__file__).parents[1]) -> str:
    """Return the version; between releases also the commit, as ``0.4.0.dev0+g1a2b3c4``."""
    number, commit = version("laar"), ""
    built, project = package / COMMIT_FILE, package.parents[1] / "pyproject.toml"
    if built.is_file():
        commit = built.read_text("utf-8")
    elif package.parent.name == "src" and project.is_file():
        # The checkout of an editable installation, which may have changed since it was installed.
        number = str(tomllib.loads(project.read_text("utf-8"))["project"]["version"])
        commit = commit_of(project.parent)
    return f"{number}+g{commit}" if commit and ".dev" in number else number


def commit_of(checkout: Path) -> str:
    """Return the commit of a checkout, with ``.dirty`` if files differ; empty without git."""
    if not (checkout / ".git").exists():  # git would find a repository around it
        return ""
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty=.dirty", "--exclude=*"]
    try:
        done = subprocess.run(  # noqa: S603 - a fixed command
            command, capture_output=True, text=True, check=True, timeout=5
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
