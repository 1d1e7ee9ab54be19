"""What a sentence names exists: in the pages, in docstrings and in CONTRIBUTING.

A name is what stands in backquotes. An identifier has to occur in the code, beyond docstrings and
comments; an attribute in its class; a module, a file, a setting, a metric, a make target and an
experiment have to be there, and a command with its options. Retired experiments are called so.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from docs_pages import ROOT
from test_docs_snippets import resolved, sections

from laar.settings import Settings
from laar_lab.experiments import all_experiments

OTHERS = {
    *("CLAUDE_CODE_MAX_CONTEXT_TOKENS", "CUDA_MPS_PIPE_DIRECTORY", "KVAwareRouter"),
    *("defaultRequestTTL", "flowControl", "maxBytes", "maxConcurrency", "maxRequests"),
    *("peakPrefillThroughput", "queueDepthThreshold"),
    *("OffloadingConnector", "caCertificates", "endpointpicker_POOL_NAMESPACE_ext_proc"),
    *("env_key", "ext_proc_graceful_grpc_close", "extensionManager", "backendResources"),
    *("extra_headers", "general_settings", "generationConfig", "iteration_tokens_total"),
    *("kv_aware", "max_loras", "modelNameOverride", "modelProviders", "power_of_two"),
    "OTEL_SERVICE_NAME",
    *("reloadable_features", "request_num_preemptions", "subPath", "supports_websockets"),
    *("docs/concepts/routing/cache-aware.md", "src/policies", "src/policies/cache_aware.rs"),
}
"""Names in other programs that laar's code need not know, such as settings of coding agents."""

_DATA = (".yaml", ".yml", ".toml", ".proto", ".txt", ".js", ".html", ".tpl", ".service", ".json")
_NO_NAMES = ("docs/", "tests/")  # their data may contain what they say
_FENCED = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
_PAGES = ("*.md", "*/README.md", "docs/**/*.md", "examples/**/*.md")


