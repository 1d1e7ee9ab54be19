"""The tuner in a running picker: made from the settings, kept across restarts, shown and frozen.

    GET  /tuner         the weights, how the climb goes, and its last windows
    POST /tuner/freeze  serve the best weights found from now on

A climb on live traffic is an experiment on users. Its guard rails are the tuner's own (floors and
caps, a candidate that is stopped as soon as it hurts, one window's exposure) and this switch.

The state is a JSON file of its own, replaced as a whole off the loop. It is not trusted: a
file that makes no sense costs a warning, never the start.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from laar.errors import SettingError
from laar.server.admin.answers import as_json
from laar.server.state_file import StateFile
from laar.settings import Tuning
from laar.telemetry.problems import Problems
from laar.tuning.tuner import Tuner

_LOG = logging.getLogger(__name__)

MAX_STATE_BYTES = 64 << 10
"""A state is some hundred bytes."""


class TunerKeeper:
    """The tuner of one picker, and what outlives it.

    Args:
        settings: settings of the climb, which is enabled.
        initial: the weights of the cost by name, to start from.
        problems: gets a state file that cannot be written.
    """

    def __init__(
        self,
        settings: Tuning,
        initial: Mapping[str, float],
        *,
        problems: Problems,
    ) -> None:
        self._settings = settings
        self.state_file = StateFile(
            settings.state_file,
            setting="tuner.state_file",
            what="the climb",
            take=lambda: orjson.dumps(self.tuner.state_dict()),
            problems=problems,
        )
        self.tuner = self._restored() or Tuner(
            settings.climb,
            # A term that is switched off begins at its floor: a climb in logarithms knows no zero.
            {name: max(initial[name], floor) for name, (floor, _) in settings.bounds.items()},
        )

    def shown(self) -> dict[str, object]:
        """Return the export, with further fields for viewers."""
        return {
            "enabled": True,
            **self.tuner.export(),
            "sigma": self.tuner.sigma,
            "bounds": dict(self._settings.bounds),
            "window_requests": self._settings.climb.window,
            "under_way": self.tuner.under_way,
        }

    def _restored(self) -> Tuner | None:
        path = self._settings.state_file
        if path is None:
            return None
        try:
            with path.open("rb") as file:
                data = file.read(MAX_STATE_BYTES + 1)
            state = orjson.loads(data) if len(data) <= MAX_STATE_BYTES else None
            return Tuner.from_state(self._settings.climb, state)
        except FileNotFoundError:
            return None
        except (OSError, orjson.JSONDecodeError, SettingError) as fault:
            _LOG.warning("tuner.state_file %s can't be used: %s", path, fault)
            return None


def routes(keeper: TunerKeeper | None) -> list[Route]:
    """Return the routes for the admin port; without a tuner they report that it is off."""

    async def show(_request: Request) -> Response:
        return as_json(keeper.shown() if keeper else {"enabled": False})

    async def freeze(request: Request) -> Response:
        if keeper:
            keeper.tuner.freeze()
            await keeper.state_file.save()
        return await show(request)

    return [Route("/tuner", show), Route("/tuner/freeze", freeze, methods=["POST"])]
