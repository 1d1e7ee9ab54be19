"""YAML that is small but expands to much."""

import time
from pathlib import Path

import pytest
import yaml

from laar.datalayer import document
from laar.datalayer.document import parse_yaml
from laar.datalayer.endpoints_file import load_endpoints
from laar.errors import SettingError
from laar_lab.sim.answers import AccuracySurface
from laar_lab.sim.engine import load_profile
from laar_lab.sim.fleet_file import read_fleet

BOMB = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9)
)
READERS = [load_endpoints, read_fleet, AccuracySurface.load, lambda path: load_profile(str(path))]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(
    "text",
    [
        BOMB,
        f"endpoints:\n  - &a\n    address: 10.0.0.1:80\n    model: m\n  - *a\n{BOMB}",
        "x: " + "[" * 5000 + "]" * 5000,
        "x: " + "? " * 5000,
        "x: 1" + ":1" * 500_000,
        "x: " + "9" * 100_000,
        "? [a, b]\n: c\n",
        "<<: [1, 2]",
        "x: 2026-13-45",
        "x: !!python/object/apply:os.system [true]",
        "x: !!int ''",
        "x: !!timestamp ''",
        "x: 0b_",
        "x: !!float ''",
    ],
)
def test_a_file_that_expands_too_much_is_refused_immediately(
    read, text: str, tmp_path: Path
) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(text)
    began = time.process_time()
    with pytest.raises(SettingError) as refused:
        read(path)
    assert time.process_time() - began < 10.0
    assert len(str(refused.value)) < 5000


def test_an_alias_counts_as_the_values_it_refers_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "MAX_NODES", 40)
    text = "a: &a {x: 1, y: &y [1, 2]}\nb: *a\nc: {<<: *a, y: *y}\n"
    assert parse_yaml(text) == {
        "a": {"x": 1, "y": [1, 2]},
        "b": {"x": 1, "y": [1, 2]},
        "c": {"x": 1, "y": [1, 2]},
    }
    with pytest.raises(yaml.YAMLError, match="more than 40 values"):
        parse_yaml(text + "d: [*a, *a]\ne: [*y, *y]\n")
    with pytest.raises(yaml.YAMLError, match="within its own anchor"):
        parse_yaml("a: &a [1, *a]")


def test_nodes_and_characters_are_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "MAX_NODES", 10)
    assert parse_yaml("[1, 2, 3]") == [1, 2, 3]
    with pytest.raises(yaml.YAMLError, match="more than 10 values"):
        parse_yaml(f"[{','.join('1' * 10)}]")
    monkeypatch.setattr(document, "MAX_TEXT_CHARS", 10)
    with pytest.raises(yaml.YAMLError, match="longer than 10"):
        parse_yaml("x" * 11)


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("depth", [100, 320, 400])
def test_a_nested_value_in_the_wrong_place_is_reported(read, depth: int, tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    aliases = "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, depth))
    for text in ("[" * depth + "]" * depth, f"a0: &a0 [x]\n{aliases}"):
        path.write_text(text)
        with pytest.raises(SettingError):
            read(path)


@pytest.mark.parametrize("text", ["? [a, b]\n: c\n", "? {a: b}\n: c\n", "a:\n  ? []\n  : c\n"])
def test_a_list_or_map_as_a_key_is_refused_with_its_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(f"# endpoints\n{text}")
    with pytest.raises(SettingError, match=r"file\.yaml:[23]: not valid YAML: .*unhashable key"):
        load_endpoints(path)
