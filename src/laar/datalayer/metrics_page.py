"""Extract the few numbers that laar needs from an engine's Prometheus page, without parsing it.

A vLLM page is 55 KB with 484 samples, of which laar needs a dozen. Finding each name with
``bytes.find`` takes a thousandth of the time that parsing the whole page takes, so scraping a
hundred endpoints every second costs almost nothing. Engines differ only in metric names; missing
metrics are NaN. Data-parallel ranks report on one page, each under its label: counts, tokens and
counters are summed, the share of the cache in use is averaged.

The page is untrusted: a value that is not a plausible finite number becomes NaN, never an error.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple

from laar.fleet.endpoints import Reading
from laar.fleet.membership import EndpointSpec
from laar.prefix.match import Grid


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineNames:
    """The names of an engine's metrics; if several are given, the first on the page is used.

    Args:
        prefix: all names begin with it, and no other line of the page does.
        waiting, running: gauges: number of requests.
        kv_usage: gauge: share of the KV cache in use, 0..1.
        capacity_tokens: gauges whose product is the size of the KV cache.
        capacity_info: a series with value 1, and sets of its labels whose product is the size; the
            sets are tried in order.
        queries_tokens, hits_tokens: prefix cache counters.
        misses_tokens: counter of the tokens that were not found, if none has all that were sought.
        tiers_tokens: counters of hits in slower memory tiers; above 0 if there are any.
        host_tokens: size of the host memory behind the KV cache, with a copy of the cache.
        adapters_info: a series whose labels list the adapters of running requests and how many may
            run, and whose value is the time of the sample.
        worked: a counter incremented by any work; a decrease shows a restart.
        generated: a counter that moves while answers are generated.
        started: a gauge with the time at which `worked` started to count.
        refused: a counter of refused requests, and its label for reasons that mean a full queue.
        awake: a gauge that is 0 while an engine sleeps, and its label.
        rank: the label with the data-parallel rank, if requests may name a rank.
        ranks_path: path to JSON whose `dp_size` is the number of ranks, if pages may lack ranks.
        events_path: path to JSON that tells where KV events are published.
        path: path of the metrics page.
        aliases: other names of the engine, used in pod labels.
    """

    prefix: bytes
    waiting: tuple[bytes, ...]
    running: tuple[bytes, ...]
    kv_usage: tuple[bytes, ...]
    capacity_tokens: tuple[bytes, ...] = ()
    capacity_info: tuple[bytes, tuple[tuple[bytes, ...], ...]] = (b"", ())
    queries_tokens: tuple[bytes, ...] = ()
    hits_tokens: tuple[bytes, ...] = ()
    misses_tokens: tuple[bytes, ...] = ()
    tiers_tokens: tuple[bytes, ...] = ()
    host_tokens: tuple[bytes, ...] = ()
    adapters_info: tuple[bytes, bytes, bytes] = (b"", b"", b"")
    worked: bytes = b""
    generated: bytes = b""
    started: bytes = b""
    refused: tuple[bytes, bytes] = (b"", b"")
    awake: tuple[bytes, bytes] = (b"", b"")
    rank: bytes = b""
    ranks_path: str = ""
    events_path: str = ""
    path: str = "/metrics"
    aliases: tuple[str, ...] = ()


ENGINES: Mapping[str, EngineNames] = {
    # Names as in vLLM 0.32; the second names are from releases before the V1 engine.
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
        tiers_tokens=(b"vllm:external_prefix_cache_hits_total",),
        adapters_info=(b"vllm:lora_requests_info", b"running_lora_adapters", b"max_lora"),
        worked=b"vllm:prompt_tokens_total",
        generated=b"vllm:generation_tokens_total",
        started=b"vllm:prompt_tokens_created",
        refused=(b"vllm:admission_rejections_total", b'reason="max_num_queued_'),
        awake=(b"vllm:engine_sleep_state", b'sleep_state="awake"'),
        rank=b"engine",
        events_path="/kv_event_sources",
    ),
    # Each scheduler of a group may report, and so may each priority besides the total (`_once`).
    "sglang": EngineNames(
        prefix=b"sglang:",
        waiting=(b"sglang:num_queue_reqs",),
        running=(b"sglang:num_running_reqs",),
        kv_usage=(b"sglang:token_usage",),
        capacity_tokens=(b"sglang:max_total_num_tokens",),
        capacity_info=(b"sglang:cache_config_info", ((b"num_pages", b"page_size"),)),
        queries_tokens=(b"sglang:prompt_tokens_total",),
        hits_tokens=(b"sglang:cached_tokens_total",),
        host_tokens=(b"sglang:hicache_host_total_tokens",),
        worked=b"sglang:generation_tokens_total",
        started=b"sglang:prompt_tokens_created",
        rank=b"dp_rank",
        ranks_path="/server_info",  # a page lacks the ranks of other hosts
        events_path="/server_info",
    ),
    # Older releases have no counters of tokens. `/metrics` is JSON about iterations.
    "tensorrt-llm": EngineNames(
        prefix=b"trtllm_",
        waiting=(b"trtllm_num_requests_waiting",),
        running=(b"trtllm_num_requests_running",),
        kv_usage=(b"trtllm_kv_cache_utilization",),
        capacity_tokens=(b"trtllm_kv_cache_max_blocks", b"trtllm_kv_cache_tokens_per_block"),
        queries_tokens=(b"trtllm_prompt_tokens_total",),
        hits_tokens=(b"trtllm_prompt_cached_tokens_total",),
        worked=b"trtllm_request_success_total",
        generated=b"trtllm_generation_tokens_total",
        started=b"trtllm_request_success_created",
        path="/prometheus/metrics",
        aliases=("trtllm-serve", "trtllm"),
    ),
    # Requires `--metrics`. Only older releases report the cache in use, only newer ones what was
    # found, and none the cache's size.
    "llama.cpp": EngineNames(
        prefix=b"llamacpp:",
        waiting=(b"llamacpp:requests_deferred",),
        running=(b"llamacpp:requests_processing",),
        kv_usage=(b"llamacpp:kv_cache_usage_ratio",),
        hits_tokens=(b"llamacpp:prompt_tokens_cached_total",),
        misses_tokens=(b"llamacpp:prompt_tokens_total",),
        worked=b"llamacpp:prompt_tokens_total",
        generated=b"llamacpp:tokens_predicted_total",
        aliases=("llamacpp", "llama-server"),
    ),
    # Requires `--enable-metrics`.
    "lmdeploy": EngineNames(
        prefix=b"lmdeploy:",
        waiting=(b"lmdeploy:num_requests_waiting",),
        running=(b"lmdeploy:num_requests_running",),
        kv_usage=(b"lmdeploy:gpu_cache_usage_perc",),
        worked=b"lmdeploy:prompt_tokens_total",
        generated=b"lmdeploy:generation_tokens_total",
    ),
    # Reports requests, but nothing about its cache.
    "tgi": EngineNames(
        prefix=b"tgi_",
        waiting=(b"tgi_queue_size",),
        running=(b"tgi_batch_current_size",),
        kv_usage=(),
        generated=b"tgi_batch_inference_success",
        aliases=("text-generation-inference",),
    ),
}
"""All supported engines; settings and pod labels accept these names."""

if TYPE_CHECKING:
    Engine = str
else:
    Engine = Literal[tuple(ENGINES)]

_MAX_SAMPLES = 1024
"""Maximum number of series read per name: a page has one for each data-parallel rank."""
MAX_RANKS = 64
"""Maximum number of data-parallel ranks per address. Generous: a node has eight GPUs."""
_MAX_SHARED_BYTES = 64 << 10
"""Maximum size of the lines without a rank, which are read once for each rank."""
_MAX_CAPACITY_TOKENS = 1e12
"""Maximum plausible cache size; the product of two numbers from a page can be infinite."""
_MAX_ADAPTERS = 256
_Sample = tuple[bytes, float]
"""A series' labels and value."""
_LINE = re.compile(rb"(?=[{ ])(?>(.*\})?)[^\S\n]*+(\S*+).*+\n")
"""Matches a sample after its name, in linear time. A label's value may have spaces and braces, but
nothing after the labels does; the last line of a truncated page may have half a number."""
_RANKS = re.compile(rb'[{,](?:tp_rank|pp_rank|moe_ep_rank|priority|pid)="[^"]*"')


