"""Files that are YAML, but not what is expected."""

from pathlib import Path

import pytest

from laar.datalayer.endpoints_file import load_endpoints
from laar.errors import SettingError
from laar_lab.sim.answers import AccuracySurface
from laar_lab.sim.engine import load_profile
from laar_lab.sim.fleet_file import read_fleet

READERS = [load_endpoints, read_fleet, AccuracySurface.load, lambda path: load_profile(str(path))]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(
    "text",
    [
        "x: " + "[" * 5000 + "]" * 5000,
        "x: " + "? " * 5000,
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
def test_a_file_that_is_not_plain_data_is_refused(read, text: str, tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(text)
    with pytest.raises(SettingError) as refused:
        read(path)
    assert len(str(refused.value)) < 5000


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
