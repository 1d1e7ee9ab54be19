"""laar accepts the settings, code and commands on the pages."""

import ast
import functools
import importlib
import re

import click
import pytest
import typer
import yaml
from docs_pages import (
    DOCS,
    PAGES,
    ROOT,
    all_fences,
    commands_below,
    mentioned_commands,
    shown_commands,
)

from laar.cli import app
from laar.settings import Settings
from laar_lab.experiments import all_experiments
from laar_lab.sim.fleet_file import FleetFile
from support.plugins import install, installed


@pytest.fixture(autouse=True, scope="module")
def example_installed(tmp_path_factory):
    """Install the packages that guides' settings name."""
    site = tmp_path_factory.mktemp("site")
    scorer = {"laar.scorers": {"cheap-first": "cheap_first:CheapFirst"}}
    plugin = {"laar.plugins": {"money": "money:Money"}}
    with (
        installed(ROOT / "examples/cheap_first", install(site, "cheap-first", scorer)),
        installed(ROOT / "examples/money", install(site / "money", "laar-money", plugin)),
    ):
        yield


COMMANDS = typer.main.get_command(app)
SOMEWHERE = {"endpoints": [{"address": "127.0.0.1:8000", "model": "m"}]}
OF_OTHERS = {"prometheus.yml", "kustomization.yaml", "values.yaml"}
"""Files of other programs, by the title of their block."""


@pytest.mark.parametrize("fence", all_fences("yaml"), ids=str)
def test_yaml_blocks_are_valid_settings(fence):
    document = yaml.safe_load(fence.text)
    if document is None:  # only a comment for editors
        return
    if fence.title in OF_OTHERS:
        return
    if fence.title == "fleet.yaml":
        FleetFile.model_validate(document)
        return
    sourced = {"endpoints", "endpoints_file", "kubernetes"}.intersection(document)
    Settings.model_validate(document if sourced else SOMEWHERE | document)


@pytest.mark.parametrize("fence", all_fences("python"), ids=str)
def test_python_blocks_compile_and_their_imports_exist(fence):
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    compile(fence.text, str(fence), "exec", flags=flags)
    for node in ast.walk(ast.parse(fence.text)):
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module or "")
            assert all(hasattr(module, name.name) for name in node.names)


@functools.cache
def below(*path):
    """Return the subcommands of the command at a path, by name."""
    return commands_below(below(*path[:-1])[path[-1]] if path else COMMANDS)


def resolved(words):
    """Return the command named by the words after `laar`, and the remaining words."""
    path = ()
    while known := below(*path):
        if len(path) == len(words) or words[len(path)].startswith("-"):
            break
        assert words[len(path)] in known, f"no command {words[len(path)]}"
        path = words[: len(path) + 1]
    command = below(*path[:-1])[path[-1]] if path else COMMANDS
    return command, words[len(path) :]


def walked(check):
    """Check each page; fail with the errors of all pages."""
    faults = []
    for page in PAGES:
        try:
            check(page)
        except (AssertionError, click.ClickException) as fault:
            faults.append(f"{page.relative_to(ROOT)}: {fault}")
    assert not faults, "\n".join(faults)


def test_commands_in_blocks_are_accepted():
    makefile = (ROOT / "Makefile").read_text()

    def check(page):
        for words in shown_commands(page):
            if words[0] == "laar" and "|" not in " ".join(words):
                command, rest = resolved(tuple(words[1:]))
                command.make_context(command.name, list(rest))
                if words[1:3] == ["lab", "run"]:
                    assert words[3] in all_experiments(), words
            if words[0] == "make":
                assert re.search(rf"^{words[1]}:", makefile, re.MULTILINE), words

    walked(check)


def test_commands_mentioned_exist_with_their_options():
    def check(page):
        for words in mentioned_commands(page):
            if page == DOCS / "reference/cli.md" and not words[-1].startswith("-"):
                words = [word for word in words if not word.strip("[]").isupper()]
            if "COMMAND" in words:
                continue
            command, rest = resolved(tuple(words[1:]))
            known = {name for p in command.params for name in (*p.opts, *p.secondary_opts)}
            unknown = {word for word in rest if word.startswith("-")} - known - {"--help"}
            assert not unknown, words

    walked(check)


def sections(model):
    """Return the sections of the settings, and the names of the settings in each."""
    return {
        name: set(getattr(field.annotation, "model_fields", ()))
        for name, field in model.model_fields.items()
    }


def test_settings_and_metrics_named_in_the_text_exist():
    known = sections(Settings)
    metrics = (DOCS / "reference/metrics.md").read_text()

    def check(page):
        text = page.read_text()
        for section, name in re.findall(r"`([a-z_]+)\.([a-z_]+)`", text):
            # `envoy.lb` is a metadata namespace.
            if known.get(section) and (section, name) != ("envoy", "lb"):
                assert name in known[section], f"{section}.{name}"
        for name in re.findall(r"`(laar_[a-z_]+)", text):
            assert f"`{name}`" in metrics or name in ("laar_", "laar_lab", "laar_vllm"), name

    walked(check)


def test_the_layers_on_the_design_page_match_the_import_checker():
    contract = (ROOT / ".importlinter").read_text().partition("layers =\n")[2].partition("\n\n")[0]
    layers = " > ".join(line.strip() for line in contract.splitlines())
    assert layers in " ".join((DOCS / "design.md").read_text().split())