class Counters(NamedTuple):
    """The last known value of each counter, used to detect a restart from the next page.

    A page may lack some: SGLang's labeled counters appear with the first request after a restart.
    """

    queries: float
    worked: float
    started: float
    refused: float

    def restarted_since(self, before: Counters) -> bool:
        """Return whether a counter decreased or the start time changed; NaN is ignored."""
        return (
            self.queries < before.queries
            or self.worked < before.worked
            or (math.isfinite(self.started + before.started) and self.started != before.started)
        )

    def refused_since(self, before: Counters) -> float:
        """Return the refusals since `before`; the series may not exist until the first refusal."""
        refused = self.refused - (0.0 if math.isnan(before.refused) else before.refused)
        return refused if 0.0 < refused < math.inf else 0.0

    def or_known(self, before: Counters) -> Counters:
        """Return these counters, with earlier values for those that this page lacks."""
        both = zip(self, before, strict=True)
        return Counters(*(known if math.isnan(now) else now for now, known in both))


def page_url(spec: EndpointSpec) -> str:
    """Return the URL of an endpoint's metrics page; empty if it has none."""
    own = spec.metrics_url
    return spec.url(ENGINES[spec.engine].path) if own is None else own


def pages_by_rank(page: bytes, engine: str) -> list[bytes]:
    """Split a page by data-parallel rank, in order; return it unchanged if there is only one.

    With hybrid data parallelism, a node shows its own ranks of the whole, such as 2 to 5 of 8, and
    its requests name them from 0.
    """
    names = ENGINES[engine]
    found = {_label(labels, names.rank) for labels, _ in _samples(page, names.running[0])}
    ranks = sorted(int(rank) for rank in found if rank.isdigit() and len(rank) < 5)[:MAX_RANKS]
    if not names.rank or len(found) != len(ranks) or len(ranks) < 2:
        return [page]
    parts: dict[bytes, list[bytes]] = {b"%d" % rank: [] for rank in ranks}
    shared_bytes = 0
    for line in _lines_read(engine).findall(b"\n" + page):
        _, label, rest = line.partition(names.rank + b'="')
        shared_bytes += 0 if label else len(line)
        every = parts if shared_bytes <= _MAX_SHARED_BYTES else ()
        for rank in [rest.partition(b'"')[0]] if label else every:  # no label: for all ranks
            if rank in parts:
                parts[rank].append(line)
    return [b"".join((*lines, b"\n")) for lines in parts.values()]


