"""Write the reference pages that are made from the code, and the runbook that the picker serves.

Run by hand after a change; a test compares what is here with what would be written.
"""

from __future__ import annotations

import collections.abc
import copy
import dataclasses
import enum
import functools
import inspect
import json
import operator
import re
import types
import typing
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import markdown
import typer
from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from typer.models import ArgumentInfo, CommandInfo, ParameterInfo

import laar.testing
from laar.cli import app
from laar.cli.installed import GROUP, OWN, installed
from laar.declaring import field_texts, hints_of
from laar.protocol.stream.phases import TRANSITIONS, RequestPhase, ResponsePhase
from laar.server.admin.metrics import metrics
from laar.settings import Settings
from laar.settings.section import leaves

HERE = Path(__file__).parent

SETTINGS_HEAD = """# Settings

The settings are one YAML document (`laar serve -c laar.yaml`). `laar check -c laar.yaml` prints
every fault of a file with its line, or the settings in effect. This page is generated from the code
by `python docs/reference/generate.py`. For completion in an editor, name
[settings.schema.json](settings.schema.json) in the file (`laar check --schema` prints the schema):

```yaml
# yaml-language-server: $schema=settings.schema.json
```

Names end in their unit: `_s` seconds, `_ms` milliseconds, `_bytes`, `_tokens`. Unknown keys are
errors. Relative paths are relative to the directory of the file that names them.

A running picker rereads a changed file. The column *a change applies* says which settings change
[at once](../guides/change-settings.md), and which after a restart.
"""

APPLIES = dict(leaves(Settings))
_texts = functools.cache(field_texts)  # it takes milliseconds per class

METRICS_HEAD = """# Metrics

The admin port serves these metrics at `GET /metrics`, in OpenMetrics if the scraper asks for it,
and the `process_*` and `python_*` metrics of prometheus-client. This page is generated from the
code by `python docs/reference/generate.py`.

The values of labels come from the settings, from the endpoints or from short fixed lists, with one
bounded exception: `task` is the value of a client's x-laar-task (64 names, `other` for the rest).
So the number of series grows only with endpoints and models. A reading that is not known has no
series, and is never 0.

| metric | kind | labels | what it is |
| --- | --- | --- | --- |
"""

CLI_HEAD = """# Command line

This page is generated from the code by `python docs/reference/generate.py`; `laar COMMAND --help`
prints the same texts. Exit status 2 means a fault that the user can correct; the message names it
and the remedy.

`calibrate` and `fit` need the extra `fit`. `demo`, `evaluate`, `race`, `sim-endpoint`,
`up` and `lab` come with laar-lab
(in a clone, `pip install ./engine ./lab`), and are described in `lab/commands.md`.
"""

LAB_HEAD = """# Commands of laar-lab

This page is generated from the code by `python docs/reference/generate.py`; `laar COMMAND --help`
prints the same texts. Exit status 2 means a fault that the user can correct, 3 a result that misses
its target.
"""


STREAM_HEAD = """# A stream's phases

Envoy opens one ext_proc stream for each HTTP request. This page lists a stream's phases and the
events that move between them; `python docs/reference/generate.py` makes it from `TRANSITIONS` in
`src/laar/protocol/stream/phases.py`. If several phases can follow, the event's content decides.

The request and its answer run in parallel, each in its own half, since an answer may begin
before a long upload ends. An event that has no row in the current phases is counted
(`laar_ignored_messages_total`) and ignored.
"""


PYTHON_API_HEAD = """# Python API

This API is public: names and signatures are pinned by a test (`tests/test_public_api.py`), and a
change to them is noted in the changelog. Everything else in `laar` may change at any time. This
page is generated from the code by `python docs/reference/generate.py`.

[Python client](python-client.md) has examples of the client, and
[Write a scorer](../guides/write-a-scorer.md) and
[Write a plug-in](../guides/write-a-plugin.md) of the rest.
"""

ALIASES = {
    "Floats": "A numpy array of `float64`.",
    "Mask": "A numpy array of booleans, one for each endpoint.",
    "Slots": "A numpy array of slot numbers: indices into the table's columns.",
    "__version__": "The version of the installed package.",
}

PYTHON_API = {
    "Ask until correct": (
        *("until_correct", "until_correct_sync", "Outcome", "Attempt"),
        *("report_outcome", "report_outcome_sync"),
    ),
    "Parts of a policy": ("Filter", "Scorer", "Picker", "Policy"),
    "Plug-ins": ("Plugin", "Part", "Admitted", "Meter", "Core"),
    "What the parts see": (
        *("View", "Request", "Api", "EndpointTable", "EndpointSpec", "Floats", "Mask", "Slots"),
    ),
    "Tests of the parts": (
        *("testing.checks", "testing.Check", "testing.make_view", "testing.director_with"),
    ),
    "Errors": ("LaarError", "SettingError", "RequestError"),
    "The package": ("__version__",),
}


