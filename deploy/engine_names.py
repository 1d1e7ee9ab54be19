"""Collect the names that released engines read: `python deploy/engine_names.py`.

This downloads 500 MB of wheels from PyPI, one at a time, and updates two files of
`tests/protocol`. `engine_names.json` has the names of headers and of members of bodies that have a
word of `laar.protocol.reserved`. New names are `unreviewed`, and a test fails until each is moved:
to `reserved` if it tells an engine which host to contact, else to `harmless`.
`engine_routes.json` has the paths that vLLM and SGLang serve. A new one is `unreviewed` until it is
moved: to `prompts` if it makes the engine read a prompt, to `operators`, or to `others`.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from laar.protocol.reserved import _HEADER_PLACES, _MOVED, _words

PACKAGES = ("vllm", "sglang", "lmdeploy", "ai-dynamo")
NAMES = Path(__file__).parents[1] / "tests" / "protocol" / "engine_names.json"
ROUTES = NAMES.with_name("engine_routes.json")
_ROUTERS = re.compile(r"^(?:vllm|sglang/srt)/entrypoints/(?!.*(?:dp_supervisor|bootstrap_server))")
_METHODS = re.compile(r"get|post|put|delete|patch|websocket|(?:add_)?(?:api_)?(?:websocket_)?route")
_OWN = ("packages", "unreviewed")
_PLATFORMS = (35, 34, 31, 28, 17)
_READERS = re.compile(r"entrypoints|protocol|io_struct|_params\.py|_connector|/server")
_OTHERS = re.compile(r"bench|multimodal_gen|cli_args|_args\.py|/test|deepseek_v4/")
_HEADER = re.compile(r"x-[a-z0-9]+(?:-[a-z0-9]+)+", re.IGNORECASE)
_REQUESTS = re.compile(
    r"(?<!Tokenized)(?:Generate|Embedding)ReqInput|(?:Request|Ext|Params|Fields)$"
)
_GIVEN = re.compile(r"(?:transfer|disagg|kv|xargs)\w*(?:params|args|xargs)?$|^params$")


def main() -> None:
    """Update the files."""
    names, routes, packages = set[str](), set[str](), []
    for package in PACKAGES:
        with tempfile.TemporaryDirectory() as folder:
            wheel = download(package, Path(folder))
            packages.append("==".join(wheel.name.split("-")[:2]))
            names |= {name for name in names_in(wheel) if _is_suspect(name)}
            routes |= set(routes_in(wheel))
    update(NAMES, names, packages)
    update(ROUTES, routes, packages[:2])


def update(path: Path, found: set[str], packages: list[str]) -> None:
    """Write what a file has not reviewed yet."""
    known = json.loads(path.read_text()) if path.exists() else {}
    reviewed = {each for part, of in known.items() if part not in _OWN for each in of}
    known |= {"packages": packages, "unreviewed": sorted(found - reviewed)}
    path.write_text(json.dumps(known, indent=1) + "\n")
    print(f"{path.name}: {len(found)}, not reviewed: {', '.join(known['unreviewed']) or 'none'}")


def routes_in(wheel: Path) -> Iterator[str]:
    """Yield the paths that a package's servers declare."""
    for node in _nodes(wheel, _ROUTERS):
        match node:
            case ast.Call(
                func=ast.Attribute(attr=attr), args=[ast.Constant(value=str(path)), *_]
            ) if path.startswith("/") and _METHODS.fullmatch(attr):
                yield path


def _is_suspect(name: str) -> bool:
    """Return whether a name has any of the words, so that a person should look at it."""
    return not _words(name).isdisjoint(_MOVED | _HEADER_PLACES)


def download(package: str, folder: Path) -> Path:
    """Download the newest wheel for Linux."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder]
    command += ["--only-binary", ":all:", "--python-version", "3.12", "--platform", "any"]
    command += [f"--platform=manylinux_2_{version}_x86_64" for version in _PLATFORMS]
    subprocess.run([*command, package], check=True)
    return next(folder.glob("*.whl"))


def names_in(wheel: Path) -> Iterator[str]:
    """Yield names of headers and of members that a package may read."""
    for node in _nodes(wheel, _READERS):
        yield from _names_of(node)


def _nodes(wheel: Path, modules: re.Pattern[str]) -> Iterator[ast.AST]:
    with zipfile.ZipFile(wheel) as files:
        for name in files.namelist():
            if name.endswith(".py") and modules.search(name) and not _OTHERS.search(name):
                yield from ast.walk(ast.parse(files.read(name)))


def _names_of(node: ast.AST) -> Iterator[str]:
    """Yield headers, the fields of requests, and keys of objects about transfers."""
    match node:
        case ast.Constant(value=str(text)) if _HEADER.fullmatch(text):
            yield text.lower()
        case ast.ClassDef(name=name) if _REQUESTS.search(name):
            for part in node.body:
                if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                    yield part.target.id
        case (
            ast.Subscript(value=of, slice=ast.Constant(value=str(key)))
            | ast.Call(
                func=ast.Attribute(value=of, attr="get"), args=[ast.Constant(value=str(key)), *_]
            )
        ) if _GIVEN.search(ast.unparse(of)):
            yield key


if __name__ == "__main__":
    main()
