"""Changes to a settings file apply immediately or wait, and the origin of each value is known."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from laar.cli.check import as_yaml
from laar.declaring import Applies
from laar.settings import Settings, load
from laar.settings.changes import change
from laar.settings.section import leaves, value_at
from support.exploring import examples
from support.other_settings import BASE, OTHER, document

LIVE = {path for path, applies in leaves(Settings) if applies is Applies.AT_ONCE}


def differing(one, other):
    return {path for path, _ in leaves(Settings) if value_at(one, path) != value_at(other, path)}


def test_every_setting_declares_when_a_change_applies():
    silent = [path for path, applies in leaves(Settings) if applies is None]
    assert silent == []
    assert set(OTHER) == {path for path, _ in leaves(Settings)}, "add a value for it to OTHER"


chosen = st.sets(st.sampled_from(sorted(OTHER)))


@pytest.mark.long
@given(chosen, chosen)
@settings(max_examples=examples(150))
def test_live_settings_change_together_and_others_wait(before, after):
    running, wanted = (Settings.model_validate(document(paths)) for paths in (before, after))
    found = change(running, wanted)
    assert set(found.applied) | set(found.pending) == differing(running, wanted)
    assert not found.obstacle
    assert differing(running, found.settings) == set(found.applied) == (before ^ after) & LIVE
    assert differing(found.settings, wanted) == set(found.pending)
    assert change(found.settings, wanted).applied == ()
    back = change(found.settings, running)
    assert (back.settings, back.pending) == (running, ())


@pytest.mark.long
@given(chosen)
@settings(max_examples=examples(100))
def test_settings_after_any_change_are_valid(paths):
    running = Settings.model_validate(BASE)
    found = change(running, Settings.model_validate(document(paths)))
    Settings.model_validate(found.settings.model_dump())


def test_endpoints_that_move_into_a_file_stay_until_the_restart():
    running = Settings.model_validate(BASE)
    wanted = Settings.model_validate({"endpoints_file": "e.yaml", "flow": {"patience": 7}})
    found = change(running, wanted)
    assert found.settings == running
    assert found.applied == ()
    assert set(found.pending) == {"endpoints", "endpoints_file", "flow.patience"}
    assert "no endpoints" in found.obstacle


# -- origins -----------------------------------------------------------------------------------


def write(path, made):
    path.write_text(yaml.safe_dump(made, sort_keys=False))
    return path


@pytest.mark.long
@given(chosen)
@settings(max_examples=examples(60))
def test_the_output_of_check_loads_as_the_same_settings(tmp_path_factory, paths):
    """Each printed line also shows the origin of its value."""
    directory = tmp_path_factory.mktemp("settings")
    (directory / "capability.json").touch()
    made = document(paths)
    loaded = load(write(directory / "laar.yaml", made))
    lines = (directory / "laar.yaml").read_text().splitlines()
    for path, _ in leaves(Settings):
        origin = loaded.origins[path]
        if path in paths or path == "endpoints":
            name, number = origin.split(":")
            assert name == "laar.yaml"
            assert lines[int(number) - 1].strip().startswith(f"{path.rpartition('.')[2]}:")
        else:
            assert origin == "default"
    printed = as_yaml(loaded)
    assert len([line for line in printed.splitlines() if "  # " in line]) == len(loaded.origins)
    again = directory / "again.yaml"
    again.write_text(printed)
    assert load(again).settings == loaded.settings


def test_relative_paths_are_resolved_without_following_the_link_of_the_file(tmp_path):
    """The directory behind a ConfigMap's link has a new name after each update."""
    behind = tmp_path / "..2026_01"
    behind.mkdir()
    write(behind / "laar.yaml", {**BASE, "endpoints_file": "endpoints.yaml"})
    (tmp_path / "laar.yaml").symlink_to(Path("..2026_01/laar.yaml"))
    assert load(tmp_path / "laar.yaml").settings.endpoints_file == tmp_path / "endpoints.yaml"
