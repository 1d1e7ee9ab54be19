"""Use the picker and the Envoy of the server tests."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

_spec = spec_from_file_location("server_fixtures", Path(__file__).parents[1] / "server/conftest.py")
_fixtures = module_from_spec(_spec)
_spec.loader.exec_module(_fixtures)

gateway = _fixtures.gateway