def settings_page() -> str:
    """Return the reference of the settings."""
    return SETTINGS_HEAD + "".join(_section("", Settings))


def _fields(model: type[Any]) -> dict[str, FieldInfo]:
    """Return the fields of a section, or of a dataclass within a setting, with their texts."""
    texts, found = _texts(model), {}
    if issubclass(model, BaseModel):
        for name, info in model.model_fields.items():
            found[name] = copy.copy(info)
            found[name].description = info.description or texts.get(name)
        return found
    for field in dataclasses.fields(model):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        info = FieldInfo.from_annotation(hints_of(model)[field.name])
        info.description = texts[field.name]
        if default is not dataclasses.MISSING:
            info.default = default
        found[field.name] = info
    return found


def _section(path: str, model: type[Any]) -> Iterator[str]:
    heading = path or "At the top"
    lines = [f"\n## {'`' + heading + '`' if path else heading}\n\n"]
    if model.__doc__:
        lines.append(f"{_one_line(model.__doc__)}\n\n")
    lines.append("| setting | type | default | a change applies | what it is |\n")
    lines.append("| --- | --- | --- | --- | --- |\n")
    below = []
    for name, field in _fields(model).items():
        nested = _nested(field.annotation)
        key = f"{path}.{name}".lstrip(".")
        if nested is not None:
            below.append((key + _any_of(field.annotation), nested))
            if not field.description:
                continue  # described by a section of its own
        kind = _cell(_kind(field))
        told = _cell(field.description or "")
        lines.append(f"| `{key}` | {kind} | {_default(field)} | {_applies(key)} | {told} |\n")
    yield from lines if len(lines) > 4 or not below else lines[:-2]
    for key, nested in below:
        yield from _section(key, nested)


def _applies(key: str) -> str:
    """Return when a change applies; items of a list belong to the list's setting."""
    name = key.replace("[]", "").replace(".*", "")
    while name not in APPLIES:
        name = name.rpartition(".")[0]
    told = APPLIES[name]
    assert told is not None, f"{key} says neither at once nor after a restart"
    return told.value


def _nested(annotation: Any) -> type[Any] | None:
    """Return the model inside an annotation, through unions, lists and maps."""
    if isinstance(annotation, type) and (
        issubclass(annotation, BaseModel) or dataclasses.is_dataclass(annotation)
    ):
        return annotation
    found = (_nested(part) for part in typing.get_args(annotation))
    return next((model for model in found if model is not None), None)


def _any_of(annotation: Any) -> str:
    """Return the placeholder for an item in the path of a list or a map."""
    origin = typing.get_origin(annotation)
    return "[]" if origin in (tuple, list) else ".*" if origin in _MAPS else ""


_MAPS = (dict, collections.abc.Mapping)


def _kind(field: FieldInfo) -> str:
    limits = []
    for limit in field.metadata:
        for kind, sign, name in (
            (Ge, ">=", "ge"),
            (Gt, ">", "gt"),
            (Le, "<=", "le"),
            (Lt, "<", "lt"),
        ):
            if isinstance(limit, kind):
                limits.append(f"{sign} {getattr(limit, name):g}")
        if isinstance(limit, MaxLen):
            limits.append(f"at most {limit.max_length}")
        if isinstance(limit, MinLen):
            limits.append(f"at least {limit.min_length}")
    name = _type_name(field.annotation)
    return f"{name}, {', '.join(limits)}" if limits else name


