"""The settings file: one YAML document, every setting with unit, default and reason.

Unknown keys are errors, faults are named by file, line and key, and all of them are shown at once.
The field descriptions are the reference: the documentation and the editors' JSON schema are made
from them.
"""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from laar.context import ContextSettings, Dedup, Format, Mode, Role
from laar.core.cost import TUNABLE, CostWeights
from laar.core.director import DirectorSettings
from laar.core.filters import FilterSettings
from laar.datalayer.document import read_document
from laar.datalayer.endpoints_file import Endpoint, split_address
from laar.datalayer.kubernetes import KubernetesSource
from laar.datalayer.weights_file import read_weights
from laar.errors import SettingError
from laar.flow.admission import FlowSettings
from laar.flow.item import Limits
from laar.flow.saturation import Saturation
from laar.network import OBJECTIVES, TunerSettings
from laar.policies import POLICY_NAMES
from laar.protocol.stream import StreamSettings

__all__ = ["Settings", "load_settings"]

MAX_FILE_BYTES = 4 << 20
"""Room for ten thousand endpoints written into the settings themselves."""


def _listen_address(value: str) -> str:
    split_address(value)
    return value


def _policy_name(value: str) -> str:
    if value not in POLICY_NAMES:
        raise ValueError(f"no policy is called {value!r}; choose one of {', '.join(POLICY_NAMES)}")
    return value


Address = Annotated[str, AfterValidator(_listen_address)]
PolicyName = Annotated[str, AfterValidator(_policy_name)]


