"""The learners of a running picker.

This module connects decisions to the learners: reported outcomes correct P(correct). c(m) is
learned in `laar.speeds.engines` and shown here next to the artifact's value. Snapshots keep both
across a restart (`laar.sharing.snapshot`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from operator import methodcaller
from pathlib import Path

from laar.accuracy.assessor import CapabilityAssessor, read_capability
from laar.accuracy.capability import CapabilityModel
from laar.accuracy.features import Features
from laar.accuracy.online import KAPPA, OnlineOutcomes
from laar.accuracy.reports import OutcomeReports
from laar.core.decision import Completion, Decision
from laar.errors import SettingError, some
from laar.faults import Fault
from laar.plugins.adapters import Adapters
from laar.plugins.modes import Modes
from laar.prefix.lengths import DIGEST
from laar.request import Request
from laar.settings.routing import Accuracy
from laar.speeds.engine_model import Seen
from laar.speeds.engines import Engines

_SAMPLE_HEAD_CHARS, _SAMPLE_TAIL_CHARS = 200, 300
_SAMPLE_SPANS = 8
_IS_DIGEST = methodcaller("startswith", DIGEST)


class Learning:
    """The learners of one picker; raise `SettingError` if the artifact cannot be used."""

    def __init__(self, settings: Accuracy, clock: Callable[[], float]) -> None:
        self.clock = clock
        capability = artifact_of(settings)
        self.online = OnlineOutcomes(capability)
        self.assessor = CapabilityAssessor(capability, self.online)
        self.reports = OutcomeReports(self.online)

    # -- from the director ---------------------------------------------------------------------

    def decided(self, decision: Decision) -> None:
        """Remember a decision, so that its outcome can be reported."""
        request = decision.request
        cell = decision.view.cell if decision.view is not None else None
        # In shadow mode, or without a view, the answering model is unknown.
        if request.shadow or not isinstance(cell, Features):
            return
        mode = Modes.of(decision) if decision.parts else None
        self.reports.decided(
            decision.id,
            decision.model,
            cell,
            decision.tried[:-1],
            request=_fingerprint(request),
            tenant=request.tenant,
            policy=decision.policy,
            now=decision.now,
            adapter=Adapters.of(decision) if decision.parts else "",
            reproducible=request.reproducible or (mode is not None and mode.reproducible),
        )

    def settled(self, decision: Decision, end: Completion) -> None:
        """Learn from the end of a request."""
        if decision.flight.model != decision.model:
            self.reports.moved(decision.id, decision.flight.model)
        if end.ok:
            self.reports.ended(decision.id, end.latency_s)
        if not end.ok or end.cause != "complete":
            unanswered = end.cause == "error" or (end.status is not None and not end.ok)
            self.reports.failed(decision.id, refused=unanswered)

    def calibrated(self, served: Collection[str]) -> bool:
        """Return whether the artifact has a served model, or any outcome was reported."""
        known = not set(served).isdisjoint(self.assessor.capability.models)
        return known or bool(self.online.cells)

    def fault_of_artifact(self, artifact: Path | None, served: Collection[str]) -> str | None:
        """Return a problem if the artifact lacks all served models, or a reliable speed for one."""
        measured = self.assessor.capability.models
        if unsure := [name for name in self.assessor.capability.unsure if name in served]:
            return (
                f"{artifact} gives {some(unsure)} a us/token with a spread of over 50 %: it is "
                "ignored, and the speed is learned from answers"
            )
        if not measured or not served or not set(measured).isdisjoint(served):
            return None
        return (
            f"{artifact} knows no model of the fleet, so all are considered equally "
            f"good: it has {some(measured)}, and endpoints serve {some(served)}"
        )

    # -- showing -------------------------------------------------------------------------------

    def speeds(self, engines: Engines) -> dict[str, tuple[float | None, Seen | None]]:
        """Return c(m) by model: the artifact's and the learned value. Thread-safe."""
        measured = self.assessor.capability.measured_s_per_token
        seen = engines.seen()
        names = dict.fromkeys([*measured, *seen])
        return {name: (measured.get(name), seen.get(name)) for name in names}

    def models(self, served: list[str], engines: Engines) -> list[dict[str, object]]:
        """Return an entry for each served, measured or reported model. Thread-safe."""
        capability = self.assessor.capability
        reported = self.online.by_model(self.clock())
        weights = self.online.prior_weights()
        speeds = self.speeds(engines)
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
                    "chars_per_token": fitted.chars_per_token if fitted else {},
                }
            )
        return entries


def artifact_of(settings: Accuracy) -> CapabilityModel:
    """Return the artifact in the settings, or an empty artifact if there is none.

    Raise `SettingError` if it cannot be used.
    """
    if settings.capability is None:
        return CapabilityModel()
    if not settings.capability.is_file():
        raise SettingError(
            f"{settings.capability} is not a file",
            setting="accuracy.capability",
            fault=Fault.ARTIFACT,
        )
    try:
        return read_capability(settings.capability)
    except SettingError as fault:
        raise SettingError(str(fault), setting="accuracy.capability") from None


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