@cache
def _lines_read(engine: str) -> re.Pattern[bytes]:
    """Return a pattern for the lines with an engine's metrics, each after the end of another."""
    names = ENGINES[engine]
    series = set(re.findall(names.prefix + rb"\w+", repr(names).encode()))
    return re.compile(rb"\n(?:%b).*+(?=\n)" % b"|".join(series))  # `^` would be far slower


def read_page(page: bytes, engine: str, before: Counters | None) -> tuple[Reading, Counters]:
    """Read one metrics page; return also the last known counters.

    Args:
        page: the body in Prometheus text format, possibly truncated.
        engine: a key of `ENGINES`.
        before: the counters of the endpoint's earlier pages; None for its first page.
    """
    names = ENGINES[engine]
    hits_tokens = _total(page, names.hits_tokens)
    counters = Counters(
        queries=_total(page, names.queries_tokens)
        if names.queries_tokens
        else _total(page, names.misses_tokens) + hits_tokens,
        worked=_total(page, (names.worked,)),
        started=_finite(max(_values(page, (names.started,)))),  # one per rank
        refused=_labelled(page, names.refused),
    )
    before = before or counters
    kv_usage, host_tokens = _mean(page, names.kv_usage), _total(page, names.host_tokens)
    adapters, max_adapters = _adapters(page, names)
    reading = Reading(
        waiting=_total(page, names.waiting),
        running=_total(page, names.running),
        kv_usage=kv_usage if kv_usage <= 1.0 else math.nan,
        capacity_tokens=_capacity(page, names),
        prefix_queries_tokens=counters.queries,
        prefix_hits_tokens=hits_tokens,
        adapters=adapters,
        max_adapters=max_adapters,
        restarted=counters.restarted_since(before),
        started_s=counters.started,
        refused=counters.refused_since(before),
        asleep=float(_labelled(page, names.awake) == 0.0),  # all ranks sleep
        has_tiers=host_tokens > 0.0 or _total(page, names.tiers_tokens) > 0.0,
        host_tokens=host_tokens if host_tokens < _MAX_CAPACITY_TOKENS else math.nan,
        grid=_grid(page, names),
        work=_finite(sum(v for v in (*counters[:2], _total(page, (names.generated,))) if v == v)),
    )
    return reading, counters.or_known(before)


def _values(page: bytes, names: tuple[bytes, ...]) -> list[float]:
    """Return the values of the first name that is on the page; a single NaN if none of them is."""
    for name in names:
        if samples := _samples(page, name):
            return [value for _, value in samples]
    return [math.nan]


def _total(page: bytes, names: tuple[bytes, ...]) -> float:
    return _finite(sum(_values(page, names)))


def _mean(page: bytes, names: tuple[bytes, ...]) -> float:
    values = _values(page, names)
    return _finite(sum(values) / len(values))


