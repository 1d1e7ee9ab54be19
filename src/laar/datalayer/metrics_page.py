"""The few numbers laar needs from an engine's Prometheus page, found without parsing the page.

A vLLM page is 55 KB with 484 samples, of which laar needs six. Looking for each name by
``bytes.find`` takes a thousandth of the time of a parser of the whole page, so a scrape every
second of a hundred endpoints costs nearly nothing. Engines differ in names only; what
they lack stays NaN. Data-parallel ranks report on one page under a label each: counts, tokens and
counters are summed, the share of the cache in use is averaged.

While an engine rests, its own lines stay as they are, and only its process's change. So a page is
searched again only where the hash of the engine's lines is another (`PageReader`).

The page is untrusted: a value that is not a sensible finite number becomes NaN, never an error.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from xxhash import xxh3_128_digest

from laar.core.endpoints import Reading
from laar.core.membership import EndpointSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineNames:
    """The names of one engine's metrics; of several names the first that the page has counts.

    Args:
        prefix: all names begin with it, and no other line of the page does.
        waiting, running: gauges, requests.
        kv_usage: gauge, share 0..1.
        capacity_tokens: gauges whose product is the size of the KV cache.
        capacity_info: a series of value 1 and its labels whose product is the size; the sets of
            labels are tried in order.
        queries_tokens, hits_tokens: prefix cache counters.
        adapters_info: a series whose labels name the adapters of running requests and how many may
            run, and whose value is when that was so.
        worked: a counter that any work moves, to see a restart by.
        started: a gauge with the time at which `worked` began.
        refused: a counter of requests refused since the queue was full, with the label of its
            reason that means so.
        awake: a gauge that is 0 in an engine that sleeps, with its label.
        rank: the label of a data-parallel rank, where requests may name one.
        ranks_path: path of JSON whose `dp_size` counts the ranks, where a page may lack some.
        path: path of the page.
        aliases: other names of the engine, in labels of pods.
    """

    prefix: bytes
    waiting: tuple[bytes, ...]
    running: tuple[bytes, ...]
    kv_usage: tuple[bytes, ...]
    capacity_tokens: tuple[bytes, ...] = ()
    capacity_info: tuple[bytes, tuple[tuple[bytes, ...], ...]] | None = None
    queries_tokens: tuple[bytes, ...] = ()
    hits_tokens: tuple[bytes, ...] = ()
    adapters_info: tuple[bytes, bytes, bytes] | None = None
    worked: bytes = b""
    started: bytes = b""
    refused: tuple[bytes, bytes] | None = None
    awake: tuple[bytes, bytes] | None = None
    rank: bytes = b""
    ranks_path: str = ""
    path: str = "/metrics"
    aliases: tuple[str, ...] = ()


ENGINES: Mapping[str, EngineNames] = {
    # Names as served by vLLM 0.32; the second ones are those of releases before the V1 engine.
    "vllm": EngineNames(
        prefix=b"vllm:",
        waiting=(b"vllm:num_requests_waiting",),
        running=(b"vllm:num_requests_running",),
        kv_usage=(b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc"),
        capacity_info=(
            b"vllm:cache_config_info",
            ((b"kv_cache_size_tokens",), (b"num_gpu_blocks", b"block_size")),
        ),
        queries_tokens=(b"vllm:prefix_cache_queries_total", b"vllm:gpu_prefix_cache_queries_total"),
        hits_tokens=(b"vllm:prefix_cache_hits_total", b"vllm:gpu_prefix_cache_hits_total"),
        adapters_info=(b"vllm:lora_requests_info", b"running_lora_adapters", b"max_lora"),
        worked=b"vllm:prompt_tokens_total",
        started=b"vllm:prompt_tokens_created",
        refused=(b"vllm:admission_rejections_total", b'reason="max_num_queued_'),
        awake=(b"vllm:engine_sleep_state", b'sleep_state="awake"'),
        rank=b"engine",
    ),
    # Every scheduler of a group may report, and each priority beside the total (`_once`).
    "sglang": EngineNames(
        prefix=b"sglang:",
        waiting=(b"sglang:num_queue_reqs",),
        running=(b"sglang:num_running_reqs",),
        kv_usage=(b"sglang:token_usage",),
        capacity_tokens=(b"sglang:max_total_num_tokens",),
        capacity_info=(b"sglang:cache_config_info", ((b"num_pages", b"page_size"),)),
        queries_tokens=(b"sglang:prompt_tokens_total",),
        hits_tokens=(b"sglang:cached_tokens_total",),
        worked=b"sglang:generation_tokens_total",
        started=b"sglang:prompt_tokens_created",
        rank=b"dp_rank",
        ranks_path="/server_info",  # its page lacks the ranks of other hosts
    ),
    # Its prefix counters are in blocks of the cache, not in tokens, so they are left out. Its
    # `/metrics` is JSON, of iterations.
    "tensorrt-llm": EngineNames(
        prefix=b"trtllm_",
        waiting=(b"trtllm_num_requests_waiting",),
        running=(b"trtllm_num_requests_running",),
        kv_usage=(b"trtllm_kv_cache_utilization",),
        capacity_tokens=(b"trtllm_kv_cache_max_blocks", b"trtllm_kv_cache_tokens_per_block"),
        worked=b"trtllm_request_success_total",
        started=b"trtllm_request_success_created",
        path="/prometheus/metrics",
        aliases=("trtllm-serve", "trtllm"),
    ),
    # With `--metrics`; the share of its cache in use only in older releases, its size in none.
    "llama.cpp": EngineNames(
        prefix=b"llamacpp:",
        waiting=(b"llamacpp:requests_deferred",),
        running=(b"llamacpp:requests_processing",),
        kv_usage=(b"llamacpp:kv_cache_usage_ratio",),
        worked=b"llamacpp:prompt_tokens_total",
        aliases=("llamacpp", "llama-server"),
    ),
    # With `--enable-metrics`.
    "lmdeploy": EngineNames(
        prefix=b"lmdeploy:",
        waiting=(b"lmdeploy:num_requests_waiting",),
        running=(b"lmdeploy:num_requests_running",),
        kv_usage=(b"lmdeploy:gpu_cache_usage_perc",),
    ),
    # It counts requests only: nothing of its cache.
    "tgi": EngineNames(
        prefix=b"tgi_",
        waiting=(b"tgi_queue_size",),
        running=(b"tgi_batch_current_size",),
        kv_usage=(),
        aliases=("text-generation-inference",),
    ),
}
"""The engines that laar knows, all of them: settings and labels of pods take these names."""

if TYPE_CHECKING:
    Engine = str
else:
    Engine = Literal[tuple(ENGINES)]

_MAX_SAMPLES = 1024
"""Series of one name that are read: a page has one for each data-parallel rank."""
MAX_RANKS = 64
"""Data-parallel ranks behind one address: a node has eight GPUs."""
_MAX_CAPACITY_TOKENS = 1e12
"""No cache is larger; a product of two numbers off a page can be infinite."""
_MAX_ADAPTERS = 256
_RANKS = re.compile(rb'[{,](?:tp_rank|pp_rank|moe_ep_rank|priority)="[^"]*"')


class Counters(NamedTuple):
    """Counters of the last page that had each, to see at the next whether the engine restarted.

    A page may lack one: SGLang's that have labels appear with the first request after a restart.
    """

    queries: float
    worked: float
    started: float
    refused: float

    def restarted_since(self, before: Counters) -> bool:
        """Return whether a counter ran backwards or the start time moved; NaN is no sign."""
        return (
            self.queries < before.queries
            or self.worked < before.worked
            or (math.isfinite(self.started + before.started) and self.started != before.started)
        )

    def refused_since(self, before: Counters) -> float:
        """Return how many were refused since; a series may appear with the first refusal."""
        refused = self.refused - (0.0 if math.isnan(before.refused) else before.refused)
        return refused if 0.0 < refused < math.inf else 0.0

    def or_known(self, before: Counters) -> Counters:
        """Return these counters, with the earlier number of each that this page lacks."""
        both = zip(self, before, strict=True)
        return Counters(*(known if math.isnan(now) else now for now, known in both))


def page_url(spec: EndpointSpec) -> str:
    """Return the address of an endpoint's metrics page; empty for one without."""
    if spec.metrics_url is not None:
        return spec.metrics_url
    return spec.url(ENGINES[spec.engine].path)


