'''Declare the settings of a feature once, in a dataclass next to the code that reads them.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Saturation:
        """When an endpoint is full."""

        applies: ClassVar = Applies.AT_ONCE

        max_requests: Annotated[int, Ge(1), Le(100_000)] = 256
        """Requests above which an endpoint is full, like vLLM's --max-num-seqs."""

Everything else is derived from this: `laar.settings` takes the keys of the file, their types,
bounds, defaults and descriptions from it, and so do `laar check`, the JSON schema and the reference
page. The lab and the tests create the same dataclass. If a rule concerns several fields,
`__post_init__` raises `SettingError` if it is broken; such a class also declares its `section`.

No pydantic here: the algorithm packages declare settings without depending on it.
'''

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cache
from itertools import pairwise
from typing import Any, get_type_hints


class Applies(StrEnum):
    """When a changed setting takes effect.

    Declared once per class (`applies`); a field overrides it in its annotation:
    ``Annotated[bool, Applies.AFTER_RESTART]``.
    """

    AT_ONCE = "at once"
    AFTER_RESTART = "after a restart"


FIXED = "fixed"
"""Annotation mark: the field has no key in the settings file; only the lab and tests set it."""


@dataclass(frozen=True, slots=True)
class Matches:
    """Annotation mark: a value from a file must match a regular expression."""

    pattern: str


def hints_of(declared: Any) -> dict[str, Any]:
    """Return the annotation of each field, including its marks."""
    return _hints_of(declared)


@cache
def _hints_of(declared: Any) -> dict[str, Any]:
    hints = get_type_hints(declared, include_extras=True)
    return {field.name: hints[field.name] for field in fields(declared) if field.init}


def field_texts(declared: type[Any]) -> dict[str, str]:
    """Return the text below each field, including those of base classes and of `described_by`.

    Classes whose source is not available are skipped. This takes milliseconds per class, so use it
    for schemas and reference pages, not at startup.
    """
    texts: dict[str, str] = {}
    for base in reversed(declared.__mro__):
        for source in (*vars(base).get("described_by", ()), base):
            texts |= _own_texts(source)
    return texts


def describe(schema: dict[str, Any], declared: type[Any]) -> None:
    """Add the fields' descriptions to a JSON schema, for pydantic's `json_schema_extra`."""
    texts = field_texts(declared)
    for name, of_field in schema.get("properties", {}).items():
        if name in texts:
            of_field["description"] = texts[name]


def _own_texts(declared: type[Any]) -> dict[str, str]:
    import ast
    import inspect
    import textwrap

    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(declared)))
    except (OSError, TypeError):
        return {}
    return {
        above.target.id: " ".join(str(below.value.value).split())
        for above, below in pairwise(tree.body[0].body)  # type: ignore[attr-defined]
        if isinstance(above, ast.AnnAssign)
        and isinstance(above.target, ast.Name)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
    }
