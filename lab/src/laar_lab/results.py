"""The stored results: each claim's numbers by seed, and the page generated from them.

There is one file per experiment, with the numbers by seed, the commit, the date and the command.
Verdicts are not stored but derived from the stored numbers and the claims as declared now, so the
two cannot drift apart.
"""

from __future__ import annotations

import hashlib
import math
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import orjson

from laar.errors import SettingError
from laar_lab.claims import ALONE, Claim, Evidence, Judged, Seen, judge
from laar_lab.experiment import Experiment, Scope, spoken_time
from laar_lab.report import Report
from laar_lab.suite.split import split
from laar_lab.sweep import PACKAGES

DIGITS = 7
"""Digits with which numbers are stored."""

_T = TypeVar("_T", "Stored", "Checked")
_GROUPS = {
    "LAAR": ("laar-",),
    "GORGO": ("gorgo-",),
    "ContextPilot": ("context-",),
    "Medha": ("medha-", "engine-"),
    "llm-router": ("llm-router-",),
    "Without a paper": ("",),
}
_INDEX = """# Results

Made by `laar lab results`; do not edit. Each row is one of the lab's experiments. They run the
serving code in virtual time on simulated engines, which are the same for every policy. Claims are
declared before the run:

* **reproduced**: a paper's claim is shown with the required size; **in kind**: only its direction;
* **contradicted**: the opposite is shown; **not reproduced**: neither is;
* **larger than published**: shown, with an interval beyond the largest published figure, so the
  simulated fleet is in another regime; `lab/claims.md` has the reason;
* **shown**, **in kind only**, **refuted**, **not shown**: the same for laar's own claims.

A row counts the claims by verdict, and names all that are not shown. Its figure is that of the
first claim, with its 95 % interval, then that of the first claim that is contradicted or refuted.
`laar lab run NAME` repeats an experiment. `lab/claims.md` has every claim with its margin, figure,
seeds, commit, command and, where it is known, the reason why it failed. What the papers have and
these experiments lack is in [missing](missing.md).

{checked} All experiments together take about {time} on two cores. Those that were retired are in
`lab/retired/README.md`.
"""
_CLAIMS = """# Claims

Made by `laar lab results`; do not edit. Each row is a claim of one of the lab's experiments, as
counted in `docs/results/index.md`. Intervals are 95 %, paired by seed. Tests are one-sided at 5 %,
and the claims of an experiment are corrected together by Holm's procedure, except those of
{alone}, which are tested separately. The effect that seeds can detect is the one shown with a
probability of 80 %, before that correction. Ratios are geometric means. What is required is the
published size where there is one.

`laar lab results --check` repeats the first seed of each stored run. A run names the commit that
made it, and the last three that gave the same numbers; **stale** says how many were not the same.
All runs use OpenBLAS's kernels for Skylake on CPUs with AVX-512, whatever `OPENBLAS_CORETYPE` says.
With kernels for older CPUs 9 of 648 numbers of `no-regret` differ, and 6 of 90 of `conversations`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """Result of rerunning a stored run's first seed with later code.

    Args:
        commit: commit of that code.
        date: date of the check, UTC.
        numbers: how many numbers are stored for the first seed.
        differ: how many of them differed.
        moved: how many differed by more than another processor's rounding explains.
        worst: description of the largest difference; empty if there is none.
    """

    commit: str
    date: str
    numbers: int
    differ: int
    moved: int = 0
    worst: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A stored run of one experiment.

    Args:
        experiment: name of the experiment.
        command: command that repeats the run.
        commit: commit of the code when the run began, with a `+` for uncommitted changes.
        date: date of the run, UTC.
        evidence: numbers by seed.
        numbers: numbers of every rival by case and metric, if `evidence` has only the best rivals'.
        minutes: minutes of CPU that a seed took; 0 if that was not measured.
        first: numbers that are different if the first seed runs alone, by claim, part and side; NaN
            for a number that is then missing.
        checked: the last check with later code; None if there was none.
        repeated: later commits whose code gave the first seed's numbers again.
        sources: digest of the code that ran, which a rewritten history leaves as it is; empty if
            there were uncommitted changes.
    """

    experiment: str
    command: str
    commit: str
    date: str
    evidence: Evidence
    numbers: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]] = field(default_factory=dict)
    minutes: float = 0.0
    first: Mapping[str, float] = field(default_factory=dict)
    checked: Checked | None = None
    repeated: Sequence[str] = ()
    sources: str = ""

    @property
    def first_seed(self) -> int:
        """The run's first seed; its seeds are consecutive."""
        words = self.command.split()
        return int(words[words.index("--first-seed") + 1])


