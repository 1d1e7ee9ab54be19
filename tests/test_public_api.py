"""`public_api.txt` lists the public API.

After a change to the API, update the file by hand, and add a line to the changelog.
"""

import ast
import operator
import runpy
import subprocess
import sys
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import laar
import laar.testing

HERE = Path(__file__).parent
GENERATOR = HERE.parent / "docs" / "reference" / "generate.py"


def test_public_names_and_signatures_match_the_pinned_ones():
    generator = runpy.run_path(str(GENERATOR))
    names = [name for names in generator["PYTHON_API"].values() for name in names]
    public = set(laar.__all__) | {f"testing.{name}" for name in laar.testing.__all__}
    assert set(names) == public, "the page must list each name"
    signatures = [
        generator["signature_of"](name, operator.attrgetter(name)(laar))
        for name in names
        if name not in generator["ALIASES"]
    ]
    assert "\n".join(signatures) + "\n" == (HERE / "public_api.txt").read_text()


def test_exactly_the_promised_names_exist():
    assert set(laar.__all__) <= set(dir(laar))
    assert laar.__version__ == version("laar")
    assert not hasattr(laar, "Director")


def test_importing_laar_alone_is_fast():
    code = "import sys, laar; print(sorted({'numpy', 'aiohttp', 'grpc'} & sys.modules.keys()))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


OF_TWO_CLASSES = {"Attempt", "Picker"}
"""Names that two packages have. No other may join them: one word, one thing."""


def test_a_name_of_a_class_means_one_thing():
    root = HERE.parent / "src" / "laar"
    files = [path for path in root.rglob("*.py") if path.parent.name != "wire"]
    trees = [ast.parse(path.read_text("utf-8")) for path in files]
    names = Counter(
        node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)
    )
    assert {name for name, n in names.items() if n > 1 and name[0] != "_"} == OF_TWO_CLASSES
