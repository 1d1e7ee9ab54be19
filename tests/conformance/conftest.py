"""Use the picker and the Envoy of the server tests."""

from pathlib import Path

from support.scripts import module_of

gateway = module_of(Path(__file__).parents[1] / "server/conftest.py").gateway