def store(
    directory: Path,
    experiment: Experiment,
    report: Report,
    scope: Scope,
    commit: str,
    minutes: float = 0.0,
) -> Stored:
    """Write a run's file.

    Args:
        directory: directory of the results.
        experiment: the experiment.
        report: what the run reported.
        scope: what was run.
        commit: commit of the code when the run began.
        minutes: minutes of CPU that the run took.
    """
    seeds = scope.seeds
    given = "" if scope.data is None else " --data DIR"
    done = Stored(
        experiment=experiment.name,
        command=f"laar lab run {experiment.name} --seeds {len(seeds)} --first-seed {seeds[0]}"
        + given,
        commit=commit,
        sources=sources_of(commit),
        date=datetime.now(UTC).date().isoformat(),
        minutes=round(minutes / len(seeds), 3),
        evidence={
            claim: {part: Seen(_rounded(s.ours), _rounded(s.theirs)) for part, s in parts.items()}
            for claim, parts in report.evidence.items()
        },
        numbers={
            case: {
                metric: {rival: _rounded(values) for rival, values in rivals.items()}
                for metric, rivals in metrics.items()
            }
            for case, metrics in report.numbers.items()
        },
    )
    write(directory, done)
    return done


def _rounded(values: Sequence[float]) -> list[float]:
    return [float(f"{value:.{DIGITS}g}") for value in values]


def write(directory: Path, run: Stored) -> None:
    """Write a run's file."""
    written = orjson.dumps(run, option=orjson.OPT_APPEND_NEWLINE)
    (directory / f"{run.experiment}.json").write_bytes(written)


def load(directory: Path) -> dict[str, Stored]:
    """Return all stored runs by experiment.

    Raises:
        SettingError: a file is not a stored run.
    """
    found = {}
    for path in sorted(directory.glob("*.json")):
        try:
            data = orjson.loads(path.read_bytes())
            data["evidence"] = {
                claim: {part: Seen(**_known(seen)) for part, seen in parts.items()}
                for claim, parts in data["evidence"].items()
            }
            data["numbers"] = {
                case: {metric: _known(rivals) for metric, rivals in metrics.items()}
                for case, metrics in data.get("numbers", {}).items()
            }
            data["first"] = {
                name: math.nan if value is None else value
                for name, value in data.get("first", {}).items()
            }
            if data.get("checked") is not None:
                data["checked"] = _of(Checked, data["checked"])
            found[data["experiment"]] = _of(Stored, data)
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
            raise SettingError(f"{path}: not a stored run; remove it and repeat the run") from None
    return found


def _of(kind: type[_T], data: Mapping[str, Any]) -> _T:
    """Return a record from a file, which may have fields of older versions."""
    return kind(**{each.name: data[each.name] for each in fields(kind) if each.name in data})


def _known(seen: Mapping[str, list[float | None]]) -> dict[str, list[float]]:
    """Return numbers by name, with NaN in place of null, since JSON has no NaN."""
    return {
        name: [math.nan if value is None else value for value in values]
        for name, values in seen.items()
    }


