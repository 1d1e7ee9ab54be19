"""Check whether stored numbers still match the code, by rerunning each run's first seed.

The lab is deterministic: the same code gives the same numbers to the last digit, so the first seed
stands for the others. If all its numbers match the stored ones, the run is considered valid for the
current code; otherwise it is stale and must be repeated. The check runs the first seed alone, so it
compares with what this seed gave alone when the run was made.

On the same assumption, a stale run can be repeated in part: `laar_lab.suite.runs.run_screened`
reuses the stored numbers of policies whose first seeds are unchanged.

Matrix products are rounded differently on different kinds of CPU, which changes some choices
between nearly equal endpoints. On CPUs with AVX-512, workers use the kernels that the stored
numbers used.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import xxhash

from laar_lab.claims import Evidence
from laar_lab.digits import TOLERANCE, same
from laar_lab.experiment import Experiment, Scope
from laar_lab.results import Checked, Stored
from laar_lab.sweep import PACKAGES

_POLICIES = ("laar.policies", "laar_lab.policies")
"""Code that imports the first may load policies by name, also from the second, a plug-in."""

_DATA = (".yaml", ".json", ".txt")


def digest_of_code(experiment: Experiment, packages: tuple[Path, ...] = PACKAGES) -> str:
    """Return a digest of the code that an experiment's run reaches.

    It covers the experiment's module, all its direct and indirect imports, and the data files next
    to them, but not layout, docstrings, comments or constants in `raise` statements. Declarations
    of experiments are left out, because claims are judged after a run.
    """
    roots = {package.name: package for package in packages}
    reached = _reached((experiment.run.__module__,), roots)
    if _file(_POLICIES[0], roots) in reached:
        reached |= _reached(_POLICIES, roots)
    rooms = {path.parent for path in reached}
    digest = xxhash.xxh3_64()
    for package in packages:
        for path in sorted(package.rglob("*.*")):
            if path in reached:
                digest.update(f"{path.relative_to(package)} {_code(path)}".encode())
            elif path.suffix in _DATA and _room(path) in rooms and not _declares(path):
                digest.update(path.read_bytes())
    return digest.hexdigest()


def _reached(modules: Iterable[str], roots: Mapping[str, Path]) -> set[Path]:
    """Return the files of these modules, of their parent packages, and of all that they import."""
    found: set[Path] = set()
    left = list(modules)
    while left:
        name = left.pop()
        path = _file(name, roots)
        if path is not None and path not in found:
            found.add(path)
            left += _imported(path)
            left += [name.rpartition(".")[0]] if "." in name else []
    return found


def _file(module: str, roots: Mapping[str, Path]) -> Path | None:
    root, *parts = module.split(".")
    if root not in roots:
        return None
    path = roots[root].joinpath(*parts)
    paths = (path / "__init__.py", path.with_suffix(".py"))
    return next((each for each in paths if each.is_file()), None)


@cache
def _imported(path: Path) -> tuple[str, ...]:
    """Return all imported names, of modules and of their attributes."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names += [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
    return tuple(names)


def _room(path: Path) -> Path:
    """Return the directory of the package that contains a data file."""
    return next(each for each in path.parents if (each / "__init__.py").is_file())


def _declares(path: Path) -> bool:
    """Return whether a data file declares the experiments in the module of the same name."""
    return path.with_suffix(".py").is_file()


@cache
def _code(path: Path) -> str:
    tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            node.body = [each for each in body if not _is_text(each)]  # type: ignore[attr-defined]
        elif isinstance(node, ast.Raise):
            for each in ast.walk(node):
                if isinstance(each, ast.Constant):
                    each.value = None
    return ast.dump(tree)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def check(experiment: Experiment, stored: Stored, data: Path | None, commit: str) -> Stored:
    """Rerun a stored run's first seed; return the run with the result of the check."""
    known = {**first_numbers(stored.evidence), **stored.first}
    differ = differing(known, _first_alone(experiment, stored, data))
    return _checked(experiment, stored, commit, len(known), differ)


