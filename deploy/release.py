"""Run the steps of a release that need no registry: `python deploy/release.py all dist`.

`.github/workflows/release.yml` runs these and then publishes; they also run on any other machine.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
import time
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]

MAX_BASE_MB = 120
"""Maximum size of a base install without pip and byte code. numpy takes 60 MB, uvloop 14."""

_SUMS = "SHA256SUMS"

_SIZE = """
from importlib.metadata import distributions
print(sum(
    path.stat().st_size
    for one in distributions() if one.name not in ("pip", "setuptools")
    for path in (one.locate_file(file) for file in one.files or ())
    if path.suffix != ".pyc" and path.is_file()
))
"""


def main(arguments: list[str] | None = None) -> None:
    """Run one step; exit with a message if it fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    steps = parser.add_subparsers(dest="step", required=True)
    version = steps.add_parser("version", help="check that a tag matches the version")
    version.add_argument("tag")
    number = steps.add_parser("set", help="write a version, such as 0.4.0 or 0.5.0.dev0")
    number.add_argument("version")
    build = steps.add_parser("build", help="wheels, source distributions and the Helm chart")
    build.add_argument("dist", type=Path)
    build.add_argument("--image", default="", help="the repository that the chart names")
    install = steps.add_parser("install", help="test laar's wheel in a clean environment")
    install.add_argument("dist", type=Path)
    install.add_argument("environment", type=Path)
    every = steps.add_parser("all", help="run all steps, for the version in pyproject.toml")
    every.add_argument("dist", type=Path)
    every.add_argument("--image", default="", help="the repository that the chart names")
    given = parser.parse_args(arguments)
    if given.step == "version":
        check_version(given.tag)
    elif given.step == "set":
        set_version(given.version)
    elif given.step == "build":
        make(given.dist, given.image)
    elif given.step == "install":
        try_out(given.dist, given.environment)
    else:
        version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
        if ".dev" not in version:
            check_version(f"v{version}")
        make(given.dist, given.image)
        try_out(given.dist, given.dist.parent / "clean")
        write_sums(given.dist)


def check_version(tag: str, root: Path = ROOT) -> None:
    """Check a tag against the pyproject.toml files and the changelog's sections."""
    laar, engine, lab = (
        tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        for folder in (root, root / "engine", root / "lab")
    )
    version = laar["version"]
    own = [each for each in lab["dependencies"] if each.startswith(("laar[", "laar-vllm"))]
    for name, each in ("engine", engine), ("lab", lab):
        if each["version"] != version or not all(one.endswith(f"=={version}") for one in own):
            raise SystemExit(
                f"{name}/pyproject.toml: set its version and that of laar to {version}"
            )
    if tag != f"v{version}":
        raise SystemExit(f"the tag is {tag}, pyproject.toml says {version}: tag v{version}")
    heads = re.findall(r"^## \[?([^\]\s]+)", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    if version not in heads:
        raise SystemExit(f"CHANGELOG.md has no section {version}: rename Unreleased")
    print(version)


def set_version(version: str, root: Path = ROOT) -> None:
    """Write a version into the packages, the chart, and where images are named."""
    if not re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+)?", version):
        raise SystemExit(f"{version}: write X.Y.Z, or X.Y.Z.dev0 after a release")
    for project in (root, root / "engine", root / "lab"):
        _replace(project / "pyproject.toml", r'^version = "|\blaar[^"]*==', r'[^"]+', version)
    chart = version.replace(".dev", "-dev")  # as Helm requires
    _replace(root / "deploy" / "chart" / "Chart.yaml", "^(?:version|appVersion): ", ".+", chart)
    pages = {*root.glob("*.md"), *root.glob("docs/**/*.md"), root / "deploy" / "Dockerfile"}
    overlays = {path for path in root.glob("deploy/overlays/**/*") if path.is_file()}
    for path in (pages | overlays) - {root / "CHANGELOG.md"}:
        _replace(path, r"\blaar[:-]|newTag: ", r"\d+\.\d+\.\d+(?:-dev\d+)?", chart)


def _replace(path: Path, before: str, old: str, new: str) -> None:
    """Replace each match of `old` that follows one of `before`."""
    text = re.sub(rf"({before}){old}", rf"\g<1>{new}", path.read_text("utf-8"), flags=re.MULTILINE)
    path.write_text(text, "utf-8")


def make(dist: Path, image: str = "") -> None:
    """Build the distributions into `dist/packages`, ready for an index, and the chart."""
    packages = dist / "packages"
    tools = _tools(dist, "build>=1.2", "twine>=6", "pyyaml>=6")
    for project in (ROOT, ROOT / "engine", ROOT / "lab"):
        _run(tools / "python", "-m", "build", "--outdir", packages, project)
    _run(tools / "twine", "check", "--strict", *sorted(packages.iterdir()))
    named = [image] if image else []
    _run(tools / "python", "-m", "deploy.chart", dist.absolute(), *named, cwd=ROOT)


def try_out(dist: Path, environment: Path) -> None:
    """Install only laar's wheel, try its first commands, and write its SBOM."""
    [wheel] = (dist / "packages").glob("laar-*.whl")
    venv.create(environment, with_pip=True)
    _run(environment / "bin" / "pip", "install", "--quiet", wheel)
    size = subprocess.run(
        [environment / "bin" / "python", "-c", _SIZE], check=True, capture_output=True, text=True
    )
    megabytes = int(size.stdout) / 1e6
    print(f"base install: {megabytes:.0f} MB")
    if megabytes > MAX_BASE_MB:
        raise SystemExit(f"a base install of {megabytes:.0f} MB is over {MAX_BASE_MB} MB")
    laar = environment / "bin" / "laar"
    for _ in range(2):
        began = time.monotonic()
        _run(laar, "--help", quiet=True)
    print(f"laar --help, warm: {time.monotonic() - began:.2f} s")
    _run(laar, "--version")
    _run(laar, "check", "--schema", quiet=True)
    tools = _tools(dist, "cyclonedx-bom>=5")
    python = environment / "bin" / "python"
    _run(tools / "cyclonedx-py", "environment", "-o", dist / "laar.cdx.json", python)


def write_sums(dist: Path) -> None:
    """Write the checksums of all files in `dist`, for `sha256sum --check`."""
    files = sorted(path for path in dist.rglob("*") if path.is_file() and path.name != _SUMS)
    sums = [f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.relative_to(dist)}\n" for p in files]
    (dist / _SUMS).write_text("".join(sums))


def _tools(dist: Path, *needs: str) -> Path:
    """Install packages into an environment next to `dist`; return its bin directory."""
    tools = dist.parent / "build-tools"
    if not tools.exists():
        venv.create(tools, with_pip=True)
    _run(tools / "bin" / "pip", "install", "--quiet", *needs)
    return tools / "bin"


def _run(*command: object, quiet: bool = False, cwd: Path | None = None) -> None:
    output = subprocess.DEVNULL if quiet else None
    done = subprocess.run([str(part) for part in command], check=False, stdout=output, cwd=cwd)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} exits {done.returncode}")


if __name__ == "__main__":
    main()
