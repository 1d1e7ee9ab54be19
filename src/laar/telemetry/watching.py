"""Metrics of looking: predicted against measured, shadow, the decision log, the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from laar.core.director import Director
from laar.explain.decision_record import DecisionRecord
from laar.telemetry.decisions import DecisionMemory
from laar.telemetry.families import Histogram, counter, gauge, histogram
from laar.telemetry.log import DecisionLog

if TYPE_CHECKING:
    from laar.telemetry.otlp import Sender

_RATIOS = (0.5, 0.7, 0.9, 1.1, 1.3, 2.0)
"""Bounds of predicted over measured; between the third and the fourth the prediction held."""


class WatchingMetrics:
    """Counts at the end of each request, and reads the rest at each scrape.

    Args:
        version: version of laar.
        director: counts the client input that it ignored.
        memory: the last decisions.
        log: the decision log; None when it is off.
        senders: senders to collectors, by signal.
        viewers: number of viewers of the page.
        health: endpoints by state.
    """

    def __init__(
        self,
        *,
        version: str,
        director: Director,
        memory: DecisionMemory,
        log: DecisionLog | None,
        senders: Mapping[str, Sender],
        viewers: Callable[[], int],
        health: Callable[[], Counter[str]],
    ) -> None:
        self._version = version
        self._director = director
        self._memory = memory
        self._log = log
        self._senders = senders
        self._viewers = viewers
        self._health = health
        self._shadow: Counter[str] = Counter()
        self._ttft = [0.0, 0.0, 0.0]
        self._ratios = Histogram(_RATIOS)
        self._tokens = {"believed": 0.0, "found": 0.0, "prompt": 0.0}

    def settled(self, record: DecisionRecord) -> None:
        """Counts a request that has ended."""
        if record.shadow:
            known = "yes" if record.served == record.picked else "no"
            self._shadow[known if record.served else "unknown"] += 1
        end, view = record.end, record.view
        if end is None or view is None or not end.ok or record.served != record.picked:
            return
        at = record.position
        if end.ttft_s is not None and view.terms is not None:
            self._ttft[0] += 1
            predicted = float(view.terms.all_ttft_s[at])
            self._ttft[1] += predicted
            self._ttft[2] += end.ttft_s
            self._ratios.observe(predicted / max(end.ttft_s, 1e-6))
        if end.cached_tokens is not None and end.prompt_tokens:
            share = float(view.cached_tokens[at] / max(float(view.tokens[at]), 1.0))
            self._tokens["believed"] += share * end.prompt_tokens
            self._tokens["found"] += end.cached_tokens
            self._tokens["prompt"] += end.prompt_tokens

    def collect(self) -> Iterator[Metric]:
        """Makes the metric families; called for each scrape."""
        yield gauge(
            "laar_info", "Always 1; the version is a label.", [(self._version, 1)], ("version",)
        )
        yield gauge(
            "laar_endpoints_by_health",
            "Endpoints by health: ok, failing, on trial, full, slow, starting, stale, not "
            "read, saturated or unreachable.",
            sorted(self._health().items()),
            ("health",),
        )
        yield from self._predictions()
        yield counter(
            "laar_shadow_decisions",
            "Shadow decisions whose request ended, by whether the endpoint that laar "
            "chose served it.",
            ((agreed, self._shadow[agreed]) for agreed in ("yes", "no", "unknown")),
            ("agreed",),
        )
        yield counter(
            "laar_tried_names_ignored",
            "Names in x-laar-tried-models that were ignored because no endpoint serves them.",
            self._director.ignored_tried,
        )
        yield from self._kept()

    def _predictions(self) -> Iterator[Metric]:
        requests, predicted, measured = self._ttft
        yield counter(
            "laar_predicted_requests",
            "Sampled requests with a predicted and a measured time to first token.",
            requests,
        )
        yield counter(
            "laar_predicted_ttft_seconds",
            "Sum of the predicted times to first token of sampled requests.",
            predicted,
        )
        yield counter(
            "laar_measured_ttft_seconds",
            "Sum of the measured times to first token of sampled requests.",
            measured,
        )
        yield counter(
            "laar_prefix_prompt_tokens",
            "Prompt tokens of sampled requests whose engine reported its cached tokens.",
            self._tokens["prompt"],
        )
        yield counter(
            "laar_prefix_believed_tokens",
            "Prompt tokens of sampled requests that laar expected in the engine's cache.",
            self._tokens["believed"],
        )
        yield counter(
            "laar_prefix_found_tokens",
            "Prompt tokens of sampled requests that the engine found in its cache.",
            self._tokens["found"],
        )
        yield histogram(
            "laar_predicted_ttft_ratio",
            "Ratio of the predicted to the measured time to first token, of sampled requests.",
            self._ratios,
        )

    def _kept(self) -> Iterator[Metric]:
        yield gauge(
            "laar_decisions_remembered",
            "Decisions kept in memory for the live page and /decisions.",
            len(self._memory),
        )
        yield gauge(
            "laar_decisions_remembered_bytes",
            "Estimated bytes of the decisions kept in memory.",
            self._memory.held_bytes,
        )
        yield gauge("laar_viewers", "Connected viewers of the live page.", self._viewers())
        log = self._log
        yield counter(
            "laar_decision_log_lines",
            "Lines of the decision log, written or dropped; dropped if the disk or the "
            "queue was full.",
            (("written", log.written), ("dropped", log.dropped)) if log is not None else (),
            ("result",),
        )
        senders = self._senders.items()
        yield counter(
            "laar_otlp_records_made",
            "Spans (signal traces) and log records (signal logs) made to be sent. A "
            "record that neither was sent nor failed still waits, or was dropped by a "
            "full queue.",
            ((signal, sender.made) for signal, sender in senders),
            ("signal",),
        )
        yield counter(
            "laar_otlp_records",
            "Records that the OTLP collector accepted (sent) or that laar dropped (failed).",
            (
                ((signal, result), count)
                for signal, sender in senders
                for result, count in (("sent", sender.sent), ("failed", sender.failed))
            ),
            ("signal", "result"),
        )