def _labelled(page: bytes, series: tuple[bytes, bytes]) -> float:
    """Return the sum over a name's series that have the label; NaN if the name is missing."""
    samples = _samples(page, series[0])
    return sum(value for labels, value in samples if series[1] in labels) if samples else math.nan


def _finite(value: float) -> float:
    """Return a sum, or NaN if it is infinite, which sums of valid values can be."""
    return value if value < math.inf else math.nan


def _capacity(page: bytes, names: EngineNames) -> float:
    if names.capacity_tokens:
        # Block counts add up over ranks, but all have the same block size: total times mean.
        first, *others = names.capacity_tokens
        capacity = _total(page, (first,)) * math.prod(_mean(page, (name,)) for name in others)
        if 0 < capacity < _MAX_CAPACITY_TOKENS:
            return capacity
    name, label_sets = names.capacity_info
    infos = [labels for labels, _ in _samples(page, name)]
    for label_set in label_sets:
        capacity = sum(
            math.prod(_number(_label(labels, label)) for label in label_set) for labels in infos
        )
        if 0 < capacity < _MAX_CAPACITY_TOKENS:
            return capacity
    return math.nan


def _grid(page: bytes, names: EngineNames) -> Grid | None:
    """Return where the engine keeps recurrent states, from vLLM's description of its cache."""
    for labels, _ in _samples(page, names.capacity_info[0]):
        mode = _label(labels, b"mamba_cache_mode")
        block = _number(_label(labels, b"block_size"))
        if mode in (b"align", b"all") and 1 <= block < _MAX_CAPACITY_TOKENS:
            unit = _number(_label(labels, b"prefix_match_unit"))
            unit = unit if 1 <= unit <= block else block
            return Grid(int(block), int(unit), everywhere=mode == b"all")
    return None


def _adapters(page: bytes, names: EngineNames) -> tuple[frozenset[str], float]:
    """Return the adapters in use and the maximum number, from the latest sample."""
    if not (samples := _samples(page, names.adapters_info[0])):
        return frozenset(), math.nan
    labels, _ = max(samples, key=lambda sample: (sample[1] >= 0.0, sample[1]))
    running = _label(labels, names.adapters_info[1]).decode("utf-8", "replace")
    found = frozenset(filter(None, map(str.strip, running.split(",")[:_MAX_ADAPTERS])))
    most = _number(_label(labels, names.adapters_info[2]))
    return found, most if most >= 1.0 else math.nan


def _samples(page: bytes, name: bytes) -> list[_Sample]:
    """Return the samples of the series named exactly `name`; their lines must be complete."""
    found: list[_Sample] = []
    start = page.find(name) if name else -1
    while start >= 0 and len(found) < _MAX_SAMPLES:
        after = start + len(name)
        line = _LINE.match(page, after) if start == 0 or page[start - 1] == 10 else None
        if line is not None:
            found.append((line[1] or b"", _number(line[2])))
            # The format groups the series of a name, so another name ends the search.
            start = line.end() if page.startswith(name, line.end()) else -1
        else:
            start = -1 if found else page.find(name, after)
    again = any(b'tp_rank="' in labels or b'pid="' in labels for labels, _ in found)
    return _once(found) if again else found


def _once(samples: list[_Sample]) -> list[_Sample]:
    """Return one sample per group of schedulers, since a group shares a queue.

    With data-parallel attention each group has a `dp_rank`, and `tp_rank` is numbered across all
    groups. The total over all priorities has an empty `priority`. Of processes that each wrote what
    they last heard of one engine (`pid`), most lag behind, so the highest value counts.
    """
    first: dict[bytes, _Sample] = {}
    for sample in sorted(samples, key=_order):
        first.setdefault(_RANKS.sub(b"", sample[0]), sample)
    return list(first.values())


def _order(sample: _Sample) -> tuple[bytes, int, bytes, int, bytes, bool, float]:
    labels, value = sample
    stage, rank = _label(labels, b"pp_rank"), _label(labels, b"tp_rank")
    of = _label(labels, b"priority"), len(stage), stage, len(rank), rank
    return *of, value != value, -value


def _label(labels: bytes, name: bytes) -> bytes:
    """Return a label's value in ``{a="1",b="2"}``; empty if missing."""
    found = re.search(rb'[{,]%b="([^"]*)"' % name, labels)
    return found[1] if found else b""


def _number(text: bytes) -> float:
    """Parse a finite number of at least 0; return NaN for anything else."""
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return value if 0.0 <= value < math.inf else math.nan
