"""Split settings changes into those that apply at once and those that need a restart."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from laar.declaring import Applies
from laar.settings.section import Section, leaves, value_at
from laar.settings.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The difference between running and wanted settings.

    Args:
        settings: the new effective settings: the running settings plus the changes that may apply
            at once.
        applied: paths of the settings that change now.
        pending: paths of the settings whose change needs a restart.
        obstacle: the reason why no setting changes although some could; else empty.
    """

    settings: Settings
    applied: tuple[str, ...]
    pending: tuple[str, ...]
    obstacle: str = ""


def change(running: Settings, wanted: Settings) -> Change:
    """Return the settings in effect after a change, and the changes that wait for a restart.

    Both inputs are valid, but a mixture may not be: endpoints moved to a file would vanish until
    the file is read after a restart. In that case all changes wait.
    """
    differing = [
        (path, applies)
        for path, applies in leaves(Settings)
        if value_at(running, path) != value_at(wanted, path)
    ]
    applied = tuple(path for path, applies in differing if applies is Applies.AT_ONCE)
    pending = tuple(path for path, _ in differing if path not in applied)
    mixed = _mixed(running, wanted, applied)
    if applied and pending:
        try:
            Settings.model_validate(mixed.model_dump())
        except ValidationError as error:
            texts = (fault["msg"].removeprefix("Value error, ") for fault in error.errors())
            everything = tuple(path for path, _ in differing)
            return Change(
                settings=running, applied=(), pending=everything, obstacle="; ".join(texts)
            )
    return Change(settings=mixed, applied=applied, pending=pending)


def _mixed(running: Settings, wanted: Settings, paths: Iterable[str]) -> Settings:
    updates: dict[str, dict[str, Any]] = {}
    for path in paths:
        section, _, name = path.rpartition(".")
        updates.setdefault(section, {})[name] = value_at(wanted, path)
    top = updates.pop("", {})
    for section, values in updates.items():
        known: Section = getattr(running, section)
        top[section] = known.model_copy(update=values)
    return running.model_copy(update=top)