def _type_name(annotation: Any) -> str:
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return " or ".join(f"`{part}`" for part in parts)
    if origin is typing.Annotated:
        return _type_name(parts[0])
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_type_name(part) for part in parts if part is not type(None))
    if origin in (tuple, list):
        return f"list of {_type_name(parts[0])}"
    if origin in _MAPS:
        return f"map of {_type_name(parts[0])} to {_type_name(parts[1])}"
    if _nested(annotation) is annotation:
        return "section"
    if annotation is object:
        return "any value"
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return " or ".join(f"`{member.value}`" for member in annotation)
    names = {str: "text", int: "whole number", float: "number", bool: "true or false", Path: "path"}
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined or value is None:
        return "none"
    if isinstance(value, BaseModel) or dataclasses.is_dataclass(value):
        return "as below"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple | list | dict):
        if len(value) > 10:
            return f"{len(value)} values, which `laar check` prints"
        return f"`{_cell(json.dumps(value))}`" if value else "empty"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`" if value != "" else "empty"


def metrics_page() -> str:
    """Return the reference of the metrics."""
    rows = []
    for metric in metrics():
        labels = ", ".join(f"`{label}`" for label in metric.labels) or "-"
        rows.append(f"| `{metric.name}` | {metric.kind} | {labels} | {_cell(metric.help)} |\n")
    return METRICS_HEAD + "".join(rows)


def cli_page() -> str:
    """Return the reference of the commands."""
    return CLI_HEAD + "".join(_commands("laar", app, "laar"))


def lab_page() -> str:
    """Return the reference of laar-lab's commands."""
    return LAB_HEAD + "".join(_commands("laar", app, "laar_lab"))


def _commands(path: str, group: typer.Typer, package: str) -> Iterator[str]:
    """A section for each command that a package defines, depth first."""
    points: dict[str, EntryPoint] = {}
    if path == "laar":
        points = {name: EntryPoint(name, at, GROUP) for name, at in OWN.items()} | installed()
    plugins = {name: point.load() for name, point in points.items()}
    commands = list(group.registered_commands)
    groups = [(below.name, below.typer_instance) for below in group.registered_groups]
    for name, plugin in plugins.items():
        if isinstance(plugin, typer.Typer):
            groups.append((name, plugin))
        else:
            commands.append(CommandInfo(name, callback=plugin))
    for command in commands:
        function = command.callback
        assert function is not None
        if function.__module__.partition(".")[0] != package:
            continue
        name = f"{path} {command.name or function.__name__.replace('_', '-')}"
        rows, arguments = [], ""
        for parameter in _parameters(function):
            rows.append(f"| {' | '.join(parameter)} |\n")
            if not parameter[0].startswith("`-"):
                argument = parameter[0].strip("`")
                arguments += f" {argument}" if parameter[2] == "required" else f" [{argument}]"
        yield f"\n## `{name}{arguments}`\n\n{_one_line(command.help or function.__doc__ or '')}\n"
        if rows:
            head = "| argument or option | type | default | what it is |\n"
            yield f"\n{head}| --- | --- | --- | --- |\n{''.join(rows)}"
    for below, instance in groups:
        assert instance is not None
        yield from _commands(f"{path} {below}", instance, package)


def _parameters(function: Any) -> Iterator[tuple[str, str, str, str]]:
    """Names, type, default and meaning, each as a cell of the table."""
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        hint = parameter.annotation
        told = next((x for x in hint.__metadata__ if isinstance(x, ParameterInfo)), None)
        assert told is not None, f"{function.__name__}: {name} is not described"
        if getattr(told, "hidden", False):
            continue
        # Typer takes the first name of an annotated option for its default.
        names = [x for x in (told.default, *(told.param_decls or ())) if isinstance(x, str)]
        if isinstance(told, ArgumentInfo):
            names = [name.upper()]
        elif not names:
            long = name.replace("_", "-")
            switch = hint.__origin__ is bool
            names = [f"--{long}", f"--no-{long}"] if switch else [f"--{long}"]
        limits = [
            f"{sign} {limit:g}"
            for sign, limit in ((">=", told.min), ("<=", told.max))
            if limit is not None
        ]
        yield (
            ", ".join(f"`{one}`" for one in names),
            ", ".join([_type_name(hint), *limits]),
            _given(parameter.default),
            _cell(told.help or ""),
        )


def _given(default: object) -> str:
    """Return a parameter's default as a user would type it."""
    if default is inspect.Parameter.empty:
        return "required"
    if default is None:
        return "none"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return f"`{default}`" if default != "" else "empty"


def python_api_page() -> str:
    """The public names, their signatures and docstrings."""
    lines = [PYTHON_API_HEAD]
    described: dict[str, str] = {}
    for title, names in PYTHON_API.items():
        lines.append(f"\n## {title}\n")
        for name in names:
            lines.append(f"\n### `laar.{name}`\n\n")
            if name in ALIASES:
                lines.append(f"{ALIASES[name]}\n")
                continue
            value = operator.attrgetter(name)(laar)
            prose = _prose(value)
            like = described.setdefault(prose, name)
            if prose and like != name:
                prose = f"As `laar.{like}`, from code that is not asynchronous.\n"
            lines.append(f"```text\n{signature_of(name, value)}\n```\n\n{prose}")
    return "".join(lines)


def signature_of(name: str, value: Any) -> str:
    """Return a public name's signature; an interface's methods, or an enumeration's values."""
    name = name.rpartition(".")[2]
    if isinstance(value, type) and issubclass(value, enum.Enum):
        return "\n".join(f"{name}.{member.name}" for member in value)
    if getattr(value, "_is_protocol", False):
        methods = {m: f for m, f in vars(value).items() if inspect.isfunction(f) and m[0] != "_"}
        return "\n".join(_call(f"{name}.{method}", f) for method, f in methods.items())
    return _call(name, value)


