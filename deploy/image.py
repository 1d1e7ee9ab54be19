"""Build the image: `python deploy/image.py build dist`; needs Debian's buildah and mmdebstrap.

It installs the packages of constraints.txt, verified by the hashes in deploy/image.lock. `context`
writes a build context for any other image builder. `publish` builds and pushes the image with
Docker, names it by its digest in overlays and chart, and packs the chart. `name` only sets images
there, also those of Envoy and Valkey: by digest, say, or from a registry of your own.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "deploy" / "image.lock"
EXTRAS = ("kv-events", "share", "tls")
PLATFORMS = {
    "amd64": ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64"),
    "arm64": ("manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64"),
}
IMAGES = {"laar": "laar", "envoy": "envoyproxy/envoy", "valkey": "valkey/valkey"}
"""The images of overlays and chart, as the manifests name them."""
PYTHON = "3.11"
"""Python version of the base images: Debian 12, and `python:3.11-slim-bookworm`."""

_OF_OLD_PYTHON = ("async-timeout>=4.0.3",)
"""Requirements of redis on Pythons before 3.11.3; Debian has 3.11.2."""

_BASE_PACKAGES = ("python3", "python3-venv", "ca-certificates")
_LEFT_OUT = ("/usr/share/man/*", "/usr/share/doc/*", "/usr/share/locale/*")


def main(arguments: list[str] | None = None) -> None:
    """Run one step; exit with a message if it fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    steps = parser.add_subparsers(dest="step", required=True)
    steps.add_parser("lock", help="update deploy/image.lock from constraints.txt")
    folder = steps.add_parser("context", help="write a build context for an image")
    folder.add_argument("folder", type=Path)
    folder.add_argument("--arch", action="append", choices=PLATFORMS, help="all by default")
    folder.add_argument("--wheel", type=Path, help="laar's wheel; made by default")
    build = steps.add_parser("build", help="build an OCI archive for this architecture")
    build.add_argument("dist", type=Path)
    build.add_argument("--wheel", type=Path, help="laar's wheel; made by default")
    public = steps.add_parser("publish", help="build, push and name the image; pack the chart")
    public.add_argument("image", help="REGISTRY/laar:TAG")
    public.add_argument("dist", type=Path)
    named = steps.add_parser("name", help="set the images in overlays and chart")
    named.add_argument(
        "image", nargs="+", help="REGISTRY/laar:TAG; also envoy, valkey; or by @digest"
    )
    given = parser.parse_args(arguments)
    if given.step == "lock":
        lock()
    elif given.step == "context":
        make_context(given.folder, tuple(given.arch or PLATFORMS), given.wheel)
    elif given.step == "build":
        print(make_image(given.dist, given.wheel))
    elif given.step == "publish":
        print(publish(given.image, given.dist))
    else:
        for image in given.image:
            put_name(image)


def lock() -> None:
    """Write the hashes of all wheels in the image, for every platform."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.json"
        _run(*_PIP, "install", "--quiet", "--dry-run", "--ignore-installed", "--report", report,
             "--python-version", PYTHON, "--only-binary", ":all:", "--target", directory,
             "--constraint", ROOT / "constraints.txt", *requirements())  # fmt: skip
        found = [each["metadata"] for each in json.loads(report.read_text())["install"]]
        pins = {re.sub(r"[-_.]+", "-", each["name"].lower()): each["version"] for each in found}
        hashes: dict[str, set[str]] = {name: set() for name in pins}
        for machine in PLATFORMS:
            wheels = Path(directory) / machine
            _download(wheels, machine, *(f"{name}=={version}" for name, version in pins.items()))
            for wheel in wheels.iterdir():
                name = wheel.name.partition("-")[0].lower()
                [of] = [each for each in pins if each.replace("-", "_") == name]
                hashes[of].add(hashlib.sha256(wheel.read_bytes()).hexdigest())
    lines = ["# What the image contains besides laar; written by `python deploy/image.py lock`.\n"]
    for name, version in sorted(pins.items()):
        lines.append(f"{name}=={version}")
        lines += [f" \\\n    --hash=sha256:{each}" for each in sorted(hashes[name])] + ["\n"]
    LOCK.write_text("".join(lines))


def make_context(folder: Path, machines: tuple[str, ...], wheel: Path | None) -> None:
    """Write a build context: Dockerfile, requirements and wheels."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "deploy" / "Dockerfile", folder)
    if wheel is None:
        with tempfile.TemporaryDirectory() as directory:
            _run(*_PIP, "wheel", "--quiet", "--no-deps", "--wheel-dir", directory, ROOT)
            [made] = Path(directory).glob("laar-*.whl")
            wheel = Path(shutil.copy(made, folder))
    version = wheel.name.split("-")[1]
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    own = f"laar[{','.join(EXTRAS)}]=={version} --hash=sha256:{digest}\n"
    (folder / "requirements.txt").write_text(LOCK.read_text() + own)
    for machine in machines:
        wheels = folder / f"wheels-{machine}"
        _download(wheels, machine, "--require-hashes", "--requirement", LOCK)
        shutil.copy(wheel, wheels)
    if wheel.parent == folder:
        wheel.unlink()