class PageReader:
    """Reads the pages of one endpoint, one after the other."""

    __slots__ = ("_before", "_lines", "_reading")

    def __init__(self) -> None:
        self._before: Counters | None = None
        self._lines: tuple[str, bytes] | None = None
        self._reading = Reading()

    def read(self, page: bytes, engine: str) -> Reading:
        """Return the numbers of a page; `engine` is a key of `ENGINES`."""
        lines = engine, _hash_of_lines(page, ENGINES[engine].prefix)
        if lines == self._lines:
            if self._reading.restarted or self._reading.refused:
                self._reading = dataclasses.replace(self._reading, restarted=False, refused=0.0)
            return self._reading
        self._lines = lines
        self._reading, self._before = read_page(page, engine, self._before)
        return self._reading


def pages_by_rank(page: bytes, engine: str) -> list[bytes]:
    """Return the page of each data-parallel rank, by the rank; a single page where there is one."""
    names = ENGINES[engine]
    found = {_label(labels, names.rank) for labels, _ in _samples(page, names.running[0])}
    ranks = [b"%d" % rank for rank in range(min(len(found), MAX_RANKS))]
    if not names.rank or len(ranks) < 2 or found != set(ranks):
        return [page]
    label = names.rank + b'="'  # a line without it is about all of them
    lines = [(line, label not in line) for line in page.splitlines(keepends=True)]
    marks = [label + rank + b'"' for rank in ranks]
    return [b"".join(line for line, of_all in lines if of_all or m in line) for m in marks]


