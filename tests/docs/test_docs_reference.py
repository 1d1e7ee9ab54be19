"""The hand-written reference pages list everything that exists, and nothing else."""

import ast
import dataclasses
import re
import runpy
from collections import Counter
from typing import get_args

import pytest
from docs_pages import DOCS, ROOT
from starlette.routing import Route

import laar.client
from laar.core.guards import Reasoned
from laar.flow import queue
from laar.plugins import own
from laar.policies.own import OWN
from laar.policies.registry import PartKind
from laar.protocol import headers
from laar.server.runner import Runner
from laar.settings import Settings
from support import free_port

REFERENCE = DOCS / "reference"
SOURCES = sorted(p for top in ("src/laar", "lab/src") for p in (ROOT / top).rglob("*.py"))


@pytest.mark.parametrize("name", ["cli.md", "../../lab/commands.md"])
def test_the_pages_on_the_command_line_match_the_code(name):
    generator = runpy.run_path(str(REFERENCE / "generate.py"))
    remedy = "run `python docs/reference/generate.py`"
    assert (REFERENCE / name).read_text() == generator["PAGES"][name](), remedy


def test_every_header_is_described():
    page = (REFERENCE / "headers.md").read_text()
    names = {
        value
        for name, value in vars(headers).items()
        if name.isupper() and not name.startswith("_") and isinstance(value, str)
    }
    assert len(names) > 10
    missing = [name for name in names | headers.SIGNATURES if f"`{name}`" not in page]
    assert missing == []
    code = "".join(path.read_text() for path in (ROOT / "src/laar").rglob("*.py"))
    uses = Counter(re.findall(r"\b[A-Z][A-Z_0-9]+\b", code))
    assert [name for name in vars(headers) if name.isupper() and uses[name] == 1] == []


def test_every_part_of_a_policy_is_described():
    page = (DOCS / "guides/write-a-scorer.md").read_text()
    parts = [name for kind in OWN if kind is not PartKind.POLICY for name in OWN[kind]]
    assert [
        name for name in parts if f"| `{name}`" not in page and f"`, `{name}`" not in page
    ] == []


def refusals():
    """Return the reason codes of refusals on the data path, from the arguments of calls."""
    for path in SOURCES:
        if path.relative_to(ROOT).parts[2] not in ("core", "protocol", "flow"):
            continue
        if "RequestError(" not in (text := path.read_text()):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "RequestError":
                status, reason = node.args[:2]
                if isinstance(status, ast.Constant) and isinstance(reason, ast.Constant):
                    yield status.value, reason.value


def test_every_reason_is_described():
    page = (REFERENCE / "headers.md").read_text()
    found = set(refusals())
    assert len(found) >= 5
    for status, reason in found:
        assert f"| {status} | `{reason}` |" in page
    for name, value in vars(queue).items():
        assert not (name.isupper() and isinstance(value, str)) or f"`{value}`" in page
    for what in {*get_args(Reasoned), *(plugin.name for plugin in own())} - {"plugin"}:
        assert f"`degraded-{what}`" in page


@pytest.fixture
def admin_routes(tmp_path):
    """Return the method and path of each route of the admin port, with all features enabled."""
    settings = Settings.model_validate(
        {
            "endpoints": [{"address": "127.0.0.1:1", "model": "m"}],
            "listen": {"admin": f"127.0.0.1:{free_port()}"},
            "flow": {"enabled": True},
        }
    )
    server = Runner(settings).admin.open()
    server.close()
    app = server.config.app
    while not hasattr(app, "routes"):
        app = app.app
    routes = [route for route in app.routes if isinstance(route, Route)]
    return {(m, r.path) for r in routes for m in (r.methods or {"GET"}) - {"HEAD"}}


def test_the_page_on_the_admin_api_lists_all_routes(admin_routes):
    page = (REFERENCE / "admin-api.md").read_text()
    described = set(re.findall(r"`(GET|POST) (/[^`?]*)`", page))
    assert described == admin_routes


@pytest.mark.parametrize("value", [laar.client.Outcome, laar.client.Attempt])
def test_every_field_of_the_results_is_described(value):
    page = (REFERENCE / "python-client.md").read_text()
    missing = [field.name for field in dataclasses.fields(value) if f"`{field.name}`" not in page]
    assert missing == []