class Section(BaseModel):
    """Strict and immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True)


_DEFAULTS = CostWeights()


class Tls(Section):
    """TLS on the ext_proc port; needs the extra `tls`."""

    certificate: Path | None = Field(
        None, description="PEM file, the chain; read again when it changes."
    )
    key: Path | None = Field(None, description="PEM file of the certificate's private key.")
    self_signed: bool = Field(
        False,
        description="Make a certificate at start instead: for gateways of the endpoint-picker "
        "contract, which encrypt and don't verify.",
    )
    client_ca: Path | None = Field(
        None,
        description="PEM file of authorities; callers without a certificate of theirs are refused.",
    )

    @model_validator(mode="after")
    def _one_certificate(self) -> Tls:
        if (self.certificate is None) is not (self.key is None):
            raise ValueError("`certificate` and `key` belong together")
        if (self.certificate is None) is not self.self_signed:
            raise ValueError("give `certificate` and `key`, or `self_signed: true`")
        return self


class Listen(Section):
    """Where laar listens, each as host:port."""

    ext_proc: Address = Field(
        "127.0.0.1:9002",
        description="gRPC external processor. Loopback by default: beside Envoy nobody else "
        "needs it. 0.0.0.0:9002 for an Envoy on another host.",
    )
    health: Address = Field(
        "0.0.0.0:9003",
        description="gRPC health checks (liveness, readiness); open to the kubelet.",
    )
    admin: Address = Field(
        "127.0.0.1:9090",
        description="HTTP: metrics, health, live page. Loopback by default, since the page "
        "shows the fleet; 0.0.0.0:9090 for a scraper on another host.",
    )
    tls: Tls | None = Field(
        None,
        description="TLS on the ext_proc port. None by default: on loopback it only costs. Health "
        "and admin are always plain.",
    )


class Routing(Section):
    """How an endpoint is chosen."""

    mode: Literal["enforce", "shadow"] = Field(
        "enforce",
        description="`shadow` decides and records, and lets Envoy's own balancing, or another "
        "picker's header, stand: to look before anything is at stake.",
    )
    enforce_share: float = Field(
        1.0,
        ge=0,
        le=1,
        description="In the mode `enforce`, the share of requests whose decision counts; the rest "
        "is shadowed. Drawn by session, or by request where there is none, so that a session does "
        "not flap.",
    )
    policy: PolicyName = Field(
        "laar", description="Policy of requests that name none in x-laar-policy."
    )
    allow_policy_header: bool = Field(
        True, description="Whether x-laar-policy may choose another policy for one request."
    )
    aliases: dict[str, tuple[str, ...]] = Field(
        default={"auto": ()},
        description="Virtual model names and the models each stands for; an empty list is all "
        "models.",
    )
    fallbacks: int = Field(
        2,
        ge=0,
        le=8,
        description="Endpoints named to Envoy behind the first, for its own retries. Two survive a "
        "rolling restart; each adds an address to a header.",
    )
    k_rtt: float = Field(
        _DEFAULTS.k_rtt,
        ge=0,
        le=1000,
        description="Weight of the round trip in the cost; 1 is what a lone request would want, "
        "less keeps conversations where their prefix is.",
    )
    k_queue: float = Field(
        _DEFAULTS.k_queue,
        ge=0,
        le=1000,
        description="Weight of a queued token that is not cached against one of this prompt; "
        "0.7 is LAAR's alpha.",
    )
    k_delay: float = Field(
        _DEFAULTS.k_delay,
        ge=0,
        le=1000,
        description="Part of a prefill that counts again for each request in flight there, since "
        "it holds them up. 0 is the published form.",
    )
    weights_file: Path | None = Field(
        None,
        description="Weights that `laar tune --export` wrote; they take the place of k_rtt, "
        "k_queue and k_delay and are never changed by serving.",
    )
    retry_penalty: float = Field(
        100.0,
        ge=1,
        le=1e6,
        description="Factor on a model's cost for each time it was tried already: it is used again "
        "only when nothing else is left.",
    )
    max_failures: int = Field(
        3,
        ge=1,
        le=1000,
        description="Scrapes and probes failed in a row before an endpoint is passed over. One can "
        "be "
        "chance, three in a row are not.",
    )
    max_waiting: float = Field(
        128,
        ge=0,
        description="Requests waiting in the engine above which the endpoint is passed over.",
    )
    max_kv_usage: float = Field(
        0.98,
        gt=0,
        le=1,
        description="Share of the KV cache in use above which the endpoint is passed over: "
        "beyond it engines preempt.",
    )
    stale_s: float = Field(
        10.0,
        gt=0,
        le=3600,
        description="Seconds after which a reading says nothing about saturation any more; ten "
        "missed "
        "scrapes.",
    )

    quadratic_tokens: float | None = Field(
        None,
        ge=1024,
        le=1e9,
        description="Prompt length in tokens at which attention costs as much as all the rest of a "
        "prefill (parameters / (layers * hidden): about 60,000 for Llama 3 8B, 110,000 for 70B). "
        "Long "
        "prompts in flight then weigh what they cost, not what they count. None: by count, as LAAR "
        "and GORGO publish it.",
    )

    @property
    def weights(self) -> CostWeights:
        """The weights of the cost, those of the file where there is one.

        Raises:
            SettingError: the file can't be used.
        """
        written = {name: getattr(self, name) for name in TUNABLE}
        if self.weights_file is not None:
            written |= read_weights(self.weights_file)
        return CostWeights(**written, retry_penalty=self.retry_penalty)

    @property
    def enforced(self) -> float:
        """The share of requests whose decision counts."""
        return self.enforce_share if self.mode == "enforce" else 0.0

    @property
    def director(self) -> DirectorSettings:
        """The director's part."""
        return DirectorSettings(
            policy=self.policy,
            aliases=self.aliases,
            fallbacks=self.fallbacks,
            allow_policy_header=self.allow_policy_header,
            quadratic_tokens=math.inf if self.quadratic_tokens is None else self.quadratic_tokens,
            filters=FilterSettings(
                max_failures=self.max_failures,
                max_waiting=self.max_waiting,
                max_kv_usage=self.max_kv_usage,
                stale_s=self.stale_s,
            ),
        )