def _hash_of_lines(page: bytes, prefix: bytes) -> bytes:
    """Return the hash of the lines of an engine, from the first to the last."""
    start = page.find(prefix)
    if start < 0:
        return b""
    end = page.find(b"\n", page.rfind(prefix)) + 1 or len(page)
    # Whether a name begins its line, and whether the last line is whole, counts too.
    return xxh3_128_digest(memoryview(page)[max(start - 1, 0) : end])


def read_page(page: bytes, engine: str, before: Counters | None) -> tuple[Reading, Counters]:
    """Read one metrics page.

    Args:
        page: the body in Prometheus's text format, possibly cut off.
        engine: a key of `ENGINES`.
        before: the counters of the endpoint's earlier pages.
    """
    names = ENGINES[engine]
    counters = Counters(
        queries=_total(page, names.queries_tokens),
        worked=_total(page, (names.worked,)),
        started=_latest(page, names.started),
        refused=_labelled(page, names.refused),
    )
    kv_usage = _mean(page, names.kv_usage)
    adapters, max_adapters = _adapters(page, names)
    reading = Reading(
        waiting=_total(page, names.waiting),
        running=_total(page, names.running),
        kv_usage=kv_usage if kv_usage <= 1.0 else math.nan,
        capacity_tokens=_capacity(page, names),
        prefix_queries_tokens=counters.queries,
        prefix_hits_tokens=_total(page, names.hits_tokens),
        adapters=adapters,
        max_adapters=max_adapters,
        restarted=before is not None and counters.restarted_since(before),
        started_s=counters.started,
        refused=0.0 if before is None else counters.refused_since(before),
        asleep=_labelled(page, names.awake) == 0.0,
    )
    return reading, counters if before is None else counters.or_known(before)


def _total(page: bytes, names: tuple[bytes, ...]) -> float:
    for name in names:
        if samples := _samples(page, name):
            return _finite(sum(_number(value) for _, value in samples))
    return math.nan


def _latest(page: bytes, name: bytes) -> float:
    """Return the largest of the series, one for each rank."""
    return _finite(max((_number(value) for _, value in _samples(page, name)), default=math.nan))


def _mean(page: bytes, names: tuple[bytes, ...]) -> float:
    for name in names:
        if samples := _samples(page, name):
            return _finite(sum(_number(value) for _, value in samples) / len(samples))
    return math.nan


def _labelled(page: bytes, series: tuple[bytes, bytes] | None) -> float:
    """Return the sum of those of a name's series that have a label; NaN without the name."""
    if series is None or not (samples := _samples(page, series[0])):
        return math.nan
    return sum(_number(value) for labels, value in samples if series[1] in labels)