def _call(name: str, value: Any) -> str:
    """Return a signature, with one parameter per line if it does not fit one line."""
    if value.__init__ is Exception.__init__:
        return f"{name}(text: str)"
    signature = inspect.signature(value)
    shown = _unquoted(str(signature))
    if inspect.isclass(value):
        shown = shown.removesuffix(" -> None")
    shown = f"{name}{shown}".replace("(self, ", "(")
    if len(shown) <= 100:
        return shown
    parts = []
    for each in signature.parameters.values():
        star = each.kind is each.KEYWORD_ONLY and "    *,\n" not in parts
        parts += ["    *,\n"] if star else []
        parts.append(f"    {_unquoted(str(each))},\n")
    result = "" if inspect.isclass(value) else f" -> {signature.return_annotation}"
    return f"{name}(\n{''.join(parts)}){result}"


def _unquoted(text: str) -> str:
    """Return annotations as written in the code."""
    return re.sub("(: |-> )'([^']*)'", r"\1\2", text)


def _prose(value: Any) -> str:
    """Return a docstring's paragraphs, with its arguments as a list."""
    text = (inspect.getdoc(value) or "").replace("``", "`")
    if dataclasses.is_dataclass(value) and text.startswith(f"{value.__name__}("):
        return ""
    lines: list[str] = []
    for line in text.splitlines():
        item = re.match(r"    (\w+): (.*)", line)
        if re.fullmatch("(Args|Raises|Returns):", line):
            lines.append(f"{line}\n")
        elif item:
            lines.append(f"* `{item[1]}`: {item[2]}")
        else:
            lines.append("  " + line.strip() if line.startswith("    ") else line)
    return "\n".join(lines).rstrip() + "\n"


def schema() -> str:
    """Return the settings' JSON schema."""
    return json.dumps(Settings.model_json_schema(), indent=2) + "\n"


def stream_page() -> str:
    """Return the phases of a stream, and its events."""
    lines = [STREAM_HEAD]
    for half, phases, more in (
        ("The request's half", RequestPhase, " Its `OVER` also ends the answer's half."),
        ("The answer's half", ResponsePhase, ""),
    ):
        lines.append(f"\n## {half}\n\nIt begins with `HEADERS`.{more}\n")
        lines.append("\n| phase | event | next phase |\n| --- | --- | --- |\n")
        for phase in phases:
            name = f"`{phase.name}`: {phase.value}"
            for event, nexts in TRANSITIONS[phase].items():
                after = ", ".join(f"`{one.name}`" for one in nexts)
                lines.append(f"| {name} | `{event.__name__}` | {after} |\n")
                name = ""
            if name:
                lines.append(f"| {name} | | |\n")
    lines.append("\n## The events\n\n| event | meaning |\n| --- | --- |\n")
    events = dict.fromkeys(event for row in TRANSITIONS.values() for event in row)
    lines += [f"| `{event.__name__}` | {_cell(_first_sentence(event))} |\n" for event in events]
    return "".join(lines)


def _first_sentence(kind: type) -> str:
    return _one_line(inspect.getdoc(kind) or "").split(". ")[0].rstrip(".")


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _cell(text: str) -> str:
    return _one_line(text).replace("|", "\\|")


def runbook() -> str:
    """Return docs/troubleshooting.md as the picker serves it, without links to other pages."""
    text = (HERE.parent / "troubleshooting.md").read_text()
    plain = re.sub(r"\[([^\]]+)\]\((?!#|https?:)[^)]*\)", r"\1", text)
    plain = re.sub(r"^(```\w+) .*$", r"\1", plain, flags=re.MULTILINE)  # titles of code blocks
    body = markdown.markdown(plain, extensions=["toc", "tables", "fenced_code"])
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>laar: troubleshooting</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="page.css">
</head>
<body>
<main class="runbook">
<p><a href="./">The live page</a></p>
{body}
</main>
</body>
</html>
"""


PAGES = {
    "settings.md": settings_page,
    "metrics.md": metrics_page,
    "cli.md": cli_page,
    "../../lab/commands.md": lab_page,
    "python-api.md": python_api_page,
    "stream.md": stream_page,
    "settings.schema.json": schema,
    "../../src/laar/server/admin/page/runbook.html": runbook,
}


def main() -> None:
    """Writes every page."""
    for name, render in PAGES.items():
        (HERE / name).write_text(render())


if __name__ == "__main__":
    main()