class Accuracy(Section):
    """What is known of the models."""

    capability: Path | None = Field(
        None,
        description="Artifact of `laar fit`. Without one every model counts as equally good and "
        "equally fast until outcomes are reported, and laar routes by cache, queue and round trip.",
    )
    online: bool = Field(
        True,
        description="Whether reported outcomes (POST /outcomes, gRPC) correct the artifact. False "
        "to route by the artifact alone; nothing can be reported then.",
    )
    prior_weight: float = Field(
        50.0,
        ge=1,
        le=1e6,
        description="What the artifact's word on a cell weighs, in outcomes; about what a cell was "
        "fitted on.",
    )
    half_life_s: float = Field(
        86_400.0,
        ge=60,
        le=1e8,
        description="Seconds after which a reported outcome counts half. A day: a model behind a "
        "name changes rarely, its traffic with the hours.",
    )
    cap_per_hour: float = Field(
        200.0,
        ge=2,
        le=1e6,
        description="Outcomes that one model's cell takes in any hour. 200 against a prior of 50: "
        "the truth wins within the hour, a burst of lies does not.",
    )
    outcomes_token_file: Path | None = Field(
        None,
        description="File with the bearer token that outcomes must be sent with. A file, since the "
        "settings are shown on /config. Without one whoever reaches the admin port may report, "
        "and over gRPC only where the health port listens on loopback.",
    )
    state_file: Path | None = Field(
        None,
        description="JSON file that keeps what was learned across restarts. None: a restart begins "
        "with the artifact again.",
    )
    state_interval_s: float = Field(
        60.0,
        ge=1,
        le=86_400,
        description="Seconds between two saves of the state; what a crash can cost.",
    )


class Prefix(Section):
    """What is believed of the endpoints' prefix caches."""

    enabled: bool = Field(True, description="Whether cached prefixes count in the cost.")
    max_bytes: int = Field(
        128 << 20,
        ge=1 << 20,
        le=64 << 30,
        description="Memory for the index; 128 MiB holds the caches of about 100 endpoints with "
        "500,000 "
        "tokens each. Beyond it the oldest entries of the fullest endpoint go.",
    )


class Readings(Section):
    """How endpoints are read."""

    scrape_interval_s: float = Field(
        1.0,
        ge=0.05,
        le=60,
        description="Seconds between two scrapes of an endpoint's metrics. Laar counts its own "
        "requests, so a scrape only corrects; more often buys nothing.",
    )
    scrape_timeout_s: float = Field(
        2.0, gt=0, le=60, description="Seconds after which a scrape has failed."
    )
    probe_interval_s: float = Field(
        5.0, ge=0.1, le=600, description="Seconds between two round-trip probes of an endpoint."
    )
    probe_timeout_s: float = Field(
        2.0, gt=0, le=60, description="Seconds after which a probe has failed."
    )
    resolve_interval_s: float = Field(
        10.0, ge=1, le=3600, description="Seconds between two look-ups of endpoints' DNS names."
    )


class Bodies(Section):
    """What is read of requests and answers."""

    max_body_bytes: int = Field(
        32 << 20,
        ge=1024,
        le=1 << 30,
        description="Longest request body in the gateway shape; 413 above it. In the native shape "
        "Envoy's buffer limit says the same, so keep both equal.",
    )
    opaque_paths: tuple[str, ...] = Field(
        ("/v1/audio/", "/v1/images/", "/v1/files"),
        description="Path prefixes whose bodies are never read; their requests go to any endpoint.",
    )
    sample_answers: float = Field(
        0.01,
        ge=0,
        le=1,
        description="Share of answers that are read as they pass (native shape), for time to first "
        "token and usage. Reading costs about 50 us a chunk, so 1 in 100; 0 reads none.",
    )
    sample_every_s: float = Field(
        1.0,
        gt=0,
        le=3600,
        description="Seconds after which an answer is read whatever the share says, so that thin "
        "traffic still teaches; one a second costs nothing.",
    )

    @property
    def stream(self) -> StreamSettings:
        """The stream machine's part."""
        return StreamSettings(max_body_bytes=self.max_body_bytes, opaque_paths=self.opaque_paths)