def _finite(value: float) -> float:
    """Return a sum, or NaN: numbers that are possible one by one may add up to one that is not."""
    return value if value < math.inf else math.nan


def _capacity(page: bytes, names: EngineNames) -> float:
    if names.capacity_tokens:
        # Ranks multiply the blocks and not the block's size, hence total by mean.
        first, *others = names.capacity_tokens
        capacity = _total(page, (first,)) * math.prod(_mean(page, (name,)) for name in others)
        if 0 < capacity < _MAX_CAPACITY_TOKENS:
            return capacity
    if names.capacity_info:
        name, label_sets = names.capacity_info
        infos = [labels for labels, _ in _samples(page, name)]
        for label_set in label_sets:
            capacity = sum(
                math.prod(_number(_label(labels, label)) for label in label_set) for labels in infos
            )
            if 0 < capacity < _MAX_CAPACITY_TOKENS:
                return capacity
    return math.nan


def _adapters(page: bytes, names: EngineNames) -> tuple[frozenset[str], float]:
    """Return the adapters in use and how many may be, from the latest sample."""
    if names.adapters_info is None or not (samples := _samples(page, names.adapters_info[0])):
        return frozenset(), math.nan
    labels, _ = max(samples, key=lambda sample: (_number(sample[1]) >= 0.0, _number(sample[1])))
    running = _label(labels, names.adapters_info[1]).decode("utf-8", "replace")
    found = frozenset(filter(None, map(str.strip, running.split(",")[:_MAX_ADAPTERS])))
    most = _number(_label(labels, names.adapters_info[2]))
    return found, most if most >= 1.0 else math.nan


def _samples(page: bytes, name: bytes) -> list[tuple[bytes, bytes]]:
    """Find the (labels, value) of each series called exactly `name`."""
    found: list[tuple[bytes, bytes]] = []
    size = len(name)
    start = page.find(name) if name else -1
    while start >= 0 and len(found) < _MAX_SAMPLES:
        after = start + size
        end = page.find(b"\n", after)
        if end < 0:
            # The last line of a page that was cut off may hold half a number.
            break
        follows = page[after : after + 1]
        if follows in (b"{", b" ") and (start == 0 or page[start - 1] == 10):
            # A label's value may hold blanks and braces, but nothing after the labels does.
            brace = page.rfind(b"}", after, end) + 1
            labels = page[after:brace] if brace else b""
            parts = page[brace or after : end].split(None, 1)
            found.append((labels, parts[0] if parts else b""))
            # The format keeps the series of one name together, so the next line ends the search.
            start = end + 1 if page.startswith(name, end + 1) else -1
        elif found:
            break
        else:
            start = page.find(name, end)
    return _once(found) if any(b'tp_rank="' in labels for labels, _ in found) else found


def _once(samples: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return one sample of each group of schedulers: they read the same queue.

    With data-parallel attention the groups have a `dp_rank` each, and share one numbering of
    `tp_rank`. The total over all priorities has an empty `priority`.
    """
    first: dict[bytes, tuple[bytes, bytes]] = {}
    for sample in sorted(samples, key=lambda sample: _order(sample[0])):
        first.setdefault(_RANKS.sub(b"", sample[0]), sample)
    return list(first.values())


def _order(labels: bytes) -> tuple[bytes, int, bytes, int, bytes]:
    stage, rank = _label(labels, b"pp_rank"), _label(labels, b"tp_rank")
    return _label(labels, b"priority"), len(stage), stage, len(rank), rank


def _label(labels: bytes, name: bytes) -> bytes:
    """Return a label's value in ``{a="1",b="2"}``; empty when there is none."""
    key = name + b'="'
    start = labels.find(key)
    while start > 0 and labels[start - 1 : start] not in (b"{", b","):
        start = labels.find(key, start + 1)
    if start < 0:
        return b""
    start += len(key)
    return labels[start : labels.find(b'"', start)]


def _number(text: bytes) -> float:
    """Read a number that can be a count, share or time; anything else is NaN."""
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return value if 0.0 <= value < math.inf else math.nan
