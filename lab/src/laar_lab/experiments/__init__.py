"""The experiments: the modules of this package that have a declaration."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from laar.errors import SettingError, unknown
from laar_lab.experiment import Experiment

__all__ = ["all_experiments", "find_experiment"]


def all_experiments() -> dict[str, Experiment]:
    """Return all experiments by name, sorted."""
    found: dict[str, Experiment] = {}
    for module in iter_modules(__path__):
        for experiment in getattr(import_module(f"{__name__}.{module.name}"), "EXPERIMENTS", ()):
            found[experiment.name] = experiment
    return dict(sorted(found.items()))


def find_experiment(name: str) -> Experiment:
    """Return the experiment with this name.

    Raises:
        SettingError: there is none; the message lists the known names.
    """
    known = all_experiments()
    if name not in known:
        raise SettingError(unknown("experiment", name, known))
    return known[name]