class Decisions(Section):
    """What is kept of decisions. Never any of a prompt."""

    remember: int = Field(
        2000,
        ge=1,
        le=1_000_000,
        description="Decisions kept in memory for the page and /decisions, some 3 KB each; 64 MiB "
        "is the most they may take together.",
    )
    log: Path | None = Field(
        None,
        description="File for one JSON line for each decision once its request has ended. None: no "
        "log. Its directory must exist.",
    )
    log_sample: float = Field(
        1.0,
        ge=0,
        le=1,
        description="Share of decisions that are logged. All by default: a line costs about 10 us.",
    )
    log_max_bytes: int = Field(
        100 << 20,
        ge=1 << 16,
        le=1 << 40,
        description="Size of the log after which a new file is begun; 100 MiB are some 50,000 "
        "decisions among five endpoints.",
    )
    log_keep: int = Field(
        5, ge=0, le=1000, description="Old log files kept, as `<log>.1` (the newest) and so on."
    )
    viewers_token_file: Path | None = Field(
        None,
        description="File with a token that the page, /explain, /decisions and /config ask for, as "
        "`Authorization: Bearer ...` or in the page's form. Without one whoever reaches the admin "
        "port may look.",
    )


class Flow(Section):
    """Flow control: requests wait in slack order while the fleet is full."""

    enabled: bool = Field(
        False,
        description="Whether requests wait here while every endpoint is full. Off, each is sent at "
        "once and waits in an engine, in order of arrival.",
    )
    objectives_s: dict[str, Annotated[float, Field(gt=0, le=3600)]] = Field(
        default={},
        description="Seconds to the first token that a class of requests is meant to have, by the "
        "name in x-gateway-inference-objective. x-slo-ttft-ms goes before it.",
    )
    objective_base_s: float = Field(
        1.0,
        ge=0,
        le=3600,
        description="Seconds of the objective of a request that has none: this ...",
    )
    objective_factor: float = Field(
        5.0,
        ge=1,
        le=1000,
        description="... and this many times its prefill alone. A second is what people wait for, "
        "and "
        "five times leaves a long prompt slack to give.",
    )
    tenant_header: str = Field(
        "x-gateway-inference-fairness-id",
        min_length=1,
        max_length=128,
        pattern=r"^[a-z0-9-]+$",
        description="Request header whose value names the tenant; turns between tenants go by "
        "tokens. In "
        "lower case. Whoever sets it chooses whom to be, so let the gateway write it.",
    )
    long_tokens: int = Field(
        8192,
        ge=1,
        le=1 << 30,
        description="Uncached prompt tokens above which a request is long: while short ones wait, "
        "an endpoint gets no second long one. The paper's short requests end at 8K.",
    )
    order: Literal["lars", "fcfs", "edf", "lrs", "srpt"] = Field(
        "lars",
        description="Who goes first: relative slack, or another order to compare with.",
    )
    max_waiting: int = Field(
        10_000,
        ge=0,
        le=1_000_000,
        description="Requests that may wait; 429 beyond. Each costs some 20 KiB and its body, and "
        "10,000 keep a dispatch at some 100 us.",
    )
    max_held_bytes: int = Field(
        512 << 20,
        ge=0,
        le=64 << 30,
        description="Memory for the bodies of those that wait, each counted twice: as it came and "
        "as it was read. 429 beyond.",
    )
    patience: float = Field(
        3.0,
        ge=0,
        le=1000,
        description="A request is beyond hope, and gets a 503, after waiting this many times its "
        "objective ...",
    )
    min_hold_s: float = Field(
        5.0,
        ge=0,
        le=3580,
        description="... but not before this many seconds: one long prefill may pass meanwhile ...",
    )
    max_hold_s: float = Field(
        60.0,
        ge=0,
        le=3580,
        description="... and never after this many, which also hold requests while no endpoint is "
        "known (a fleet scaled to zero). Keep it at or under `laar envoy --longest-hold`, whose "
        "default this is: Envoy sends a request elsewhere after that.",
    )
    max_prefill_s: float = Field(
        2.0,
        gt=0,
        le=3600,
        description="Seconds of prefill in flight at an endpoint, by c(m), above which it is full. "
        "Enough to keep its batch full between two decisions, little enough for the order to "
        "matter. "
        "A request counts until its first byte is seen, and until its end where answers are not "
        "read (`bodies.sample_answers`): raise it there if endpoints idle while requests wait.",
    )
    max_requests: int = Field(
        256,
        ge=1,
        le=100_000,
        description="Requests at an endpoint above which it is full; vLLM's --max-num-seqs.",
    )
    max_kv_usage: float = Field(
        0.95,
        gt=0,
        le=1,
        description="Share of the KV cache in use above which an endpoint is full: it is about to "
        "preempt.",
    )
    stale_after_s: float = Field(
        3.0,
        gt=0,
        le=3600,
        description="Seconds after which a reading fills no endpoint any more; three missed "
        "scrapes. The own counters still do.",
    )

    @model_validator(mode="after")
    def _ordered(self) -> Flow:
        if self.min_hold_s > self.max_hold_s:
            raise ValueError("`min_hold_s` must not be above `max_hold_s`")
        return self

    @property
    def admission(self) -> FlowSettings:
        """The admission's part."""
        return FlowSettings(
            limits=Limits(
                max_waiting=self.max_waiting,
                max_held_bytes=self.max_held_bytes,
                patience=self.patience,
                min_hold_s=self.min_hold_s,
                max_hold_s=self.max_hold_s,
                order=self.order,
            ),
            saturation=Saturation(
                max_prefill_s=self.max_prefill_s,
                max_requests=self.max_requests,
                max_kv_usage=self.max_kv_usage,
                stale_after_s=self.stale_after_s,
            ),
            objectives_s=self.objectives_s,
            objective_base_s=self.objective_base_s,
            objective_factor=self.objective_factor,
            long_tokens=self.long_tokens,
        )


