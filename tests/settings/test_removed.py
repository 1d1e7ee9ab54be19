"""A file of an earlier release gets an answer for each setting that is gone."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from laar.errors import SettingError
from laar.settings import Settings, load
from laar.settings.removed import REMOVED
from laar.settings.section import leaves


def put(document, name, value):
    """Put a value at the path of a setting, in the first item of each list."""
    at, (*sections, last) = document, name.split(".")
    for section in sections:
        if section.endswith("[]"):
            at = at.setdefault(section[:-2], [{}])[0]
        else:
            at = at.setdefault(section, {})
    at[last] = value


@given(
    names=st.lists(st.sampled_from(sorted(REMOVED)), min_size=1, max_size=8, unique=True),
    value=st.sampled_from([1, "text", True, {"a": "b"}]),
    flow=st.booleans(),
)
def test_each_is_reported_at_its_line_with_what_replaces_it(tmp_path_factory, names, value, flow):
    document = {"endpoints": [{"address": "127.0.0.1:8000", "model": "m"}]}
    for name in names:
        put(document, name, value)
    file = tmp_path_factory.getbasetemp() / "laar.yaml"
    file.write_text(yaml.safe_dump(document, default_flow_style=flow))
    with pytest.raises(SettingError) as caught:
        load(file)
    told = str(caught.value).splitlines()
    for name in names:
        place = name.replace("[]", "[0]")
        (line,) = [each for each in told if f": {place}: " in each]
        assert line.endswith(f"{place}: {REMOVED[name]}")
        assert "unknown key" not in line
        number = int(line.removeprefix(f"{file}:").partition(":")[0])
        assert name.rpartition(".")[2] in file.read_text().splitlines()[number - 1]


def test_none_exists():
    known = {name for name, _ in leaves(Settings)}
    assert not known & {name.replace("[]", "") for name in REMOVED}
    assert "routing.policy" in known