def make_image(dist: Path, wheel: Path | None) -> str:
    """Build and test the image as `laar-VERSION-ARCH.oci.tar` in `dist`; return its digest.

    The base consists of Debian packages, whose signatures mmdebstrap verifies. Needs root.
    """
    for tool in ("buildah", "mmdebstrap"):
        if shutil.which(tool) is None:
            sys.exit(f"{tool} is not installed: apt-get install buildah mmdebstrap")
    version = _project()["version"]
    dist.mkdir(parents=True, exist_ok=True)
    archive = dist / f"laar-{version}-{arch()}.oci.tar"
    with tempfile.TemporaryDirectory(dir=dist) as directory:
        work = Path(directory)
        make_context(work / "context", (arch(),), wheel)
        base = work / "base"
        base.mkdir()
        excluded = [f"--dpkgopt=path-exclude={each}" for each in _LEFT_OUT]
        _run("mmdebstrap", "--quiet", "--variant=minbase", *excluded,
             f"--include={','.join(_BASE_PACKAGES)}", "bookworm", base / "base.tar")  # fmt: skip
        (base / "Dockerfile").write_text("FROM scratch\nADD base.tar /\n")
        buildah = ("buildah", "--root", work / "store", "--runroot", work / "run",
                   "--storage-driver", "vfs")  # fmt: skip
        made = "--isolation=chroot", "--timestamp=0", "--quiet"
        _run(*buildah, "bud", *made, "--tag", "localhost/base", base)
        arguments = "--build-arg=BASE=localhost/base", f"--build-arg=TARGETARCH={arch()}"
        _run(*buildah, "bud", *made, *arguments, "--tag", "localhost/laar", work / "context")
        container = _run(*buildah, "from", "localhost/laar").strip()
        run = *buildah, "run", "--isolation=chroot", container, "--", "laar"
        if version not in _run(*run, "--version"):
            sys.exit("the image has another version of laar")
        _run(*run, "check", "--schema")
        archive.unlink(missing_ok=True)
        digest = work / "digest"
        _run(*buildah, "push", "--quiet", "--digestfile", digest, "localhost/laar",
             f"oci-archive:{archive.absolute()}")  # fmt: skip
        return digest.read_text().strip()


def publish(image: str, dist: Path) -> str:
    """Build, push and name the image, and pack the chart; return the image by its digest."""
    context = dist / "image"
    make_context(context, (arch(),), None)
    _run("docker", "build", f"--build-arg=TARGETARCH={arch()}", "--tag", image, context)
    _run("docker", "push", image)
    found = _run("docker", "inspect", "--format", "{{index .RepoDigests 0}}", image).strip()
    put_name(found)
    print(_run("env", "-C", ROOT, sys.executable, "-m", "deploy.chart", dist.absolute()).strip())
    return found


def arch() -> str:
    """Return this machine's architecture, as Docker names it."""
    return {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]


def put_name(image: str, root: Path = ROOT) -> None:
    """Set an image in the overlays' kustomization files and the chart's values.

    The last part of its name says which: laar, envoy or valkey.
    """
    name, at, digest = image.partition("@")
    last, _, tag = name.rpartition("/")[2].partition(":")
    name = name.removesuffix(f":{tag}") if tag else name
    if last not in IMAGES or not (digest.startswith("sha256:") or tag):
        sys.exit(f"{image}: give {', '.join(IMAGES)}, each with a tag or a digest")
    how = f"digest: {digest}" if at else f'newTag: "{tag}"'
    for path in sorted((root / "deploy" / "overlays").glob("*/kustomization.yaml")):
        text = re.sub(rf"(- name: {IMAGES[last]}\n    newName: ).*\n    (?:newTag|digest): .*",
                      rf"\g<1>{name}\n    {how}", path.read_text())  # fmt: skip
        path.write_text(text)
    path = root / "deploy" / "chart" / "values.yaml"
    if last == "laar":
        path.write_text(named_values(path.read_text(), name, tag, digest))


def named_values(values: str, name: str, tag: str, digest: str) -> str:
    """Return the chart's values with laar's image replaced; the shapes name the others."""
    for key, value in (("repository", name), ("tag", f'"{tag}"'), ("digest", f'"{digest}"')):
        values = re.sub(rf"(?m)^(  {key}: )\S+", rf"\g<1>{value}", values, count=1)
    return values


_PIP = (sys.executable, "-m", "pip")


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project


def requirements() -> list[str]:
    """Return the requirements of laar and its extras."""
    project = _project()
    optional = project["optional-dependencies"]
    extras = [each for extra in EXTRAS for each in optional[extra]]
    return [*project["dependencies"], *extras, *_OF_OLD_PYTHON]


def _download(folder: Path, machine: str, *what: object) -> None:
    """Download wheels for a platform."""
    platforms = [f"--platform={each}" for each in PLATFORMS[machine]]
    _run(*_PIP, "download", "--quiet", "--dest", folder, "--no-deps", "--only-binary=:all:",
         f"--python-version={PYTHON}", *platforms, *what)  # fmt: skip


def _run(*command: object) -> str:
    done = subprocess.run(
        [str(part) for part in command], check=False, stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} exits {done.returncode}")
    return done.stdout


if __name__ == "__main__":
    main()