class ContextRoute(Section):
    """Requests whose documents the context hook may order, and how."""

    name: str = Field(
        min_length=1,
        max_length=64,
        pattern=r"^[A-Za-z0-9_.-]+$",
        description="What metrics and /context call it.",
    )
    path: str = Field(
        "/",
        pattern="^/",
        max_length=1024,
        description="Prefix of the request paths it is about; all of them by default.",
    )
    models: tuple[str, ...] = Field(
        (), max_length=64, description="Names that clients ask for; any by default."
    )
    mode: Mode = Field(
        "off",
        description="`observe` works out what would be gained and forwards the same bytes; `on` "
        "reorders. Off by default: order can carry meaning, so look first.",
    )
    opt_in: bool = Field(
        False,
        description="Whether `x-laar-context: on` turns it on for a request where the mode is "
        "`off` or `observe`. `x-laar-context: off` turns it off in any mode.",
    )
    formats: tuple[Format, ...] = Field(
        ("xml", "json", "numbered"),
        min_length=1,
        description="Explicit delimiters to look for; `numbered` also needs `relabel`.",
    )
    roles: tuple[Role, ...] = Field(
        ("user", "system", "tool"),
        min_length=1,
        description="Whose messages may be changed; an assistant's never are.",
    )
    min_docs: int = Field(
        3, ge=2, le=4096, description="Documents below which a list is left alone: little to gain."
    )
    min_doc_bytes: int = Field(
        256,
        ge=0,
        le=1 << 20,
        description="Mean length of documents below which a list is left alone: engines share "
        "whole blocks of 16 to 64 tokens.",
    )
    max_docs: int = Field(
        256,
        ge=2,
        le=4096,
        description="Documents above which a list is left alone; bounds the search for an order.",
    )
    annotate: bool = Field(
        True,
        description="Name the received order after documents that were moved, for the model to "
        "weigh them by; 5 to 6 tokens a document. Without it accuracy was measured lower.",
    )
    relabel: bool = Field(
        False,
        description="Numbered labels are never cited, so that text may move under fixed labels.",
    )
    dedup: Dedup = Field(
        "off",
        description="`exact` replaces a document whose full text stands earlier in the same body "
        "with a note. Off: an author may want the repetition.",
    )
    dedup_tool_lines: bool = Field(
        False,
        description="Replace runs of lines of tool output that stand in earlier tool output. Off: "
        "it takes milliseconds for hundreds of kilobytes.",
    )
    max_added_ms: float = Field(
        1.0,
        gt=0,
        le=1000,
        description="Milliseconds after which the body is forwarded as it came; looked at between "
        "two steps. 1 is the 99th percentile for 15 documents of 4 KB.",
    )
    max_body_bytes: int = Field(
        2 << 20,
        ge=1024,
        le=64 << 20,
        description="Longest body that is looked at; 2 MiB are some 500,000 tokens.",
    )
    capacity_docs: int = Field(
        30_000,
        ge=1,
        le=10_000_000,
        description="Documents that the endpoints' KV caches hold together; orders beyond that are "
        "forgotten, since the engines have forgotten them too. About 0.1 KB each.",
    )
    ttl_s: float = Field(
        900.0,
        gt=0,
        le=86_400,
        description="Seconds after which an order that was not sent again is forgotten.",
    )
    half_life_s: float = Field(
        600.0, gt=0, le=86_400, description="Seconds after which a document's popularity is half."
    )
    memo_entries: int = Field(
        20_000,
        ge=1,
        le=1_000_000,
        description="Messages of running conversations whose order is remembered, so that later "
        "turns repeat it; some 0.3 KB each.",
    )
    memo_ttl_s: float = Field(
        3600.0,
        gt=0,
        le=86_400,
        description="Seconds of silence after which a conversation's messages may be ordered anew.",
    )
    max_scopes: int = Field(
        32,
        ge=1,
        le=1024,
        description="Tenants times models whose popularity is counted, 0.8 MB each; the least "
        "recently used goes.",
    )
    holdout_share: float = Field(
        0.05,
        ge=0,
        lt=1,
        description="Share of requests left as received, to compare with. 0 switches the guard off "
        "as well.",
    )
    sample_answers: float = Field(
        0.1,
        ge=0,
        le=1,
        description="Share of this path's answers that are read for the comparison, above what "
        "`bodies.sample_answers` reads already; about 50 us a chunk.",
    )
    min_gain: float = Field(
        0.01,
        ge=0,
        le=1,
        description="Share of prompt tokens found cached that reordering must add, else the route "
        "switches itself off ...",
    )
    guard_requests: int = Field(
        200,
        ge=2,
        le=10_000_000,
        description="... once so many requests of either group had their usage read.",
    )

    @model_validator(mode="after")
    def _has_room(self) -> ContextRoute:
        if self.max_docs < self.min_docs:
            raise ValueError("`max_docs` must not be below `min_docs`")
        return self

    @property
    def hook(self) -> ContextSettings:
        """The hook's part."""
        names = {field.name for field in fields(ContextSettings)}
        return ContextSettings(**self.model_dump(include=names))


