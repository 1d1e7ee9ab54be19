"""Build the pickers of a virtual fleet: the production director with the lab's settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from laar.core.decision import DirectorSettings
from laar.core.director import Director
from laar.core.interfaces import Assessor
from laar.core.policy import Policy
from laar.errors import SettingError, unknown
from laar.fleet.endpoints import EndpointTable
from laar.fleet.membership import DRAIN_LABEL, PULL_LABEL, ROLE_LABEL, EndpointSpec, Way
from laar.health import Health
from laar.plugins import own
from laar.plugins.apart import ApartSettings
from laar_lab.sim.fleet.link import generator
from laar_lab.sim.fleet.prompts import BlockPrefixes
from laar_lab.sim.fleet.settings import FleetSettings
from laar_lab.sim.fleet.site import Site


def build_picker(
    sites: Sequence[Site],
    settings: FleetSettings,
    *,
    number: int,
    seed: int,
    assessor: Assessor,
    prefixes: BlockPrefixes,
    policies: Mapping[str, Policy],
) -> Director:
    """Return a picker for the fleet, with its own table, random generator and health.

    Args:
        sites: the endpoints.
        settings: settings of the picker.
        number: index of the picker, from 0.
        seed: seed of the run.
        assessor: provides its estimates of the models.
        prefixes: its prefix index.
        policies: policies by name.

    Raises:
        SettingError: the policy is unknown.
    """
    table = EndpointTable()
    table.replace("lab", [endpoint_of(site, settings) for site in sites])
    if settings.policy not in policies:
        raise SettingError(unknown("policy", settings.policy, policies))
    health = None
    if settings.health is not None:
        health = Health(settings.health, rng=generator(seed, f"health {number}"))
    director = Director(
        table,
        policies,
        DirectorSettings(
            policy=settings.policy,
            fallbacks=settings.fallbacks,
            retries=settings.retries,
            wrong_answer_s=settings.wrong_answer_s,
        ),
        plugins=own(),
        rng=generator(seed, f"ties {number}" if number else "ties"),
        assessor=assessor,
        prefixes=prefixes if settings.use_prefixes else None,
        health=health,
    )
    apart = ApartSettings(
        apart=settings.apart,
        apart_tokens=settings.apart_tokens,
        transfer_tokens_per_s=min(site.transfer_tokens_per_s for site in sites),
    )
    director.plugins.use(apart)
    return director


def endpoint_of(site: Site, settings: FleetSettings, *, drains: bool = False) -> EndpointSpec:
    """Return a site's specification, as discovery would report it."""
    labels = {ROLE_LABEL: site.role} if site.role else {}
    labels |= {DRAIN_LABEL: "true"} if drains else {}
    if settings.pulls == "by-cost":
        labels[PULL_LABEL] = "true"
    way = Way(tls=site.link.tls)
    return EndpointSpec(address=site.name, models=(site.model,), labels=labels, way=way)