def just_made(experiment: Experiment, stored: Stored, data: Path | None) -> Stored:
    """Return a run that was just made, marked as valid for the current code.

    The first seed runs once more, alone, so that later checks can compare with it: numbers that
    depend on a mean over all seeds, such as the choice of the best rival, may differ.
    """
    known = first_numbers(stored.evidence)
    otherwise = differing(known, _first_alone(experiment, stored, data))
    first = {name: float(alone) for name, (_, alone) in otherwise.items()}  # may be NumPy's
    return _checked(experiment, replace(stored, first=first), stored.commit, len(known | first), {})


def _first_alone(experiment: Experiment, stored: Stored, data: Path | None) -> dict[str, float]:
    taken = data if "--data" in stored.command.split() else None
    scope = Scope(seeds=(stored.first_seed,), data=taken)
    return first_numbers(experiment.run(scope).evidence)


def _checked(
    experiment: Experiment,
    stored: Stored,
    commit: str,
    numbers: int,
    differ: Mapping[str, tuple[float, float]],
) -> Stored:
    worst = max(differ, key=lambda name: _gap(*differ[name]), default="")
    checked = Checked(
        code=digest_of_code(experiment),
        commit=commit,
        date=datetime.now(UTC).date().isoformat(),
        numbers=numbers,
        differ=len(differ),
        worst=worst and "{}: {:.4g}, now {:.4g}".format(worst, *differ[worst]),
    )
    return replace(stored, checked=checked)


def of_other_code(experiment: Experiment, stored: Stored) -> str | None:
    """Describe why a run is not known to be valid for the current code; None if it is."""
    seen = stored.checked
    if seen is None:
        return f"made at {stored.commit}, never checked"
    if seen.differ:
        return f"{seen.differ} of {seen.numbers} numbers differ at {seen.commit}; {seen.worst}"
    if seen.code != digest_of_code(experiment):
        return f"as stored at {seen.commit}, and its code has changed since"
    return None


def pages_of(name: str, docs: Path) -> list[str]:
    """Return the pages that mention an experiment in a command, in a link or as code.

    The results page, decisions (which describe the past) and generated pages are ignored.
    """
    named = re.compile(rf"`{name}`|lab (?:run|results) {name}\b(?!-)|results/{name}\.")
    pages = [docs.parent / "README.md", *docs.glob("*.md"), *docs.glob("guides/*.md")]
    return sorted(
        str(page.relative_to(docs.parent))
        for page in pages
        if page.is_file() and named.search(page.read_text("utf-8"))
    )


def differing(
    stored: Mapping[str, float], seen: Mapping[str, float]
) -> dict[str, tuple[float, float]]:
    """Return the numbers that differ, as (stored, seen); NaN for a missing number."""
    pairs = {n: (stored.get(n, math.nan), seen.get(n, math.nan)) for n in {**stored, **seen}}
    return {name: pair for name, pair in pairs.items() if not same(*pair)}


def changed(before: Stored, now: Stored) -> dict[str, list[str]]:
    """Return the cases in which a rival's first seed differs between two runs, by rival.

    Only rivals and cases that both runs have are compared.
    """
    found: dict[str, list[str]] = {}
    for case, metrics in now.numbers.items():
        known = before.numbers.get(case, {})
        for rival in next(iter(metrics.values())):
            firsts = [
                (known[metric][rival][0], values[rival][0])
                for metric, values in metrics.items()
                if rival in known.get(metric, {})
            ]
            if not all(same(*pair) for pair in firsts):
                found.setdefault(rival, []).append(case)
    return found


def _gap(before: float, after: float) -> float:
    """Return the relative difference; 0 if one number is missing."""
    gap = abs(after - before) / max(abs(before), abs(after), TOLERANCE)
    return 0.0 if math.isnan(gap) else gap


def first_numbers(evidence: Evidence) -> dict[str, float]:
    """Return the first seed's numbers, by claim, part and side."""
    return {
        f"{claim} {part}".rstrip() + side: values[0]
        for claim, parts in evidence.items()
        for part, seen in parts.items()
        for side, values in (("", seen.ours), (" (theirs)", seen.theirs))
        if values
    }