def verdicts(experiment: Experiment, stored: Stored) -> list[Judged]:
    """Judge the stored numbers by the claims as they are declared now.

    Raises:
        SettingError: the stored numbers belong to other claims.
    """
    if stored.evidence.keys() != {claim.name for claim in experiment.claims}:
        name = experiment.name
        raise SettingError(
            f"{name}.json and {name} differ in claims: run `laar lab results {name}`"
        )
    return judge(experiment.claims, stored.evidence)


def write_pages(
    directory: Path, experiments: Mapping[str, Experiment], stored: Mapping[str, Stored]
) -> None:
    """Write the results page, and in laar's checkout the page with all claims."""
    (directory / "index.md").write_text(index_of(experiments, stored), "utf-8")
    lab = directory.absolute().parents[1] / "lab"
    if lab.is_dir():
        (lab / "claims.md").write_text(claims_of(experiments, stored), "utf-8")


def index_of(experiments: Mapping[str, Experiment], stored: Mapping[str, Stored]) -> str:
    """Return the Markdown of the results page, with a row for each experiment."""
    rows: dict[str, list[str]] = {group: [] for group in _GROUPS}
    counts = Counter[str]()
    for experiment in experiments.values():
        run = stored.get(experiment.name)
        judged = verdicts(experiment, run) if run else []
        counts.update([one.verdict for one in judged] or {"not run yet": len(experiment.claims)})
        rows[_group(experiment)].append(_summary(experiment, run, judged))
    text = [
        _INDEX.format(checked=_checked(stored), time=spoken_time(hours(experiments, stored))),
        "| verdict | claims |\n| --- | ---: |",
        *(f"| {verdict} | {count} |" for verdict, count in sorted(counts.items())),
    ]
    columns = "| experiment | subject | verdicts | figure |\n| --- | --- | --- | --- |"
    for group, of_group in rows.items():
        if of_group:
            text += [f"\n## {group}\n", columns, *of_group]
    return "\n".join(text) + "\n"


_HELD = ("reproduced", "shown")


def _summary(experiment: Experiment, run: Stored | None, judged: Sequence[Judged]) -> str:
    """Return an experiment's row: claims by verdict, and its figures."""
    if run is None:
        takes = f"not run yet: needs about {spoken_time(experiment.hours(experiment.seeds))}"
        data = "; needs `--data DIR`" if experiment.needs_data else ""
        return _row(experiment.name, experiment.about, takes + data, "")
    names: dict[str, list[str]] = {}
    for one in judged:
        names.setdefault(one.verdict.removeprefix("beyond the paper: "), []).append(one.claim.name)
    said = []
    for verdict, of in sorted(names.items(), key=lambda each: each[0] not in _HELD):
        named = "" if verdict in _HELD else f": {', '.join(of)}"
        said.append(f"{len(of)} {verdict}{named}")
    failed = [one for one in judged if one.outcome == "contrary"]
    told = [judged[0], *(one for one in failed[:1] if one is not judged[0])]
    figures = [
        f"{one.claim.metric.partition('. ')[0]}: {one.ours.replace(' .. ', '..')}" for one in told
    ]
    counted = split(run.numbers)
    if counted:
        figures = [counted.partition(" (")[0]]
    return _row(experiment.name, experiment.about, "; ".join(said), "; ".join(figures))


def claims_of(experiments: Mapping[str, Experiment], stored: Mapping[str, Stored]) -> str:
    """Return the Markdown of the page with all claims, and the reasons why some failed."""
    alone = [
        f"`{name}`"
        for name, each in experiments.items()
        if any(claim.family == ALONE for claim in each.claims)
    ]
    parts: dict[str, list[str]] = {group: [] for group in _GROUPS}
    for experiment in experiments.values():
        parts[_group(experiment)] += _section(experiment, stored.get(experiment.name))
    text = [_CLAIMS.format(alone=", ".join(alone))]
    for group, of_group in parts.items():
        if of_group:
            text += [f"\n## {group}", *of_group]
    return "\n".join(text) + "\n"


