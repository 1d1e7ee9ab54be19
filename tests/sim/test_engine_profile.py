"""All profiles that come with laar load, and errors in profiles are reported."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from laar.errors import SettingError
from laar_lab.sim.engine import (
    SCHEDULERS,
    build_engine,
    load_hardware,
    load_model,
    load_profile,
    profile_names,
)
from laar_lab.sim.engine.profile import DATA

FILES = ("engine-hardware.yaml", "engine-models.yaml", "engine-profiles.yaml")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a directory with a copy of the data files to corrupt."""
    for name in FILES:
        (tmp_path / name).write_bytes((DATA / name).read_bytes())
    return tmp_path


def spoil(file: Path, entry: str, change: dict[str, object] | None, without: str = "") -> None:
    content = yaml.safe_load(file.read_text())
    content[entry].update(change or {})
    content[entry].pop(without, None)
    file.write_text(yaml.safe_dump(content))


@pytest.mark.parametrize("name", profile_names())
def test_every_profile_builds_an_engine(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name
    assert profile.settings.scheduler in (*SCHEDULERS, "parallel")
    assert build_engine(profile).step(0.0) is None


@pytest.mark.parametrize(
    ("file", "entry", "change", "message"),
    [
        (0, "h100", {"memory_bytes": {"value": 8e10}}, "`memory_bytes` needs a `value` and its"),
        (0, "h100", {"memory_bytes": 8e10}, "`memory_bytes` needs a `value` and its `source`"),
        (0, "h100", {"memory_bytes": {"value": -1, "source": "x"}}, "`memory_bytes`: .*greater"),
        (0, "h100", {"color": {"value": 1, "source": "x"}}, "`color`"),
        (1, "llama-3-8b", {"kv_heads": {"value": "few", "source": "x"}}, "`kv_heads`"),
        (2, "llama-3-8b-h100", {"hardware": "tpu"}, "unknown entry `tpu`; known: a100, h100, l40s"),
        (2, "llama-3-8b-h100", {"tensor": 0}, "`tensor` is 0"),
        (2, "llama-3-8b-h100", {"tensor": "many"}, "`tensor`"),
        (2, "llama-3-8b-h100", {"tensors": 8}, "unknown `tensors`"),
        (2, "llama-3-8b-h100", {"settings": {"max_num_seqs": 0}}, r"\.settings: `max_num_seqs`"),
        (2, "llama-3-8b-h100", {"settings": {"slots": 4}}, r"\.settings: `slots`"),
        (2, "llama-3-8b-h100", {"settings": {"block_size": "big"}}, r"\.settings: `block_size`"),
        (2, "gorgo-main", {"settings": {}}, r"gorgo-main\.settings: `num_blocks` is missing"),
    ],
)
def test_errors_in_a_profile_are_reported(
    data: Path, file: int, entry: str, change: dict[str, object], message: str
) -> None:
    spoil(data / FILES[file], entry, change)
    with pytest.raises(SettingError, match=message):
        load_profile(entry, data) if file == 2 else (
            load_hardware(entry, data) if file == 0 else load_model(entry, data)
        )
