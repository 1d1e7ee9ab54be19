"""A setting is declared once: the file, the features and the lab have the same defaults."""

from dataclasses import dataclass, fields, is_dataclass

import pytest
import yaml
from annotated_types import Ge, Gt, Le, Lt

from laar.context.settings import ContextSettings
from laar.core.cost import CostWeights
from laar.core.decision import DirectorSettings, Enforcement
from laar.errors import SettingError
from laar.flow.settings import FlowSettings
from laar.health import HealthSettings
from laar.plugins.apart import ApartSettings
from laar.plugins.modes import ModesSettings
from laar.protocol.stream import StreamSettings
from laar.settings import Settings, load
from laar.settings.context import ContextRoute
from laar.settings.section import Section
from laar_lab.sim.fleet import FleetSettings
from support.other_settings import BASE, OTHER, document


@dataclass
class Plugins:
    modes: ModesSettings
    apart: ApartSettings


def parts(settings):
    """Return the settings of each feature."""
    return {
        "streams": settings.stream,
        "flow": settings.flow.admission,
        "health": settings.health.breaker,
        "enforcement": settings.routing.enforcement,
        "director": settings.routing.director,
        "plug-ins": Plugins(*settings.routing.of_plugins),
        "cost": settings.routing.weights,
    }


def values(settings):
    """Yield every field by name, including those of nested dataclasses."""
    for field in fields(settings):
        value = getattr(settings, field.name)
        if is_dataclass(value):
            yield from values(value)
        elif field.compare:
            yield field.name, value


def test_an_omitted_setting_has_the_default_of_its_feature():
    settings = Settings.model_validate(BASE)
    assert parts(settings) == {
        "streams": StreamSettings(),
        "flow": FlowSettings(),
        "health": HealthSettings(),
        "enforcement": Enforcement(),
        "director": DirectorSettings(),
        "plug-ins": Plugins(ModesSettings(), ApartSettings()),
        "cost": CostWeights(),
    }
    assert ContextRoute(name="any").hook == ContextSettings()


def test_the_lab_has_the_default_settings_of_the_picker():
    settings, lab = Settings.model_validate(BASE), FleetSettings()
    director = settings.routing.director
    assert lab.policy == director.policy
    assert lab.weights == settings.routing.weights
    assert lab.prefix_bytes == settings.prefix.max_bytes
    assert lab.scrape_interval_s == settings.readings.scrape_interval_s
    assert lab.probe_interval_s == settings.readings.probe_interval_s
    assert lab.sample_answers == settings.bodies.sample_answers
    assert lab.sample_every_s == settings.bodies.sample_every_s


NO_KEY = {"transfer_tokens_per_s"}


def test_every_setting_of_a_feature_can_be_set_in_the_file():
    """Change all settings in the file; each field in the code must differ from its default."""
    chosen = set(OTHER)
    before, after = (parts(Settings.model_validate(document(paths))) for paths in ((), chosen))
    for name, part in before.items():
        changed = dict(values(after[name]))
        same = {key for key, value in values(part) if changed[key] == value}
        assert same <= NO_KEY


@pytest.mark.parametrize("mode", ["on", "off", "observe"])
def test_modes_like_off_need_no_quotes(tmp_path, mode):
    (tmp_path / "laar.yaml").write_text(
        "endpoints: [{address: a:1, model: m}]\n"
        f"context: {{routes: [{{name: a, mode: {mode}, dedup: off}}]}}\n"
    )
    (route,) = load(tmp_path / "laar.yaml").settings.context.routes
    assert (route.mode, route.dedup) == (mode, "off")


@pytest.mark.parametrize("word", ["yes", "on", "true"])
def test_words_for_true_and_false_are_not_accepted_as_numbers(tmp_path, word):
    (tmp_path / "laar.yaml").write_text(
        f"endpoints: [{{address: a:1, model: m, max_model_len: {word}}}]\n"
        f"flow: {{enabled: {word}, max_hold_s: {word}, objectives_s: {{gold: {word}}}}}\n"
    )
    with pytest.raises(SettingError) as error:
        load(tmp_path / "laar.yaml")
    faults = str(error.value).splitlines()
    assert [fault.split()[1] for fault in faults] == [
        "endpoints[0].max_model_len:",
        "flow.max_hold_s:",
        "flow.objectives_s.gold:",
    ]
    assert all("is not valid; it must be a number" in fault for fault in faults)


BEYOND = {Ge: ("ge", -1), Gt: ("gt", 0), Le: ("le", 1), Lt: ("lt", 0)}


def bounded(section, path=""):
    """Yield each bounded setting by its path, with a value beyond each of its bounds."""
    for name, field in section.model_fields.items():
        below = field.annotation
        if isinstance(below, type) and issubclass(below, Section):
            yield from bounded(below, f"{path}{name}.")
        for mark in field.metadata:
            if type(mark) in BEYOND:
                attribute, step = BEYOND[type(mark)]
                yield f"{path}{name}", getattr(mark, attribute) + step


@pytest.mark.parametrize(("path", "value"), list(bounded(Settings)))
def test_a_value_beyond_its_bounds_is_refused_by_name(tmp_path, path, value):
    section, _, name = path.rpartition(".")
    (tmp_path / "laar.yaml").write_text(yaml.safe_dump({**BASE, section: {name: value}}))
    with pytest.raises(SettingError, match=rf":\d+: {path}: .* must be "):
        load(tmp_path / "laar.yaml")


@pytest.mark.parametrize(("name", "value"), [*bounded(ContextRoute), ("dedup", "all")])
def test_a_bad_value_in_a_context_route_is_refused_by_name(tmp_path, name, value):
    made = {**BASE, "context": {"routes": [{"name": "rag", name: value}]}}
    (tmp_path / "laar.yaml").write_text(yaml.safe_dump(made))
    with pytest.raises(SettingError, match=rf":\d+: context\.routes\[0\]\.{name}.*: "):
        load(tmp_path / "laar.yaml")
