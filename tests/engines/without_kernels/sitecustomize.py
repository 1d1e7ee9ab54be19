"""Packages of GPU kernels for SGLang on a CPU, where none of their functions is called.

Python imports this file at its start if its folder is in PYTHONPATH. Then any module of these
packages can be imported, has any name, and has a version.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder
from types import ModuleType
from unittest.mock import MagicMock

VERSIONS = {"sgl_kernel": "0.4.10", "torchvision": "0.28.0"}


class Hollow(ModuleType):
    """A module in which any name is a mock."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=f"{self.__name__}.{name}")


class Described(Distribution):
    """The metadata of such a package."""

    def __init__(self, name: str) -> None:
        self._name = name

    def read_text(self, filename: str) -> str | None:
        if filename != "METADATA":
            return None
        return f"Metadata-Version: 2.1\nName: {self._name}\nVersion: {VERSIONS[self._name]}\n"

    def locate_file(self, path: object) -> object:
        return path


class Finder(DistributionFinder, Loader):
    """Finds the packages and all modules in them."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> object:
        if fullname.partition(".")[0] not in VERSIONS:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = Hollow(spec.name)
        module.__version__ = VERSIONS[spec.name.partition(".")[0]]
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Execute nothing."""

    def find_distributions(self, context: object = None) -> Iterable[Distribution]:
        wanted = getattr(context, "name", None)
        return [Described(name) for name in VERSIONS if wanted in (None, name)]


sys.meta_path.append(Finder())
