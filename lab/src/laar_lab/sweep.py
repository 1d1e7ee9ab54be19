"""Run many independent cases on all cores.

Results are in the order of the cases, not of completion, so the outcome of a sweep does not depend
on the number of processes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

import joblib
import xxhash
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import laar

_LINE_EVERY_S = 60.0
PACKAGES = (Path(laar.__file__).parent, Path(__file__).parent)
"""Packages whose code a run executes: laar and the lab."""

_PACKAGED = {".py", ".yaml", ".json"}
"""Suffixes of sources and of engine and fleet files."""

_T = TypeVar("_T")
_Key = TypeVar("_Key")

_kept: ContextVar[Path | None] = ContextVar("kept", default=None)


class Spent:
    """Seconds of CPU that all sweeps of this process have taken."""

    cpu_s = 0.0


spent = Spent()


def _timed(run: Callable[..., _T], case: tuple[Any, ...]) -> tuple[_T, float]:
    began_s = time.process_time()
    return run(*case), time.process_time() - began_s


def sweep(run: Callable[..., _T], cases: Sequence[tuple[Any, ...]], *, label: str) -> list[_T]:
    """Call `run` with each case; return the results in the order of the cases.

    Args:
        run: a module-level function, so that it can be pickled for another process.
        cases: its arguments.
        label: label of the progress bar on standard error. If that is not a terminal, the progress
            and the approximate time left are printed once per minute.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True
    ) as bar:
        kept = joblib.Memory(_kept.get(), verbose=0).cache(run)
        jobs = (joblib.delayed(_timed)(kept, case) for case in cases)
        results = joblib.Parallel(return_as="generator")(jobs)
        lines = None if bar.console.is_terminal else _Lines(label, len(cases), bar.console)
        done = []
        for result, took_s in bar.track(results, total=len(cases), description=label):
            done.append(result)
            spent.cpu_s += took_s
            if lines is not None:
                lines.tell(len(done))
        return done


def grid(
    run: Callable[..., _T],
    cases: Mapping[_Key, tuple[Any, ...]],
    seeds: Sequence[int],
    *,
    label: str,
) -> dict[_Key, list[_T]]:
    """Call `run` with each case and each seed; a case's results are in the seeds' order.

    Args:
        run: a module-level function, as for `sweep`; the seed is its last argument.
        cases: its other arguments, by the key of their results.
        seeds: seeds to run each case on.
        label: label of the progress bar.
    """
    runs = [(*arguments, seed) for arguments in cases.values() for seed in seeds]
    results = iter(sweep(run, runs, label=label))
    return {key: [next(results) for _ in seeds] for key in cases}


class _Lines:
    """Prints progress as lines if there is no terminal for a bar."""

    def __init__(self, label: str, total: int, console: Console) -> None:
        self._label, self._total, self._console = label, total, console
        self._began_s = self._told_s = time.monotonic()

    def tell(self, done: int) -> None:
        """Print the progress, but at most once per minute."""
        now_s = time.monotonic()
        if now_s - self._told_s < _LINE_EVERY_S or done == self._total:
            return
        self._told_s = now_s
        left_min = (now_s - self._began_s) / done * (self._total - done) / 60.0
        said = f"{self._label}: {done} of {self._total} runs, about {left_min:.0f} min left"
        self._console.print(said, highlight=False)


KERNEL = "SkylakeX"
"""Kernels of OpenBLAS for matrix products in workers, on CPUs with AVX-512; stored runs used them.
Others round differently, which changes some choices between nearly equal endpoints."""


def has_kernel() -> bool:
    """Return whether this CPU can run the kernels."""
    try:
        return " avx512f " in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


@contextmanager
def placed(jobs: int) -> Iterator[None]:
    """Run the sweeps in this block in `jobs` processes; -1 for one per core."""
    if has_kernel():
        os.environ["OPENBLAS_CORETYPE"] = KERNEL  # workers read this when they import NumPy
    with joblib.parallel_config(backend="loky", n_jobs=jobs):
        yield


@contextmanager
def kept_in(directory: Path | None, read: Iterable[Path | None] = ()) -> Iterator[None]:
    """Within this block, store the finished runs of sweeps, and reuse stored runs.

    Args:
        directory: where to store runs; None to store nothing. Runs stored there for other sources,
            files or cases are left alone.
        read: files, and directories of files, that the runs read.
    """
    token = _kept.set(directory / _state(read) if directory else None)
    try:
        yield
    finally:
        _kept.reset(token)


def _state(read: Iterable[Path | None]) -> str:
    """Return a name for the state of packages and files, which changes whenever a result may."""
    digest = xxhash.xxh3_64()
    for package in PACKAGES:
        for path in sorted(package.rglob("*.*")):
            if path.suffix in _PACKAGED:
                digest.update(path.read_bytes())
    for given in sorted(path for path in read if path):
        for path in sorted(given.iterdir()) if given.is_dir() else [given]:
            about = path.stat()
            digest.update(f"{path} {about.st_size} {about.st_mtime_ns}".encode())
    return digest.hexdigest()