class Code:
    """The names that the repository has, and the texts of docstrings by file."""

    def __init__(self) -> None:
        self.words, self.dotted, self.tops = set(OTHERS), set[str](), set[str]()
        self.members: dict[str, set[str]] = defaultdict(set)
        self.bases: dict[str, set[str]] = defaultdict(set)
        self.docstrings: list[tuple[str, str]] = []
        self.experiments = set(all_experiments())
        retired = (ROOT / "lab/retired").glob("*.yaml")
        self.retired = {path.stem.replace("_", "-") for path in retired}
        self.targets = set(
            re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        )
        self.metrics = (ROOT / "docs/reference/metrics.md").read_text("utf-8")
        self.settings = sections(Settings)
        told = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(told, capture_output=True, text=True, check=True).stdout
        for name in listed.splitlines():
            path = ROOT / name
            if path == Path(__file__):
                continue
            self.tops.add(name.partition("/")[0])
            if path.suffix == ".py" and path.is_file():
                self.words.add(path.stem)
                text = path.read_text("utf-8")
                if name.startswith("tests/"):
                    self._text(text)
                else:
                    self._read(name, path.stem, ast.parse(text))
            elif path.suffix in _DATA and not name.startswith(_NO_NAMES) and path.is_file():
                self._text(path.read_text("utf-8", "replace"))

    def _text(self, text: str) -> None:
        self.words.update(re.findall(r"\w+", text))
        self.dotted.update(re.findall(r"\w+(?:\.\w+)+", text))

    def _read(self, file: str, owner: str, tree: ast.AST) -> None:
        """Read what a module or class contains; `owner` is its name."""
        members = self.members[owner]
        for node in ast.iter_child_nodes(tree):
            match node:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    self.docstrings.append((file, text))
                    continue
                case ast.ClassDef(name=name):
                    members.add(name)
                    self.words.add(name)
                    for base in node.bases:
                        self.bases[name].update(re.findall(r"\w+(?=\[|$)", ast.unparse(base)))
                    self._read(file, name, node)
                    continue
                case ast.FunctionDef(name=word) | ast.AsyncFunctionDef(name=word):
                    members.add(word)
                case ast.Name(id=word) | ast.Attribute(attr=word) | ast.arg(arg=word):
                    is_own = isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self"
                    if is_own or not isinstance(tree, ast.Expr | ast.Call | ast.Attribute):
                        members.add(word)
                case ast.keyword(arg=str(word)):
                    pass
                case ast.alias():
                    word = node.asname or node.name.rpartition(".")[2]
                    members.add(word)
                    self._text(node.name)
                case ast.Constant(value=str(text)):
                    self._text(text)
                    members.update({text} if text.isidentifier() else ())
                    continue
                case ast.Constant(value=bytes(raw)):
                    self._text(raw.decode("latin-1"))
                    continue
                case _:
                    word = ""
            self.words.add(word)
            self._read(file, owner, node)

    def has(self, owner: str, name: str) -> bool:
        """Whether a class, or one of its bases, has a member; true for unknown bases."""
        if owner not in self.members:
            return True
        return name in self.members[owner] or any(
            self.has(base, name) for base in self.bases[owner] - {owner}
        )

    def is_wrong(self, span: str, text: str = "") -> bool:
        """Whether a name in a text names nothing."""
        if span in OTHERS:
            return False
        if " " in span:
            return self._is_wrong_command(span.split())
        if "/" in span:
            return self._is_wrong_file(span)
        if "-" in span:
            if span not in self.retired:
                return False
            pattern = rf"`{span}`[^.]*retired|retired[^.]*`{span}`"
            return not re.search(pattern, " ".join(text.split()))
        return self._is_wrong_identifier(span)

    def _is_wrong_identifier(self, span: str) -> bool:
        found = re.fullmatch(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*(\(\))?", span)
        parts = span.removesuffix("()").split(".")
        if not found or parts[-1] in ("py", "md", "json", "yaml"):
            return False
        if len(parts) == 1 and not re.search(r"\w\w_|_\w\w|[a-z][A-Z]|\(", span):
            return False  # an ordinary word, or a letter of a formula
        if re.fullmatch(r"laar_\w+_(total|seconds|bytes)", span):
            return f"`{span}`" not in self.metrics
        if parts[0] in ("laar", "laar_lab", "laar_vllm", "bench") and span not in self.dotted:
            return not any(self._is_there(parts, ROOT / at) for at in _SOURCES)
        if len(parts) == 2 and self.settings.get(parts[0]) and span not in self.dotted:
            return parts[1] not in self.settings[parts[0]] and not self.has(*parts)
        if len(parts) == 2 and span[0].isupper() and not self.has(*parts):
            return True
        return not self.words.issuperset(parts)

    def _is_there(self, parts: list[str], path: Path) -> bool:
        at = 0
        while at < len(parts) and (path / parts[at]).is_dir():
            path, at = path / parts[at], at + 1
        if at < len(parts) and (path / f"{parts[at]}.py").is_file():
            path, at = path / f"{parts[at]}.py", at + 1
        module = "__init__" if path.is_dir() else path.stem
        return at > 0 and (at == len(parts) or parts[at] in self.members[module])

    def _is_wrong_file(self, span: str) -> bool:
        top = span.partition("/")[0]
        base = "src/laar" if top in ("core", "protocol", "plugins", "policies") else ""
        if not re.fullmatch(r"[\w./*-]+", span) or not (base or top in self.tops):
            return False
        if any((ROOT / base).glob(f"{span.rstrip('/')}*")):
            return False
        told = ["git", "-C", str(ROOT), "check-ignore", "--quiet", span]
        return subprocess.run(told, check=False).returncode != 0  # made by a command

    def _is_wrong_command(self, words: list[str]) -> bool:
        match words:
            case ["laar", "lab", "run" | "results", name, *_] if re.match("[a-z]", name):
                return name not in self.experiments
            case ["laar", first, *_] if re.fullmatch(r"[a-z][a-z-]+", first):
                try:
                    command, rest = resolved(tuple(words[1:]))
                except AssertionError:
                    return True
                known = {name for p in command.params for name in (*p.opts, *p.secondary_opts)}
                given = {word.partition("=")[0] for word in rest if word.startswith("--")}
                return bool(given - known - {"--help"})
            case ["make", target, *_]:
                return bool(re.fullmatch(r"[a-z-]+", target)) and target not in self.targets
            case ["python", "-m", "bench", name, *_] if re.fullmatch(r"[a-z_]+", name):
                return not (ROOT / f"bench/bench_{name}.py").is_file()
            case ["python" | "pytest", file, *_] if "/" in file:
                return not (ROOT / file.partition("::")[0]).exists()
        return False


_SOURCES = ("src", "lab/src", "engine/src", ".")


def _said(code: Code) -> Iterator[tuple[str, str]]:
    pages = {page for pattern in _PAGES for page in ROOT.glob(pattern)}
    for page in sorted(pages - {ROOT / "CHANGELOG.md", ROOT / "lab/retired/README.md"}):
        yield page.relative_to(ROOT).as_posix(), page.read_text("utf-8")
    yield from code.docstrings


@pytest.fixture(scope="module")
def code() -> Code:
    return Code()


@pytest.mark.long
def test_what_sentences_name_exists(code: Code) -> None:
    lost = {
        f"{where}: {name}"
        for where, text in _said(code)
        for _, span in re.findall(r"(`{1,2})([^`]+)\1", _FENCED.sub("", text))
        if code.is_wrong(name := " ".join(span.split()), text)
    }
    assert not lost, "\n".join(sorted(lost))


@pytest.mark.parametrize(
    "name",
    [
        "Director.later",
        "later_than_ever()",
        "LaterCost",
        "laar.core.later",
        "laar_lab.sweep.later",
        "core/later.py",
        "tests/core/test_later.py",
        "laar later",
        "laar check --later",
        "laar lab run later",
        "make later",
        "python -m bench later",
        "pytest tests/later.py",
        "routing.later_s",
        "laar_later_total",
        "agents-fair",
    ],
)
def test_a_name_of_nothing_is_found(code: Code, name: str) -> None:
    assert code.is_wrong(name)
