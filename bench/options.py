"""Options of the benchmarks, which refuse unknown names and useless values at once."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection
from pathlib import Path

__all__ = ["count", "name_of", "names_of", "output_file", "parser_for", "positive"]


def parser_for(name: str, about: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help shows a module's docstring as it is written."""
    return argparse.ArgumentParser(
        prog=f"python -m bench {name}".rstrip(),
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def name_of(known: Collection[str]) -> Callable[[str], str]:
    """Return the type of an argument that is one of the known names."""

    def name(text: str) -> str:
        if text not in known:
            raise argparse.ArgumentTypeError(f"no {text!r}; there are: {', '.join(known)}")
        return text

    return name


def names_of(known: Collection[str]) -> Callable[[str], list[str]]:
    """Return the type of an option that lists known names, separated by commas."""
    name = name_of(known)
    return lambda text: [name(each) for each in text.split(",")]


def positive(text: str) -> float:
    """Return a number above 0."""
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def count(text: str) -> int:
    """Return a whole number above 0."""
    return int(positive(str(int(text))))


def output_file(text: str) -> Path:
    """Return the path of a file to write; its directory must exist."""
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no directory {path.parent}")
    return path
