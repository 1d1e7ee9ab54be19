"""Filters, scorers, pickers, policies and plug-ins by name, laar's and those of other packages.

A package provides them as entry points of five groups, ``laar.filters``, ``laar.scorers``,
``laar.pickers``, ``laar.policies`` and ``laar.plugins``. An entry point refers to a factory: a
class or function whose keyword parameters, with their defaults, can be given in the settings.

laar's own names come first: no package can replace one. A package's code runs only if the settings
use one of its entry points. So an installed package costs nothing and breaks nothing until it is
used, and no request header can load it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from inspect import Parameter, signature
from typing import Any

from laar.core.policy import Policy
from laar.errors import SettingError, unknown
from laar.policies.guarding import guarded

Factory = Callable[..., Any]

Parameters = Mapping[str, object]
"""Values by parameter: strings, numbers, true or false."""


class PartKind(StrEnum):
    """The five kinds of extension, by the names used in messages."""

    FILTER = "filter"
    SCORER = "scorer"
    PICKER = "picker"
    POLICY = "policy"
    PLUGIN = "plugin"

    @property
    def group(self) -> str:
        """The entry-point group."""
        return "laar.policies" if self is PartKind.POLICY else f"laar.{self}s"

    @property
    def method(self) -> str:
        """The method that an object of this kind must have."""
        return {"filter": "keep", "picker": "order", "plugin": "admit"}.get(self, "score")


@dataclass(frozen=True, slots=True)
class Found:
    """A factory and its origin.

    Args:
        kind: kind of the objects that it creates.
        name: its name in the settings.
        factory: takes the parameters by keyword.
        origin: entry point and package, for messages; empty means laar's own.
    """

    kind: PartKind
    name: str
    factory: Factory
    origin: str = ""

    @property
    def title(self) -> str:
        """The beginning of a message about the factory."""
        return f"{self.kind} `{self.name}`{self.origin and f' ({self.origin})'}"

    def parameters(self) -> dict[str, Parameter]:
        """Return the parameters that the settings may set."""
        try:
            known = signature(self.factory).parameters
        except (TypeError, ValueError):  # the factory is written in C
            return {}
        named = (Parameter.KEYWORD_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
        return {name: parameter for name, parameter in known.items() if parameter.kind in named}

    def make(self, given: Mapping[str, Any]) -> Any:
        """Create a new object, guarded if it is from an installed package.

        Raises:
            SettingError: a parameter is unknown or missing, its type differs from its default's, or
                it is not a finite number, or one of laar's own is not in 0..1e9; or the factory
                fails or returns an object of another kind.
        """
        known = self.parameters()
        for name, value in given.items():
            if name not in known:
                raise SettingError(f"{self.title}: {unknown('parameter', name, known)}")
            fault = _fault(value, known[name].default)
            if not (fault or self.origin or isinstance(value, str) or 0 <= value <= 1e9):
                fault = "give 0 to 1e9"
            if fault:
                raise SettingError(f"{self.title}: `{name}` is {value!r}; {fault}")
        for name, parameter in known.items():
            if parameter.default is Parameter.empty and name not in given:
                raise SettingError(f"{self.title}: its parameter `{name}` is missing")
        try:
            made = self.factory(**given)
        except SettingError as error:
            raise SettingError(f"{self.title}: {error}") from None
        except Exception as error:  # another author's code: report any failure as a setting error
            raise SettingError(
                f"{self.title}: cannot be created: {_one_line(error)}; check its parameters"
            ) from error
        if not callable(getattr(made, self.kind.method, None)):
            raise SettingError(
                f"{self.title}: returns a {type(made).__name__} without a method "
                f"`{self.kind.method}`; ask its author"
            )
        if self.kind is PartKind.POLICY and not isinstance(made, Policy):
            raise SettingError(
                f"{self.title}: returns a {type(made).__name__}; it must return a `laar.Policy`"
            )
        if self.kind is PartKind.PLUGIN:  # the core guards each of its points
            return made
        return guarded(made, self.name) if self.origin else made


def find(own: Mapping[PartKind, Mapping[str, Factory]], kind: PartKind, name: str) -> Found:
    """Return the factory of that name; import it if it is from an installed package.

    Args:
        own: laar's factories, by kind and name.
        kind: the kind of the objects that it creates.
        name: its name in the settings.

    Raises:
        SettingError: it does not exist, two packages provide it, or it cannot be imported.
    """
    factories = own.get(kind, {})
    if name in factories:
        return Found(kind, name, factories[name])
    installed = _installed(kind.group, tuple(sys.path))
    # A package may be found on two paths; equal values mean the same entry point.
    points = {point.value: point for point in installed if point.name == name}
    if not points:
        others = sorted({point.name for point in installed})
        raise SettingError(unknown(kind, name, list(dict.fromkeys([*factories, *others]))))
    if len(points) > 1:
        packages = " and ".join(sorted(_package(point) for point in points.values()))
        raise SettingError(
            f"{kind} `{name}`: the packages {packages} both provide it (group {kind.group}); "
            "uninstall one of them"
        )
    (point,) = points.values()
    return _load(kind, point)


@cache
def _installed(group: str, _path: tuple[str, ...]) -> EntryPoints:
    """Return a group's entry points on a search path; the look-up takes about 15 ms."""
    return entry_points(group=group)


def _load(kind: PartKind, point: EntryPoint) -> Found:
    package = _package(point)
    origin = f"entry point `{point.name} = {point.value}` of {package}"
    try:
        factory = point.load()
    except (Exception, SystemExit) as error:
        raise SettingError(
            f"{kind} `{point.name}`: {origin}, group {point.group}, cannot be loaded: "
            f"{_one_line(error)}; install what it needs or another version of {package}, or remove "
            f"`{point.name}` from the settings"
        ) from error
    if not callable(factory):
        raise SettingError(
            f"{kind} `{point.name}`: {origin} is a {type(factory).__name__}; "
            "it must refer to a class or function"
        )
    return Found(kind, point.name, factory, origin)


def _package(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else "an unnamed package"


def _one_line(error: BaseException) -> str:
    """Return an error on one line, truncated if it is long."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]


def _fault(value: Any, default: object) -> str:
    """Return advice on a value whose type differs from its default's; empty if it fits."""
    finite = type(value) in (int, float) and abs(value) <= sys.float_info.max
    match default:
        case bool():
            fits, advice = isinstance(value, bool), "true or false"
        case str():
            fits, advice = isinstance(value, str), "a string"
        case int():
            fits, advice = finite and value == int(value), "a whole number"
        case float():
            fits, advice = finite, "a finite number"
        case _:
            fits = finite or isinstance(value, str | bool)
            advice = "a string, a finite number, or true or false"
    return "" if fits else f"give {advice}"
