"""Whether stored numbers are still those of the code: each run's first seed, once more.

The lab is deterministic: the same code gives the same numbers to the last digit. So the first seed
is a witness for the others. Where all its numbers come out as stored, the run is taken to hold for
the code as it is; where one does not, the run is stale and has to be made again.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import xxhash

from laar_lab.claims import Evidence
from laar_lab.experiment import Experiment, Scope
from laar_lab.results import Checked, Stored
from laar_lab.sweep import PACKAGES

_TOLERANCE = 1e-6
"""Stored numbers have seven digits."""

_SERVING = {"cli", "client", "doctor", "envoy", "measuring", "server"}
"""Packages that no run in virtual time imports."""


def digest_of_code(packages: tuple[Path, ...] = PACKAGES) -> str:
    """Return a digest of the code that runs in virtual time; texts and layout do not count."""
    digest = xxhash.xxh3_64()
    for package in packages:
        for path in sorted(package.rglob("*.*")):
            within = path.relative_to(package)
            if within.parts[0] in _SERVING:
                continue
            if path.suffix == ".py":
                digest.update(f"{within} {_code(path)}".encode())
            elif path.suffix in (".yaml", ".json", ".txt"):
                digest.update(path.read_bytes())
    return digest.hexdigest()


def _code(path: Path) -> str:
    tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            node.body = [each for each in body if not _is_text(each)]  # type: ignore[attr-defined]
    return ast.dump(tree)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def check(experiment: Experiment, stored: Stored, data: Path | None, commit: str) -> Stored:
    """Run a stored run's first seed again; return the run with what came of it."""
    words = stored.command.split()
    first = int(words[words.index("--first-seed") + 1])
    report = experiment.run(Scope(seeds=(first,), data=data if "--data" in words else None))
    differ = list(differences(stored.evidence, report.evidence))
    checked = Checked(
        code=digest_of_code(),
        commit=commit,
        date=datetime.now(UTC).date().isoformat(),
        numbers=sum(1 for _ in _first_numbers(stored.evidence)),
        differ=len(differ),
        worst=max(differ, default=(0.0, ""))[1],
    )
    return replace(stored, checked=checked)


def differences(stored: Evidence, seen: Evidence) -> Iterator[tuple[float, str]]:
    """Yield what differs in the first seed: the relative difference, and it in words."""
    now = dict(_first_numbers(seen))
    for name, before in _first_numbers(stored):
        after = now.get(name, math.nan)
        if not math.isclose(before, after, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE) and not (
            math.isnan(before) and math.isnan(after)
        ):
            gap = abs(after - before) / max(abs(before), abs(after), _TOLERANCE)
            yield (0.0 if math.isnan(gap) else gap), f"{name}: {before:.4g}, now {after:.4g}"


def _first_numbers(evidence: Evidence) -> Iterator[tuple[str, float]]:
    for claim, parts in evidence.items():
        for part, seen in parts.items():
            for side, values in (("", seen.ours), (" (theirs)", seen.theirs)):
                if values:
                    yield f"{claim} {part}".rstrip() + side, values[0]
