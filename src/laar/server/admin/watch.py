"""Everything for looking at a running picker: what was decided and why, the page and its feed.

One object for the runner to hold: it takes decisions and their ends, has routes to mount, and tasks
to run. None of it is needed to decide.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from importlib.resources import files

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from laar.accuracy.reports import OutcomeReports
from laar.core.decision import Completion, Decision
from laar.core.director import Director
from laar.explain.account import Account
from laar.protocol.ports import GatewayRules
from laar.server.admin.explain import Explainer, explain_routes
from laar.server.admin.feed import Feed
from laar.server.otlp import Exports
from laar.settings import Settings
from laar.telemetry.board import Board, HitRates
from laar.telemetry.decisions import DecisionMemory
from laar.telemetry.log import DecisionLog
from laar.telemetry.metrics import Metrics
from laar.telemetry.watching import WatchingMetrics

__all__ = ["Watch"]

_PAGE = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
_PAGE_HEADERS = {
    # Names on the page come from settings and clients; even if one slipped through as markup, it
    # could load nothing and run nothing.
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; "
    "connect-src 'self'; img-src 'self' data:; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


class Watch:
    """Remembers, logs and shows decisions.

    Args:
        settings: all of them.
        director: whose decisions.
        metrics: problems, and figures of our own.
        reports: outcomes.
        rules: of the gateway, for explaining.
        clock: monotonic seconds.
        rng: samples the log.
        problem: told what is wrong with a source, or None once it works again.
    """

    def __init__(
        self,
        settings: Settings,
        director: Director,
        metrics: Metrics,
        reports: OutcomeReports,
        rules: GatewayRules,
        *,
        clock: Callable[[], float],
        rng: random.Random,
        problem: Callable[[str, str | None], None],
    ) -> None:
        kept = settings.decisions
        self.hit_rates = HitRates()
        self.log = (
            DecisionLog(
                kept.log,
                rng=rng,
                sample=kept.log_sample,
                max_bytes=kept.log_max_bytes,
                keep=kept.log_keep,
                on_problem=lambda message: problem("decision log", message),
            )
            if kept.log is not None
            else None
        )
        self.exports = Exports(settings, rng=rng, problem=problem)
        self.memory = DecisionMemory(
            director.table,
            wall_clock=time.time,
            on_settled=self._account_settled,
            reports=reports,
            max_decisions=kept.remember,
        )
        running = version("laar")
        self._about: dict[str, object] = {"version": running}
        board = Board(director, self.memory, metrics, self.hit_rates, self._about)
        self.feed = Feed(lambda: board.frame(clock()))
        self.board, self._clock = board, clock
        self._figures = WatchingMetrics(
            version=running,
            director=director,
            memory=self.memory,
            log=self.log,
            senders=self.exports.senders,
            viewers=lambda: self.feed.viewers,
            health=lambda: board.health(clock()),
        )
        metrics.add(self._figures)
        self.explainer = Explainer(director, self.memory, settings.stream, rules, clock=clock)
        self._max_body_bytes = settings.stream.max_body_bytes
        self.use(settings)

    def use(self, settings: Settings) -> None:
        """Goes by changed settings."""
        self._about |= {
            "policy": settings.routing.director.policy,
            "enforced": settings.routing.enforcement.share,
        }
        self.explainer.settings = settings.stream
        if self.log is not None:
            self.log.sample = settings.decisions.log_sample
        self.exports.use(settings)

    def decided(self, decision: Decision) -> None:
        """Remembers a decision."""
        self.memory.decided(decision)

    def settled(self, decision: Decision, end: Completion) -> None:
        """Notes how its request ended."""
        self.memory.settled(decision, end)

    def _account_settled(self, account: Account) -> None:
        self._figures.settled(account)
        if self.log is not None:
            self.log.add(account)
        self.exports.settled(account)

    def routes(self) -> list[BaseRoute]:
        """The admin port's part."""
        return [
            *explain_routes(self.explainer, self.memory, self._max_body_bytes),
            Route("/events", self.feed),
            Route("/fleet", self._show_fleet),
            *(Route(path, _file(*what)) for path, what in _PAGE.items()),
        ]

    async def _show_fleet(self, _request: Request) -> Response:
        body = orjson.dumps(self.board.fleet(self._clock()), option=orjson.OPT_INDENT_2)
        return Response(body, media_type="application/json")

    def tasks(self) -> list[tuple[str, Callable[[], Awaitable[None]]]]:
        """What has to run beside serving, by name."""
        found = [("feed", self.feed.run), *self.exports.tasks()]
        if self.log is not None:
            found.append(("decision log", self.log.run))
        return found


def _file(name: str, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    content = (files("laar.server.admin") / "page" / name).read_bytes()

    async def serve(_request: Request) -> Response:
        return Response(content, media_type=media_type, headers=_PAGE_HEADERS)

    return serve
