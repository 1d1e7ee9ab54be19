"""Settings for health: when an endpoint counts as failing, and how it recovers."""

from __future__ import annotations

from laar.health import HealthSettings
from laar.settings.section import Section, declared, part


@declared(HealthSettings)
class HealthSection(Section):
    """Failing endpoints: learning from outcomes, and the circuit breaker."""

    @property
    def breaker(self) -> HealthSettings:
        """Return the circuit breaker's settings."""
        return part(HealthSettings, self)