class Context(Section):
    """ContextPilot: documents in prompts, ordered so that prompts share longer prefixes."""

    routes: tuple[ContextRoute, ...] = Field(
        (),
        max_length=16,
        description="Who may be reordered; the first that fits a request counts. None: every body "
        "is forwarded as it came and nothing is looked at.",
    )

    @model_validator(mode="after")
    def _names_differ(self) -> Context:
        names = [route.name for route in self.routes]
        if len(set(names)) < len(names):
            raise ValueError("two routes have one name; rename one")
        return self


class EnvoySection(Section):
    """What laar writes for Envoy."""

    eds_file: Path | None = Field(
        None,
        description="Endpoints file for Envoy's EDS, rewritten whenever the endpoints change. Its "
        "directory must be the one that Envoy's bootstrap watches.",
    )


class Shutdown(Section):
    """How laar stops."""

    drain_s: float = Field(
        5.0,
        ge=0,
        le=600,
        description="Seconds of serving on after SIGTERM while readiness says no, so that nobody "
        "sends "
        "new streams to a picker that is leaving.",
    )
    grace_s: float = Field(
        30.0,
        ge=0,
        le=3600,
        description="Seconds that open streams then have to finish before they are cut; Envoy "
        "goes on without the picker.",
    )


class Tuning(Section):
    """The hill-climb over the cost's weights, on live traffic."""

    enabled: bool = Field(
        False,
        description="Whether the picker climbs. Off by default: a climb is an experiment on users. "
        "Tune, export, and serve the file frozen (routing.weights_file).",
    )
    objective: str = Field(
        "e2e-p95",
        description="What is made small. Whole answers by default: every request has that time, "
        "while first tokens are only seen of answers that are read (bodies.sample_answers).",
    )
    window: int = Field(128, description="Requests that one set of weights is measured on.")
    max_windows: int = Field(
        1000, ge=1, le=1_000_000, description="Windows after which the climb ends."
    )
    bounds: dict[str, tuple[float, float]] = Field(
        default=TUNABLE, description="Floor and cap of each weight that is tuned."
    )
    state_file: Path | None = Field(
        None, description="JSON file that keeps the climb across restarts. None: it begins anew."
    )
    state_interval_s: float = Field(
        60.0, ge=1, le=86_400, description="Seconds between two saves of the state."
    )

    @model_validator(mode="after")
    def _usable(self) -> Tuning:
        unknown = set(self.bounds) - set(TUNABLE)
        if unknown:
            raise ValueError(f"bounds: {min(unknown)} is none of {', '.join(TUNABLE)}")
        if self.objective not in OBJECTIVES:
            raise ValueError(f"objective: choose one of {', '.join(OBJECTIVES)}")
        try:
            _ = self.climb
        except SettingError as fault:
            raise ValueError(str(fault)) from None
        return self

    @property
    def climb(self) -> TunerSettings:
        """The tuner's part."""
        return TunerSettings(
            bounds=self.bounds,
            objective=self.objective,
            window=self.window,
            max_windows=self.max_windows,
        )


