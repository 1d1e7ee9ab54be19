"""Parse YAML files into pydantic models, with errors that name the file, the line and the key.

PyYAML's values do not record their lines, so the node tree is kept as well, and the path of an
error is looked up in it. Duplicate keys are an error: PyYAML silently picks one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from laar.datalayer.files import read_file
from laar.errors import SettingError, unknown

_NOT_YAML = (ValueError, RecursionError, ArithmeticError, LookupError, AttributeError, TypeError)
"""Errors that PyYAML raises for values that do not match their tag, such as ``!!int ''``."""

Model = TypeVar("Model", bound=BaseModel)
Place = tuple[str | int, ...]
"""Path, as keys and indices, from the top of the document."""

MAX_FAULTS_SHOWN = 20
"""Maximum number of errors shown. Wrong indentation can cause thousands; nobody reads them all."""


def read_document(path: Path, model: type[Model]) -> Model:
    """Read and validate one YAML file.

    Raises:
        SettingError: as in `read_with_lines`.
    """
    return read_with_lines(path, model)[0]


def read_with_lines(
    path: Path, model: type[Model], removed: Mapping[str, str] = MappingProxyType({})
) -> tuple[Model, Mapping[Place, int]]:
    """Read and validate one YAML file; also return the line of each key and list item.

    Paths in it are relative to the file's directory, whose symbolic links are not resolved: in a
    ConfigMap mount the file is a link whose target is renamed at each update. Raise `SettingError`
    if the file can't be read, is not YAML, or does not match `model`; one line per error, as
    ``path:line: key: error``.

    Args:
        path: the file.
        model: what it must match.
        removed: what to say of keys that were removed, by path, such as ``routes[].name``.
    """
    text = _read(path)
    try:
        # The Python parser on purpose: the C parser holds the GIL until a file is parsed, and files
        # are reloaded while serving.
        loader: Any = yaml.SafeLoader(text)
        node = loader.get_single_node()
        lines = dict(_lines(node)) if node else {}  # first: constructing replaces merge keys
        content = loader.construct_document(node) if node else {}
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise SettingError(
            f"{where}: not valid YAML: {error.problem or error.context}; look at the indentation, "
            "brackets and quotes there"
        ) from None
    except (yaml.YAMLError, *_NOT_YAML) as error:
        raise SettingError(f"{path}: not valid YAML: {error}") from None
    try:
        document = model.model_validate(content)
        if places := list(_truths_as_numbers(content, document)):
            raise ValidationError.from_exception_data(
                "", [{"type": "float_type", "loc": place, "input": True} for place in places]
            )
        return _absolute(document, path.absolute().parent), lines
    except ValidationError as error:
        raise SettingError(_faults(path, lines, error, model, removed)) from None


def parse_yaml(text: str) -> object:
    """Parse one YAML document; raise `YAMLError` if the document is invalid."""
    try:
        return yaml.safe_load(text)
    except _NOT_YAML as error:
        raise yaml.YAMLError(str(error)) from None


def _fault(problem: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


def line_of(place: Place, lines: Mapping[Place, int]) -> int:
    """Return the line of a location, or of the nearest enclosing location that has one."""
    while place not in lines and place:
        place = place[:-1]
    return lines.get(place, 1)


def _read(path: Path) -> str:
    try:
        return read_file(path).decode()
    except OSError as error:
        raise SettingError(f"{path}: can't be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise SettingError(f"{path}: not UTF-8 at byte {error.start}; save it as UTF-8") from None


def _lines(node: yaml.Node, path: Place = ()) -> Iterator[tuple[Place, int]]:
    """Yield the line of each key and list item, counted from 1."""
    yield path, node.start_mark.line + 1
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _lines(item, (*path, index))
    elif isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue  # can't be constructed
            name = key.value
            if name in seen:
                raise _fault(f"the key {name!r} occurs twice; keep one", key.start_mark)
            seen.add(name)
            yield from _lines(value, (*path, name))
            yield (*path, name), key.start_mark.line + 1


def _absolute(value: Any, base: Path) -> Any:
    """Return a value in which all paths are absolute."""
    if isinstance(value, Path):
        return base / value
    if isinstance(value, tuple):
        return tuple(_absolute(item, base) for item in value)
    if isinstance(value, Mapping):
        return {name: _absolute(item, base) for name, item in value.items()}
    if isinstance(value, BaseModel):
        given = {name: _absolute(getattr(value, name), base) for name in value.model_fields_set}
        return value.model_copy(update=given)
    return value


def _truths_as_numbers(given: Any, read: Any, place: Place = ()) -> Iterator[Place]:
    """Yield the locations of booleans read as numbers: pydantic treats `yes` as 1 and `no` as 0."""
    if isinstance(given, bool) and type(read) in (int, float):
        yield place
    if isinstance(given, dict | list) and isinstance(read, tuple | Mapping | BaseModel):
        known = dict(enumerate(read) if isinstance(read, tuple) else read)
        for key, value in given.items() if isinstance(given, dict) else enumerate(given):
            yield from _truths_as_numbers(value, known.get(key), (*place, key))


def _faults(
    path: Path,
    lines: Mapping[Place, int],
    error: ValidationError,
    model: type[BaseModel],
    removed: Mapping[str, str],
) -> str:
    faults = []
    for fault in error.errors(include_url=False):
        place: Place = fault["loc"]
        told = dict[Place, str]()
        if fault["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            given = fault["input"] if isinstance(fault["input"], dict) else {}
            for inner in (place, *((*place, key) for key in given)):  # or its section is gone
                if message := removed.get(re.sub(r"\[\d+\]", "[]", _name(inner))):
                    told[inner] = message
            told = told or {place: unknown("key", place[-1], _keys(model, place[:-1]))}
        else:
            kind, context = fault["type"], fault.get("ctx", {})
            told[place] = _message(kind, context, fault["input"], fault["msg"])
        for at, message in told.items():
            name = _name(at)
            faults.append(f"{path}:{line_of(at, lines)}: {name}{': ' * bool(name)}{message}")
    shown = faults[:MAX_FAULTS_SHOWN]
    if len(faults) > len(shown):
        shown.append(f"{path}: and {len(faults) - len(shown)} more errors")
    return "\n".join(shown)


def _name(place: Place) -> str:
    """Return a place as users write it, such as `endpoints[0].address`."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return "".join(parts).lstrip(".")


