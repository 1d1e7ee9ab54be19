"""Every example runs unchanged, and the guides show the examples' files."""

import json
import os
import re
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from laar.cli import app
from support.plugins import install, installed

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
CHEAP = EXAMPLES / "cheap_first"
MONEY = EXAMPLES / "money"
GUIDE = ROOT / "docs" / "guides" / "write-a-scorer.md"


@pytest.fixture
def cheap_first(tmp_path):
    """Return folders for the path, with the code and dist-info of the example's package."""
    text = (CHEAP / "pyproject.toml").read_text()
    points = dict(re.findall(r'^([\w-]+) = "(\w+:\w+)"$', text, re.MULTILINE))
    assert points == {"cheap-first": "cheap_first:CheapFirst"}
    return CHEAP, install(tmp_path / "site", "cheap-first", {"laar.scorers": points})


def run(*words, path=()):
    """Run Python with laar; return its output."""
    given = os.pathsep.join(map(str, [*path, os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        env={**os.environ, "PYTHONPATH": given},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_scorer_passes_its_own_tests_and_serves_once_installed(cheap_first):
    tests = run("-m", "pytest", "-q", "-p", "no:cacheprovider", CHEAP, path=cheap_first)
    assert " passed" in tests
    with installed(*cheap_first):
        checked = CliRunner().invoke(app, ["check", "--no-ports", "-c", str(CHEAP / "laar.yaml")])
    assert "policy: thrifty" in checked.output


def test_the_plugin_passes_its_own_tests_and_serves_once_installed(tmp_path):
    points = {"laar.plugins": {"money": "money:Money"}}
    path = MONEY, install(tmp_path / "site", "laar-money", points)
    assert " passed" in run("-m", "pytest", "-q", "-p", "no:cacheprovider", MONEY, path=path)
    with installed(*path):
        checked = CliRunner().invoke(app, ["check", "--no-ports", "-c", str(MONEY / "laar.yaml")])
        assert checked.exit_code == 0, checked.output
        unknown = tmp_path / "unknown.yaml"
        unknown.write_text((MONEY / "laar.yaml").read_text().replace("seconds_per", "second_per"))
        refused = CliRunner().invoke(app, ["check", "--no-ports", "-c", str(unknown)])
    assert "second_per_dollar" in refused.output
    assert len((MONEY / "money.py").read_text().splitlines()) <= 150


def test_the_cheap_endpoint_is_chosen_if_both_are_suitable(cheap_first):
    from laar.server.admin.explain import explain, read_request
    from laar.server.picker import Picker
    from laar.settings import load

    with installed(*cheap_first):
        settings = load(CHEAP / "laar.yaml").settings
        picker = Picker(settings, seed=1)
    picker.table.replace("file", [each.spec() for each in settings.endpoints])
    body = {"model": "auto", "messages": [{"role": "user", "content": "Hello"}]}
    told = explain(picker, read_request(picker, json.dumps(body).encode(), {}))
    assert (told["policy"], told["endpoint"]) == ("thrifty", "127.0.0.1:8001")


@contextmanager
def gateway(answers):
    """Run a gateway that gives these answers in order."""
    left = list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"]))
            model, text = left.pop(0)
            body = {
                "model": model,
                "choices": [{"message": {"role": "assistant", "content": text}}],
            }
            sent = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, *_args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_client_asks_until_the_answer_is_correct():
    with gateway([("small", "17 times 23 is 381."), ("large", "It is 391.")]) as url:
        printed = run(EXAMPLES / "until_correct.py", url)
    assert re.fullmatch(r"right after \d+\.\d\d s; asked: small, large\n", printed)


def test_a_fleet_of_three_engines_is_valid_and_each_page_is_read():
    from laar.settings import load

    settings = load(EXAMPLES / "three_engines" / "laar.yaml").settings
    assert [each.engine for each in settings.endpoints] == ["vllm", "sglang", "tensorrt-llm"]


def test_every_example_is_listed_and_has_its_test():
    page = (EXAMPLES / "README.md").read_text()
    here = Path(__file__).read_text()
    for path in EXAMPLES.iterdir():
        if path.name != "README.md" and not path.name.startswith((".", "__")):
            assert f"]({path.name})" in page
            assert path.name in here


def test_the_guide_shows_the_files_of_the_example():
    fences = re.findall(r'```\w+ title="([^"]+)"\n(.*?)```', GUIDE.read_text(), re.DOTALL)
    shown = {name: text for name, text in fences if name != "composed.yaml"}
    assert set(shown) == {"cheap_first.py", "pyproject.toml", "laar.yaml", "test_cheap_first.py"}
    for name, text in shown.items():
        assert text == (CHEAP / name).read_text(), name
