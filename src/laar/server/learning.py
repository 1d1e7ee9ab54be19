"""The learners of a running picker, and their state across restarts.

This module connects decisions to the learners: reported outcomes correct P(correct), and sampled
answers show how many characters a token has. c(m) is learned in `laar.core.engines` and shown here
next to the artifact's value.

The state is a JSON file, replaced atomically in a separate thread, so that the loop never waits for
a disk. The file is not trusted: invalid entries are skipped, and an unusable file causes a warning,
but never a failed start.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Hashable
from itertools import islice
from math import isfinite
from operator import methodcaller
from typing import TYPE_CHECKING

import orjson

from laar.accuracy.assessor import CapabilityAssessor, read_capability
from laar.accuracy.capability import CapabilityModel
from laar.accuracy.features import Features
from laar.accuracy.online import KAPPA, OnlineOutcomes
from laar.accuracy.reports import OutcomeReports
from laar.core.decision import Completion, Decision
from laar.core.engine_model import Seen
from laar.core.request import Request
from laar.datalayer.files import read_file
from laar.errors import SettingError
from laar.prefix.lengths import DIGEST
from laar.server.whole_file import WholeFile
from laar.settings.routing import Accuracy

if TYPE_CHECKING:
    from laar.server.picker import Picker

_LOG = logging.getLogger(__name__)

STATE_SCHEMA = 1

SAVE_EVERY_S = 60.0
"""Seconds between saves of the state; a crash loses at most what was learned in that time."""

MAX_STATE_BYTES = 16 << 20
"""Maximum size of a state file; full tables need only a fraction of it."""

_SAMPLE_HEAD_CHARS, _SAMPLE_TAIL_CHARS = 200, 300
_SAMPLE_SPANS = 8
_IS_DIGEST = methodcaller("startswith", DIGEST)
_MAX_NAMED = 5  # models named in a problem


class Learning:
    """The learners of one picker.

    Raises:
        SettingError: the artifact cannot be used.
    """

    def __init__(self, picker: Picker) -> None:
        settings = picker.settings.accuracy
        self._picker = picker
        self._clock = picker.clock
        self._file = None if settings.state_file is None else WholeFile(settings.state_file)
        capability = artifact_of(settings)
        online = OnlineOutcomes(capability)
        self.online = online if settings.online else None
        self.assessor = CapabilityAssessor(capability, self.online, settings.tasks)
        self.reports = OutcomeReports(online)
        if settings.signs:
            from laar.accuracy.signs import Signs

            self.reports.signs = Signs()

    # -- from the director ---------------------------------------------------------------------

    def decided(self, decision: Decision) -> None:
        """Remember a decision, so that its outcome can be reported."""
        request = decision.request
        cell = decision.view.cell if decision.view is not None else None
        # In shadow mode, or without a view, the answering model is unknown.
        if self.online is None or request.shadow or not isinstance(cell, Features):
            return
        self.reports.decided(
            decision.id,
            decision.model,
            cell,
            decision.tried[:-1],
            request=_fingerprint(request),
            tenant=request.tenant,
            policy=decision.policy,
            now=decision.now,
            adapter=decision.flight.adapter,
            # Equal for all turns of a conversation.
            session=hash((request.tenant, request.session)) if request.session else None,
        )

    def settled(self, decision: Decision, end: Completion) -> None:
        """Learn from the end of a request."""
        flight = decision.flight
        self.reports.moved(decision.id, flight.model)
        if end.ok:
            self.reports.ended(decision.id, end.latency_s)
            if end.sign is not None and end.cause == "complete":
                self.reports.signed(decision.id, end.sign, self._clock())
        if not end.ok or end.cause != "complete":
            unanswered = end.cause == "error" or (end.status is not None and not end.ok)
            self.reports.failed(decision.id, refused=unanswered)

    def calibrated(self, served: Collection[str]) -> bool:
        """Return whether the accuracy of any served model is known, by artifact or outcomes."""
        known = not set(served).isdisjoint(self.assessor.capability.models)
        return known or (self.online is not None and bool(self.online.cells))

    def fault_of_artifact(self, served: Collection[str]) -> str | None:
        """Return a problem if the artifact lacks all served models, or a reliable speed for one."""
        artifact = self._picker.settings.accuracy.capability
        measured = self.assessor.capability.models
        if unsure := [name for name in self.assessor.capability.unsure if name in served]:
            return (
                f"{artifact} gives {_named(unsure)} a us/token with a spread of over 50 %: it is "
                "ignored, and learned from answers instead; run `laar calibrate` again"
            )
        if not measured or not served or not set(measured).isdisjoint(served):
            return None
        return (
            f"{artifact} knows no model of the fleet, so all count as equally "
            f"good: it has {_named(measured)}, and endpoints serve {_named(served)}; give both the "
            "same names, the endpoints' first ones"
        )

    # -- showing -------------------------------------------------------------------------------

    def speeds(self) -> dict[str, tuple[float | None, Seen | None]]:
        """Return c(m) by model: the artifact's and the learned one. Thread-safe."""
        measured = self.assessor.capability.measured_s_per_token
        seen = self._picker.director.engines.seen()
        names = dict.fromkeys([*measured, *seen])
        return {name: (measured.get(name), seen.get(name)) for name in names}

    def models(self, served: list[str]) -> list[dict[str, object]]:
        """Return an entry for each served, measured or reported model. Thread-safe."""
        capability, online = self.assessor.capability, self.online
        reported = online.by_model(self._clock()) if online is not None else {}
        weights = online.prior_weights() if online is not None else {}
        ratios = self.assessor.tokens.ratios()
        speeds = self.speeds()
        entries: list[dict[str, object]] = []
        for model in dict.fromkeys([*served, *capability.models, *reported]):
            outcomes = reported.get(model)
            fitted = capability.measured_models.get(model)
            measured, seen = speeds.get(model, (None, None))
            entries.append(
                {
                    "model": model,
                    "served": model in served,
                    "fitted": {
                        "outcomes": fitted.outcomes if fitted else 0,
                        "success_rate": fitted.mean if fitted else None,
                    },
                    "reported": {
                        "outcomes": outcomes.outcomes if outcomes else 0.0,
                        "correct": outcomes.correct if outcomes else 0.0,
                        "cells": outcomes.cells if outcomes else 0,
                        "prior_weight": weights.get(model, KAPPA),
                    },
                    "seconds_per_token": {
                        "measured": measured,
                        "seen": seen.seconds_per_token if seen else None,
                        "error": seen.error_s_per_token if seen else None,
                        "samples": seen.samples if seen else 0,
                    },
                    "chars_per_token": ratios.get(model, {}),
                }
            )
        return entries

    # -- across restarts -----------------------------------------------------------------------

    def restore(self) -> None:
        """Restore the saved state, if any. It blocks, so call it before serving."""
        if self._file is None:
            return
        path = self._file.path
        try:
            state = orjson.loads(read_file(path, MAX_STATE_BYTES))
        except FileNotFoundError:
            return
        except (OSError, orjson.JSONDecodeError) as fault:
            _LOG.warning("accuracy.state_file %s can't be used: %s", path, fault)
            return
        if not isinstance(state, dict) or state.get("schema") != STATE_SCHEMA:
            _LOG.warning(
                "accuracy.state_file %s is not a state file of this version (%d); starting without",
                path,
                STATE_SCHEMA,
            )
            return
        now, saved_at_s = self._clock(), state.get("saved_at_s")
        away_s = 0.0
        if isinstance(saved_at_s, int | float) and isfinite(saved_at_s):
            away_s = max(0.0, time.time() - saved_at_s)
        cells = 0
        if self.online is not None:
            cells = self.online.restore(state.get("outcomes"), now, away_s=away_s)
        ratios = self.assessor.tokens.restore(state.get("tokens"))
        _LOG.info("restored %d cells of outcomes and %d token ratios", cells, ratios)

    async def keep_saving(self) -> None:
        """Save every `SAVE_EVERY_S`; return at once if no file is set."""
        while self._file is not None:
            await asyncio.sleep(SAVE_EVERY_S)
            await self.save()

    async def save(self) -> None:
        """Write the state if there is a file; report a failure instead of raising it."""
        if self._file is not None:
            lost = "what is learned will be lost when this process ends"
            await self._file.save(self._state, self._picker.problems, "accuracy.state_file", lost)

    def _state(self) -> bytes:
        return orjson.dumps(
            {
                "schema": STATE_SCHEMA,
                "saved_at_s": time.time(),
                "outcomes": self.online.state(self._clock()) if self.online is not None else None,
                "tokens": self.assessor.tokens.state(),
            }
        )


def artifact_of(settings: Accuracy) -> CapabilityModel:
    """Return the artifact in the settings, or an empty one if they name none.

    Raises:
        SettingError: it cannot be used.
    """
    if settings.capability is None:
        return CapabilityModel()
    try:
        return read_capability(settings.capability)
    except SettingError as fault:
        raise SettingError(str(fault), setting="accuracy.capability") from None


def _named(models: Collection[str]) -> str:
    more = f" and {len(models) - _MAX_NAMED} more" if len(models) > _MAX_NAMED else ""
    return ", ".join(islice(models, _MAX_NAMED)) + more


def _fingerprint(request: Request) -> Hashable:
    """Return a hash shared by a request and its retries; work is bounded, and no text is kept."""
    question = request.question
    return hash(
        (
            question[:_SAMPLE_HEAD_CHARS],
            question[-_SAMPLE_TAIL_CHARS:],
            # The same words about a different image are a different question.
            *filter(_IS_DIGEST, request.spans[-_SAMPLE_SPANS:]),
            request.chars,
            request.tenant,
            request.session,
        )
    )
