"""Check what compare.md says about other projects, in their packages at the version it names.

python docs/compare.py            run every probe, and name the projects that have moved since: a
                                  newer version is out, or pages without a package are too old
python docs/compare.py --write    write the table into compare.md
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
PAGE = HERE / "compare.md"
DATA: Mapping[str, Any] = yaml.safe_load((HERE / "compare.yaml").read_text("utf-8"))
BEGIN = "<!-- made by `python docs/compare.py --write` from compare.yaml -->\n"
END = "<!-- end -->\n"
MOST_DAYS = 60
"""Age from which a page that was read counts as moved."""


def table(data: Mapping[str, Any]) -> str:
    """Return the table in Markdown: a row for each feature, a column for each project."""
    projects = data["projects"]
    heads = []
    for each in projects.values():
        version = f" {each['version']}" if "version" in each else ""
        name = each["name"] + version
        heads.append(f"[{name}]({each['page']}), {each['read']}" if "page" in each else name)
    lines = [["", *heads], ["---"] * (len(heads) + 1)]
    lines += [
        [row["feature"], *(row[project]["is"] for project in projects)] for row in data["rows"]
    ]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines)


def written(page: str, data: Mapping[str, Any]) -> str:
    """Return the page with a new table."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{table(data)}\n{END}{rest.partition(END)[2]}"


def probes(data: Mapping[str, Any], project: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield each feature whose cell is probed in the project's package, with the cell."""
    for row in data["rows"]:
        if "file" in row[project]:
            yield row["feature"], row[project]


def fault(cell: Mapping[str, str], package: zipfile.ZipFile) -> str | None:
    """Return how the package contradicts a cell; None if the probe holds."""
    try:
        content = package.read(cell["file"])
    except KeyError:
        return f"{cell['file']} is not in the package"
    if "has" in cell and not re.search(cell["has"].encode(), content):
        return f"{cell['file']} has no {cell['has']}"
    if "lacks" in cell and (found := re.search(cell["lacks"].encode(), content)):
        return f"{cell['file']} has {found[0].decode()}"
    return None


def unread(data: Mapping[str, Any], today: date) -> Iterator[str]:
    """Yield a line for each project without a package whose pages were last read long ago."""
    for name, each in data["projects"].items():
        if "page" in each and "package" not in each:
            days = (today - each["read"]).days
            said = "; LOOK AGAIN" if days > MOST_DAYS else ""
            yield f"{name}: no package to probe, its pages were read {days} days ago{said}"


def _pip(*words: str) -> str:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *words]
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603
    return done.stdout


def _probe(name: str) -> tuple[str, str, list[str]]:
    """Probe a project's package; return its newest version, and the faults."""
    project = DATA["projects"][name]
    of = f"{project['package']}=={project['version']}"
    with tempfile.TemporaryDirectory() as directory:
        _pip("download", "-q", "--no-deps", "--only-binary", ":all:", "-d", directory, of)
        (wheel,) = Path(directory).glob("*.whl")
        with zipfile.ZipFile(wheel) as package:
            checked = [(feature, fault(cell, package)) for feature, cell in probes(DATA, name)]
    newest = re.match(r"\S+ \((.*)\)", _pip("index", "versions", project["package"]))
    faults = [f"{feature}: {text}" for feature, text in checked if text]
    return newest[1] if newest else "unknown", f"{len(checked)} probes", faults


def main() -> int:
    """Run the probes, or write the table; return the exit status."""
    if "--write" in sys.argv:
        PAGE.write_text(written(PAGE.read_text("utf-8"), DATA), "utf-8")
        return 0
    names = [name for name, each in DATA["projects"].items() if "package" in each]
    lines = list(unread(DATA, datetime.now(UTC).date()))
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    failed = any("LOOK AGAIN" in line for line in lines)
    with ThreadPoolExecutor() as pool:
        for name, (newest, count, faults) in zip(names, pool.map(_probe, names), strict=True):
            version = DATA["projects"][name]["version"]
            moved = "" if newest == version else f"; {newest} is out"
            lines = [f"{name} {version}: {count}, {len(faults)} failed{moved}", *faults]
            sys.stdout.write("\n  ".join(lines) + "\n")
            failed = failed or bool(faults) or bool(moved)
    return 3 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
