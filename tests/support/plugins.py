"""Install packages with entry points by writing their dist-info."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

__all__ = ["install", "installed"]


def install(site: Path, package: str, points: Mapping[str, Mapping[str, str]]) -> Path:
    """Write the dist-info of a package, version 1.0, into a folder; return the folder.

    Args:
        site: a folder on the path, now or later.
        package: its name.
        points: the entry points: values by name by group.
    """
    info = site / f"{package.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = []
    for group, values in points.items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in values.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return site


@contextmanager
def installed(*folders: Path) -> Iterator[None]:
    """Put folders on the path of this process; afterwards, forget modules imported from there."""
    before: Sequence[str] = list(sys.path)
    sys.path[:0] = [str(folder) for folder in folders]
    try:
        yield
    finally:
        sys.path[:] = before
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if file and Path(file).parent in folders:
                del sys.modules[name]
