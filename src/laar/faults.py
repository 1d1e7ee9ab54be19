"""The faults that laar notices: one name, one remedy and one section of the runbook for each.

A problem of a running picker (`laar.telemetry.problems`), an error of `laar check`, a finding of
`laar doctor` and an alert (``deploy/components/rules``) that are about the same fault give the same
remedy. Sections are those of ``docs/troubleshooting.md``, which each picker serves at ``/runbook``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self

_BYPASS = "answers-carry-no-x-laar-headers"
_ENDPOINT = "an-endpoint-gets-no-requests-or-only-a-few"
_METRICS = "metrics-of-an-endpoint-are-stale"
_MOVED = "the-picked-endpoint-does-not-serve-the-request"
_NONE = "503-no-endpoints-or-no-candidates"
_PART = "a-part-of-the-picker-has-a-problem"
_SETTING = "a-changed-setting-has-no-effect"
_WAITS = "requests-wait-at-the-picker"
_WRITE = "create its directory, let laar's user write there, and check the free space"


class Fault(StrEnum):
    """A kind of fault, by its name in problems and in `laar_problems`."""

    # Problems of a running picker.
    SETTINGS = "settings", _SETTING, "correct the file: `laar check` shows the line and the key"
    RESTART = "restart", _SETTING, "restart the picker, or revert the settings"
    FILE = "file", _PART, "correct the endpoints file"
    DNS = "dns", _PART, "correct the name, or what answers for it"
    KUBERNETES = "kubernetes", _PART, "correct the objects, or the Role of laar's ServiceAccount"
    MODELS = "models", "404-unknown-model", "list its names under `models` (--served-model-name)"
    PROBE = "probe", _ENDPOINT, "start it, make it reachable (https: ca_file, sni), or remove it"
    SCRAPE = "scrape", _METRICS, "start it, or set its `engine` or `metrics_url` ('' if none)"
    LOAD = "load", _METRICS, "restart the engine: its page still shows requests that have ended"
    ENDPOINT = "endpoint", _ENDPOINT, "see the engine's log; check its key, quota, model, template"
    FULL = "full", _WAITS, "add endpoints, or limit the clients; the page shows what waits"
    PACE = "pace", _ENDPOINT, "compare its device, its load by others and its options with theirs"
    FAST = "fast", _ENDPOINT, "read its answers; if they are good, label it laar.dev/fast"
    SUSPECT = "suspect", "requests-fail", "mend what its message names: requests with it fail"
    KV_EVENTS = "kv-events", _PART, "correct its labels, or how the engine publishes events"
    EDS = "eds", _PART, _WRITE
    DECISION_LOG = "decision-log", _PART, _WRITE
    SNAPSHOT = "snapshot", _PART, _WRITE
    SHARE = "share", _PART, "see what the store says, and correct it or the settings of `share`"
    ARTIFACT = "artifact", _PART, "run `laar calibrate`, with the endpoints' first model names"
    MODES = "modes", _PART, "correct routing.modes, or measure them again (`laar measure --config`)"
    TLS = "tls", "the-certificate-expires", "put a valid certificate and key in listen.tls's files"
    TOKENS = "tokens", _PART, "write a token to the file: openssl rand -hex 24 > FILE"
    CONTEXT = "context", "reordering-switched-itself-off", "a restarted picker tries again"
    DEGRADED = "degraded", "decisions-are-degraded", "correct the plug-in, or report the error"
    TASK = "task", _PART, "report the logged error; the picker starts the task again"

    # What alerts and `laar doctor` notice.
    PROBLEM = "problem", _PART, "see its message and remedy on the page, in laar doctor or the log"
    GONE = "gone", "no-picker-answers", "start the picker; the end of its log says why it stopped"
    NO_ENDPOINTS = "no-endpoints", _NONE, "list engines that answer, or label their ready pods"
    FAILS = "fails", "requests-fail", "the page's first line says where, laar_completions_total how"
    LATE = "late", _WAITS, "add endpoints, or limit the clients; the page shows where requests wait"
    NO_ROOM = "no-room", _WAITS, "add endpoints, or limit the sessions; flow.max_hold_s limits it"
    BYPASSED = "bypassed", _BYPASS, "let Envoy reach listen.ext_proc, and get answers within 2 s"
    SLOW = "slow", "the-picker-is-slow", "give the picker a whole core, or add a picker"
    MOVED = "moved", _MOVED, "see which fail in P(answers) and laar_endpoint_failures_total"
    DRIFTED = "drifted", "a-model-is-not-as-fast-as-measured", "run `laar calibrate` again"

    section: str
    remedy: str

    def __new__(cls, name: str, section: str = "", remedy: str = "") -> Self:
        """Create a row of the table."""
        self = str.__new__(cls, name)
        self._value_, self.section, self.remedy = name, section, remedy
        return self

    @property
    def fix(self) -> str:
        """The remedy, and where the picker's runbook says more."""
        return f"{self.remedy} (/runbook#{self.section})"