def _group(experiment: Experiment) -> str:
    return next(g for g, begins in _GROUPS.items() if experiment.name.startswith(begins))


def hours(experiments: Mapping[str, Experiment], stored: Mapping[str, Stored]) -> float:
    """Return how long all experiments take on two cores, by measured times where there are any."""
    found = 0.0
    for name, each in experiments.items():
        minutes = stored[name].minutes if name in stored else 0.0
        found += replace(each, minutes=minutes or each.minutes).hours(each.seeds)
    return found


def _checked(stored: Mapping[str, Stored]) -> str:
    stale = {
        name: run.checked for name, run in stored.items() if run.checked and run.checked.differ
    }
    later = [name for name, run in stored.items() if run.repeated and name not in stale]
    made = len(stored) - len(later) - len(stale)
    names = ", ".join(f"`{name}` (since {check.commit})" for name, check in stale.items())
    return (
        f"Of {len(stored)} stored runs {len(later)} were repeated by later code, and {made} were "
        f"not run since they were made. Stale, so that later code gives other numbers: "
        f"{names or 'none'}."
    )


_COLUMNS = "| claim | published | ours | required | verdict |\n| --- | --- | --- | --- | --- |"


def _section(experiment: Experiment, run: Stored | None) -> Iterator[str]:
    """Yield an experiment's code and command, a row for each claim, and why some are not shown."""
    made = "not run yet" if run is None else _code_of(run)
    command = f"laar lab run {experiment.name}" if run is None else run.command
    yield f"\n### {experiment.name}\n\n{experiment.source}; {made}: `{command}`\n\n{_COLUMNS}"
    if run is None:
        for claim in experiment.claims:
            yield _row(claim.says, claim.published, "", _asked(claim), "not run yet")
        return
    notes: dict[str, list[str]] = {}
    for one in verdicts(experiment, run):
        claim, where = one.claim, f", {one.part}" if one.part else ""
        seen = f"{claim.metric}: {one.ours}{where}"
        if one.power and one.outcome == "open":
            seen += f". {one.power}"
        verdict = one.verdict.removeprefix("beyond the paper: ")
        yield _row(claim.says, claim.published, seen, _asked(claim), verdict)
        if (one.outcome != "shown" or one.larger) and claim.why:
            notes.setdefault(claim.why, []).append(claim.name)
    if notes:
        yield ""
    yield from (f"* {', '.join(names)}: {why}" for why, names in notes.items())
    if counted := split(run.numbers):
        yield f"\n{counted}"


def _code_of(run: Stored) -> str:
    text, checked = f"made at {run.commit}, {run.date}", run.checked
    if run.repeated:
        text += f"; repeated at {', '.join(run.repeated[-3:])}"
    if checked is not None and checked.differ:
        differ = f"{checked.differ} of {checked.numbers} numbers"
        text += f"; **stale** since {checked.commit}: {differ} differ"
    return text


def _asked(claim: Claim) -> str:
    return f"{claim.direction} {claim.bound:.4g}"


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"


def commit_of(packages: Sequence[Path] = PACKAGES) -> str:
    """Return the checkout's short commit, or "unknown"; a `+` marks uncommitted changes."""
    changed = any(_git(package, "status", "--porcelain", "--", ".") for package in packages)
    commit = _git(packages[-1], "rev-parse", "--short", "HEAD") or "unknown"
    return commit + ("+" if changed else "")


def sources_of(commit: str, packages: Sequence[Path] = PACKAGES) -> str:
    """Return a digest of the packages' files at a commit; empty if they are unknown."""
    trees = [_git(package, "rev-parse", f"{commit}:./") for package in packages]
    return hashlib.sha256(" ".join(trees).encode()).hexdigest()[:12] if all(trees) else ""


def _git(package: Path, *words: str) -> str:
    command = ["git", "-C", str(package), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    return done.stdout.strip() if done.returncode == 0 else ""