class Settings(Section):
    """Everything laar can be told."""

    endpoints: tuple[Endpoint, ...] = Field(
        (), description="Endpoints written here; for a fleet that does not change."
    )
    endpoints_file: Path | None = Field(
        None, description="YAML file of endpoints, read again whenever it changes."
    )
    kubernetes: tuple[KubernetesSource, ...] = Field(
        (),
        max_length=64,
        description="Pods as endpoints, of InferencePools or by labels; several make one fleet.",
    )
    listen: Listen = Listen()
    routing: Routing = Routing()
    accuracy: Accuracy = Accuracy()
    prefix: Prefix = Prefix()
    readings: Readings = Readings()
    bodies: Bodies = Bodies()
    flow: Flow = Flow()
    context: Context = Context()
    tuner: Tuning = Tuning()
    decisions: Decisions = Decisions()
    envoy: EnvoySection = EnvoySection()
    shutdown: Shutdown = Shutdown()

    @model_validator(mode="after")
    def _has_endpoints(self) -> Settings:
        if not (self.endpoints or self.endpoints_file or self.kubernetes):
            raise ValueError("no endpoints: give `endpoints`, `endpoints_file` or `kubernetes`")
        return self


def load_settings(path: Path) -> Settings:
    """Reads the settings; relative paths in them are relative to the file.

    Raises:
        SettingError: one line for each fault.
    """
    settings = read_document(path, Settings, max_bytes=MAX_FILE_BYTES)
    base = path.resolve().parent

    def absolute(value: Any) -> Any:
        if isinstance(value, Path):
            return base / value
        if isinstance(value, Section):
            changed = {name: absolute(getattr(value, name)) for name in type(value).model_fields}
            return value.model_copy(update=changed)
        return value

    resolved: Settings = absolute(settings)
    state = resolved.accuracy.state_file
    if state is not None and not state.parent.is_dir():
        raise SettingError(
            f"{path}: accuracy.state_file: {state.parent} is not a directory; create it"
        )
    if resolved.tuner.enabled and resolved.routing.policy != "laar":
        raise SettingError(
            f"{path}: tuner.enabled: only the policy `laar` is tuned, and routing.policy is "
            f"`{resolved.routing.policy}`"
        )
    _ = resolved.routing.weights  # faults of the weights file are told at the start
    artifact = resolved.accuracy.capability
    if artifact is not None and not artifact.is_file():
        raise SettingError(f"{path}: accuracy.capability: {artifact} is not a file; run `laar fit`")
    return resolved