def _keys(model: Any, place: Place) -> list[str]:
    """Return the keys that a section may have; an empty list for a free-form map."""
    for part in place:
        if part in (known := getattr(model, "model_fields", {})):  # else it is a key of a map
            model = next(iter(_models(known[part].annotation)), None)
    if is_dataclass(model):
        return [field.name for field in fields(model)]
    return list(getattr(model, "model_fields", ()))


def _models(hint: Any) -> Iterator[Any]:
    """Yield the sections within an annotation: inside `| None`, and as items of a list."""
    if hasattr(hint, "model_fields") or is_dataclass(hint):
        yield hint
    for inner in get_args(hint):
        yield from _models(inner)


_MUST_BE = {
    "float": "a number, such as 0.5",
    "int": "a whole number",
    "bool": "`true` or `false`",
    "string": "text",
    "path": "the path of a file",
    "tuple": "a list",
    "mapping": "a map of keys and values",
    "dict": "a map of keys and values",
}
MAX_VALUE_CHARS = 60
_LIMITS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


def _message(kind: str, context: Mapping[str, Any], value: object, message: str) -> str:
    """Return an error's message, with the value; laar's validators' own messages are unchanged."""
    shown = repr(value)
    if len(shown) > MAX_VALUE_CHARS:
        shown = f"{shown[:MAX_VALUE_CHARS]}..."
    if kind == "missing":
        return "is missing; add it"
    if kind == "model_type":
        return f"{shown} is not a map; write keys and values, one `key: value` a line"
    for name, words in _LIMITS.items():
        if name in context:
            return f"{shown} is outside the limit; it must be {words} {context[name]:g}"
    if kind == "literal_error":
        return f"{shown} is not allowed here; it must be {context['expected']}"
    must_be = _MUST_BE.get(kind.partition("_")[0])
    if must_be is not None and kind.endswith(("_type", "_parsing", "_from_float")):
        return f"{shown} is not valid; it must be {must_be}"
    text = message.removeprefix("Value error, ")
    return text if kind == "value_error" else f"{text}; it is {shown}"
