"""YAML files read into pydantic models, with errors that name the file, the line and the key.

PyYAML forgets where a value stood, so the node tree is kept beside the values and an error's
path is looked up in it. A key that occurs twice is an error: YAML readers silently take one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from laar.errors import SettingError

__all__ = ["Place", "line_of", "read_document", "read_with_lines"]

Model = TypeVar("Model", bound=BaseModel)
Place = tuple[str | int, ...]
"""Keys and indices from the document's top down."""

MAX_FAULTS_SHOWN = 20
"""A wrong indentation can make thousands of faults; nobody reads more than a screen of them."""


def read_document(path: Path, model: type[Model], *, max_bytes: int) -> Model:
    """Read and validate one YAML file.

    Raises:
        SettingError: as `read_with_lines`.
    """
    return read_with_lines(path, model, max_bytes=max_bytes)[0]


def read_with_lines(
    path: Path, model: type[Model], *, max_bytes: int
) -> tuple[Model, Mapping[Place, int]]:
    """Read and validate one YAML file; also the line of each key and list item.

    Raises:
        SettingError: the file can't be read, is larger than `max_bytes`, is not YAML, or does not
            fit `model`; one line for each fault, as ``path:line: key: what is wrong``.
    """
    text = _read(path, max_bytes)
    try:
        # In Python on purpose: the C parser holds the interpreter until a whole file is through,
        # and files are read again beside a serving loop.
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        lines = dict(_lines(node)) if node else {}
        content = loader.construct_document(node) if node else {}
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise SettingError(f"{where}: not valid YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SettingError(f"{path}: not valid YAML: {error}") from None
    try:
        return model.model_validate(content), lines
    except ValidationError as error:
        raise SettingError(_faults(path, lines, error)) from None


def line_of(place: Place, lines: Mapping[Place, int]) -> int:
    """The line of a place, or of the nearest one around it that is written down."""
    while place not in lines and place:
        place = place[:-1]
    return lines.get(place, 1)


def _read(path: Path, max_bytes: int) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(max_bytes + 1)
    except OSError as error:
        raise SettingError(f"{path}: can't be read: {error.strerror or error}") from None
    if len(raw) > max_bytes:
        raise SettingError(f"{path}: larger than {max_bytes} bytes; split it or shorten it")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise SettingError(f"{path}: not UTF-8 at byte {error.start}; save it as UTF-8") from None


def _lines(node: yaml.Node, path: Place = ()) -> Iterator[tuple[Place, int]]:
    """Yield the line of each key and list item, 1 for the first line."""
    yield path, node.start_mark.line + 1
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _lines(item, (*path, index))
    elif isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            name = str(key.value)
            if name in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {name!r} occurs twice; keep one", problem_mark=key.start_mark
                )
            seen.add(name)
            yield from _lines(value, (*path, name))
            yield (*path, name), key.start_mark.line + 1


def _faults(path: Path, lines: Mapping[Place, int], error: ValidationError) -> str:
    faults = []
    for fault in error.errors(include_url=False, include_context=False, include_input=False):
        place: Place = fault["loc"]
        name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
        message = fault["msg"].removeprefix("Value error, ")
        if fault["type"] == "extra_forbidden":
            message = "unknown key; check its spelling or take it out"
        faults.append(f"{path}:{line_of(place, lines)}: {name.lstrip('.') or 'file'}: {message}")
    shown = faults[:MAX_FAULTS_SHOWN]
    if len(faults) > len(shown):
        shown.append(f"{path}: and {len(faults) - len(shown)} more faults")
    return "\n".join(shown)
