from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from laar.datalayer.metrics_page import Counters, pages_by_rank, read_page
from support.exploring import examples

LABELS = 'engine="0",model_name="tiny"'
VLLM = f"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{{LABELS}}} 3.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{{LABELS}}} 2.0
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{{{LABELS},reason="capacity"}} 700.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{{LABELS}}} 0.25
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{{{LABELS}}} 6000.0
# TYPE vllm:prefix_cache_queries_created gauge
vllm:prefix_cache_queries_created{{{LABELS}}} 1.7e+09
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{{{LABELS}}} 5888.0
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{{{LABELS}}} 6000.0
vllm:prompt_tokens_created{{{LABELS}}} 1.7e+09
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{{block_size="128",engine="0",hash_block_size="None",\
kv_cache_size_tokens="1048576",num_cpu_blocks="None",num_gpu_blocks="8192"}} 1.0
"""


def page(text: str, engine: str = "vllm"):
    return read_page(text.encode(), engine, None)[0]


def merged(*pages: str) -> str:
    """Merge the pages of several ranks; the format keeps the series of a name together."""
    lines = [line for text in pages for line in text.splitlines() if not line.startswith("#")]
    return "\n".join([*sorted(lines, key=lambda line: line.split("{")[0]), ""])


def same(left: float, right: float) -> bool:
    return left == right or (math.isnan(left) and math.isnan(right))


def test_a_vllm_page_is_read() -> None:
    reading = page(VLLM)
    assert (reading.waiting, reading.running, reading.kv_usage) == (2.0, 3.0, 0.25)
    assert reading.capacity_tokens == 1048576
    assert (reading.prefix_queries_tokens, reading.prefix_hits_tokens) == (6000.0, 5888.0)
    assert not reading.restarted


def test_data_parallel_ranks_are_summed_and_their_usage_averaged() -> None:
    ranks = merged(
        *(
            VLLM.replace('engine="0"', f'engine="{rank}"').replace(" 0.25", f" {usage}")
            for rank, usage in enumerate((0.0, 0.5, 0.7))
        )
    )
    reading = page(ranks)
    assert (reading.waiting, reading.running) == (6.0, 9.0)
    assert reading.kv_usage == pytest.approx(0.4)
    assert reading.capacity_tokens == 3 * 1048576
    assert reading.prefix_hits_tokens == 3 * 5888


@given(
    said=st.lists(
        st.lists(st.sampled_from([0.0, 0.25, 0.5, math.nan]), min_size=1, max_size=6),
        min_size=1,
        max_size=3,
    ),
    random=st.randoms(use_true_random=False),
)
@settings(max_examples=examples(50), deadline=None)
def test_an_engine_that_several_processes_report_counts_once(said, random) -> None:
    """Each writes what it heard last, most of them nothing (vllm-project/vllm#28792)."""
    ranks = []
    for rank, values in enumerate(said):
        copies = [
            line.replace("} ", f',pid="{70 + process}"}} ')
            for process, value in enumerate(values)
            for line in VLLM.replace('engine="0"', f'engine="{rank}"')
            .replace(" 0.25", f" {value}")
            .replace(" 3.0", f" {4 * value}")
            .splitlines()
        ]
        random.shuffle(copies)
        ranks.append("\n".join([*copies, ""]))
    reading = page(merged(*ranks))
    known = [max((v for v in values if v == v), default=math.nan) for values in said]
    assert same(reading.kv_usage, sum(known) / len(known))
    assert same(reading.running, 4 * sum(known))
    assert reading.capacity_tokens == 1048576 * len(said)
    assert reading.prefix_queries_tokens == 6000 * len(said)


def test_an_sglang_page_is_read_once_for_each_tensor_parallel_group() -> None:
    labels = 'engine_type="unified",model_name="m",tp_rank="0"'
    text = "".join(
        f"sglang:{name}{{{labels}}} {value}\nsglang:{name}{{{other}}} {value}\n"
        for other in [labels.replace('tp_rank="0"', 'tp_rank="1"')]
        for name, value in (
            ("num_running_reqs", 4),
            ("num_queue_reqs", 1),
            ("token_usage", 0.28),
            ("max_total_num_tokens", 471258),
            ("prompt_tokens_total", 100),
            ("cached_tokens_total", 40),
        )
    )
    reading = page(text, "sglang")
    assert (reading.waiting, reading.running, reading.kv_usage) == (1.0, 4.0, 0.28)
    assert reading.capacity_tokens == 471258
    assert (reading.prefix_queries_tokens, reading.prefix_hits_tokens) == (100.0, 40.0)


@pytest.mark.parametrize(
    "ranks",
    [
        pytest.param([(0, 0, 0), (1, 2, 0), (2, 4, 0), (3, 6, 0)], id="data-parallel attention"),
        pytest.param([(0, 0, 0), (0, 1, 0), (1, 2, 0), (1, 3, 0)], id="every scheduler reports"),
        pytest.param([(9, 18, 0), (10, 20, 0), (10, 21, 0)], id="two-digit ranks"),
        pytest.param([(0, 0, 0), (0, 0, 1), (0, 0, 2)], id="pipeline stages"),
        pytest.param([(None, 0, 1), (None, 1, 0), (None, 0, 0)], id="no data-parallel ranks"),
    ],
)
@pytest.mark.parametrize("priorities", [(), ("", "1", "5")])
def test_each_queue_of_an_sglang_engine_counts_once(
    ranks: list[tuple[int | None, int, int]], priorities: tuple[str, ...]
) -> None:
    lines = []
    for name, value in (("num_running_reqs", 4), ("num_queue_reqs", 2), ("token_usage", 0.5)):
        for dp, tp, pp in ranks:
            own = "" if dp is None else f'dp_rank="{dp}",'
            labels = f'{own}engine_type="unified",moe_ep_rank="{tp}",pp_rank="{pp}",tp_rank="{tp}"'
            for priority in priorities or [None]:
                of = "" if priority is None else f',priority="{priority}"'
                lines.append(f"sglang:{name}{{{labels}{of}}} {value / 2 if priority else value}")
    reading = page("\n".join([*lines, ""]), "sglang")
    queues = len({dp for dp, _, _ in ranks})
    assert (reading.running, reading.waiting) == (4.0 * queues, 2.0 * queues)
    assert reading.kv_usage == 0.5


def test_each_rank_has_its_own_queue_and_the_values_common_to_all() -> None:
    """SGLang counts tokens in a process shared by all ranks, so all ranks restart together."""
    queue = 'sglang:%s{dp_rank="%d",tp_rank="%d"} %d\n'
    text = "".join(
        queue % (name, rank, 2 * rank, value + rank)
        for name, value in (("num_running_reqs", 4), ("num_queue_reqs", 1))
        for rank in range(2)
    )
    all_of_it = [text + f'sglang:generation_tokens_total{{model_name="m"}} {n}\n' for n in (900, 3)]
    before, after = (pages_by_rank(page.encode(), "sglang") for page in all_of_it)
    counters: list[Counters | None] = [None, None]
    for pages, restarted in ((before, False), (after, True)):
        found = []
        for rank, part in enumerate(pages):
            reading, counters[rank] = read_page(part, "sglang", counters[rank])
            found.append(reading)
        assert [(one.running, one.waiting) for one in found] == [(4.0, 1.0), (5.0, 2.0)]
        assert [one.restarted for one in found] == [restarted] * 2


@pytest.mark.parametrize(
    ("ranks", "parts"),
    [
        ([0, 1], 2),
        ([4, 5, 6, 7], 4),
        ([10, 8, 11, 9], 4),  # in any order, and by number
        ([2, 3], 2),
        ([2, 3, 4, 5], 4),
        ([0, 2, 4, 6], 4),
        ([1, 3, 12], 3),
        ([4], 1),
        (["", 1], 1),
        (["9" * 5000, "9" * 5001], 1),
    ],
)
def test_a_node_shows_its_own_ranks_of_a_whole(ranks: list[object], parts: int) -> None:
    page = "".join(f'vllm:num_requests_running{{engine="{rank}"}} {rank}\n' for rank in ranks)
    found = pages_by_rank(page.encode(), "vllm")
    assert len(found) == parts
    if parts > 1:
        readings = [read_page(part, "vllm", None)[0].running for part in found]
        assert readings == sorted(ranks)


@pytest.mark.parametrize(
    ("engine", "series"),
    [
        ("vllm", 'vllm:external_prefix_cache_hits_total{model_name="m"}'),
        ("sglang", 'sglang:hicache_host_total_tokens{tp_rank="0"}'),
    ],
)
def test_slower_memory_behind_a_cache_is_detected(engine: str, series: str) -> None:
    assert page(f"{series} 932032\n", engine).has_tiers
    assert not page(f"{series} 0\n", engine).has_tiers


def test_a_tensorrt_llm_page_is_read() -> None:
    text = """trtllm_num_requests_waiting{model_name="m"} 5
trtllm_num_requests_running{model_name="m"} 6
trtllm_kv_cache_utilization{model_name="m"} 0.5
trtllm_kv_cache_max_blocks{model_name="m"} 101
trtllm_kv_cache_tokens_per_block{model_name="m"} 32
"""
    reading = page(text, "tensorrt-llm")
    assert (reading.waiting, reading.running, reading.kv_usage) == (5.0, 6.0, 0.5)
    assert reading.capacity_tokens == 101 * 32
    assert math.isnan(reading.prefix_queries_tokens)
    text += "trtllm_prompt_tokens_total 900\ntrtllm_prompt_cached_tokens_total 300\n"
    reading = page(text, "tensorrt-llm")
    assert (reading.prefix_queries_tokens, reading.prefix_hits_tokens) == (900.0, 300.0)


def test_a_truncated_page_never_yields_part_of_a_number() -> None:
    text = VLLM.encode()
    whole = page(VLLM)
    for end in range(len(text)):
        reading, _ = read_page(text[:end], "vllm", None)
        for name in ("waiting", "running", "kv_usage", "capacity_tokens", "prefix_hits_tokens"):
            value = getattr(reading, name)
            assert math.isnan(value) or value == getattr(whole, name)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("queries_total{%s} 6000.0", "queries_total{%s} 10.0"),
        ("prompt_tokens_total{%s} 6000.0", "prompt_tokens_total{%s} 5999.0"),
        ("prompt_tokens_created{%s} 1.7e+09", "prompt_tokens_created{%s} 1.70000001e+09"),
    ],
)
def test_a_restart_shows_in_counters_or_their_start_time(old: str, new: str) -> None:
    _, before = read_page(VLLM.encode(), "vllm", None)
    again, before = read_page(VLLM.encode(), "vllm", before)
    assert not again.restarted
    changed = VLLM.replace(old % LABELS, new % LABELS)
    assert changed != VLLM
    reading, before = read_page(changed.encode(), "vllm", before)
    assert reading.restarted
    assert reading.started_s == max(1.7e9, float(new.split()[-1]))
    assert not read_page(changed.encode(), "vllm", before)[0].restarted


@pytest.mark.parametrize(("later", "restarted"), [(1_200, True), (5_200_000, False)])
def test_a_restart_is_detected_although_the_first_pages_lack_the_counters(
    later: int, restarted: bool
) -> None:
    """SGLang's counters appear only with the first request, as they have labels."""
    bare = b'sglang:num_running_reqs{model_name="m"} 0.0\n'
    counted = bare + b'sglang:prompt_tokens_total{model_name="m"} %d\n'
    _, before = read_page(counted % 5_100_000, "sglang", None)
    for _ in range(2):
        reading, before = read_page(bare, "sglang", before)
        assert not reading.restarted
    reading, before = read_page(counted % later, "sglang", before)
    assert reading.restarted is restarted
    assert not read_page(counted % (later + 1), "sglang", before)[0].restarted


NAMES = st.sampled_from(
    ["vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:num_requests_waiting_x", "x"]
)
LABEL_TEXT = st.text(
    st.characters(codec="utf-8", exclude_characters='\n\\"\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029'),
    max_size=12,
)


@settings(max_examples=examples(150))
@given(
    st.lists(
        st.tuples(
            NAMES,
            st.dictionaries(st.sampled_from(["a", "engine", "tp"]), LABEL_TEXT, max_size=3),
            st.floats(0, 1e12),
        ),
        max_size=12,
    )
)
def test_sums_agree_with_a_full_parser(series: list[tuple[str, dict[str, str], float]]) -> None:
    lines = []
    for name, labels, value in sorted(series, key=lambda one: one[0]):
        inner = ",".join(f'{key}="{text}"' for key, text in labels.items())
        lines.append(f"{name}{{{inner}}} {value!r}" if labels else f"{name} {value!r}")
    text = "\n".join([*lines, ""])
    expected = {"vllm:num_requests_waiting": [], "vllm:num_requests_running": []}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in expected:
                expected[sample.name].append(sample.value)
    reading = page(text)
    for name, got in zip(expected, (reading.waiting, reading.running), strict=True):
        want = sum(expected[name]) if expected[name] else math.nan
        assert same(got, want) or got == pytest.approx(want)


@pytest.mark.parametrize("noise", [b"}a", b"a", b" ", b',engine="'])
@pytest.mark.parametrize("begin", [b" ", b"{"])
def test_an_incomplete_line_takes_time_linear_in_its_length(noise: bytes, begin: bytes) -> None:
    page = b"vllm:num_requests_waiting" + begin + 300_000 * noise
    assert math.isnan(read_page(page, "vllm", None)[0].waiting)


@pytest.mark.parametrize(("blocks", "size"), [("1e200", "1e200"), ("1e300", "1"), ("1e-9", "0")])
def test_an_impossible_capacity_is_unknown(blocks: str, size: str) -> None:
    """The capacity is later converted to an integer, which fails for infinity."""
    text = f'vllm:cache_config_info{{num_gpu_blocks="{blocks}",block_size="{size}"}} 1\n'
    assert math.isnan(page(text).capacity_tokens)
    host = page("sglang:hicache_host_total_tokens 1e30\n", "sglang")
    assert math.isnan(host.host_tokens)


def test_running_adapters_come_from_the_latest_sample() -> None:
    text = "".join(
        f'vllm:lora_requests_info{{max_lora="2",running_lora_adapters="{running}",'
        f'waiting_lora_adapters="d"}} {at}\n'
        for running, at in (("a", 5.0), ("b, c", 7.5), ("", 1.0))
    )
    reading = page(text)
    assert (reading.adapters, reading.max_adapters) == ({"b", "c"}, 2.0)
    assert page(VLLM).adapters == frozenset()
    assert math.isnan(page(VLLM).max_adapters)
    broken = page('vllm:lora_requests_info{max_lora="x",running_lora_adapters="a"} NaN\n')
    assert math.isnan(broken.max_adapters)


def test_a_llama_cpp_page_is_read() -> None:
    """The page in the documentation of its server; newer releases lack the cache's metrics."""
    text = """# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed.
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 512
llamacpp:predicted_tokens_seconds nan
llamacpp:kv_cache_usage_ratio 0.25
llamacpp:requests_processing 4
llamacpp:requests_deferred 46
"""
    reading, counters = read_page(text.encode(), "llama.cpp", None)
    assert (reading.waiting, reading.running, reading.kv_usage) == (46.0, 4.0, 0.25)
    assert math.isnan(reading.capacity_tokens)
    again = text.replace(" 512", " 40").replace("llamacpp:kv_cache_usage_ratio 0.25\n", "")
    reading, _ = read_page(again.encode(), "llama.cpp", counters)
    assert reading.restarted
    assert math.isnan(reading.kv_usage)
    newer = text + "llamacpp:prompt_tokens_cached_total 88\n"
    reading, _ = read_page(newer.encode(), "llama.cpp", None)
    assert (reading.prefix_queries_tokens, reading.prefix_hits_tokens) == (600.0, 88.0)


def test_requests_refused_for_a_full_queue_count_since_the_last_page() -> None:
    page = "vllm:prompt_tokens_total 5.0\n"
    line = 'vllm:admission_rejections_total{engine="0",reason="%s"} %d\n'
    seen, counters = [], None
    for full, other in ((None, 0), (14, 0), (14, 0), (20, 90), (3, 90), (4, 90)):
        text = page
        if full is not None:
            text += line % ("max_num_queued_reqs", full) + line % ("other", other)
        reading, counters = read_page(text.encode(), "vllm", counters)
        seen.append(reading.refused)
    assert seen == [0, 14, 0, 6, 0, 1]


@pytest.mark.parametrize(
    ("awake", "asleep"), [((1,), 0), ((0,), 1), ((0, 1), 0), ((0, 0), 1), ((), 0)]
)
def test_an_engine_sleeps_once_all_its_ranks_do(awake, asleep) -> None:
    line = 'vllm:engine_sleep_state{engine="%d",model_name="m",sleep_state="%s"} %d.0\n'
    page = "".join(
        line % (rank, "awake", value) + line % (rank, "weights_offloaded", 1 - value)
        for rank, value in enumerate(awake)
    )
    assert read_page(page.encode(), "vllm", None)[0].asleep == asleep


@pytest.mark.parametrize("state", ["weights_offloaded", "discard_all", "awake"])
def test_an_engine_sleeps_in_any_state_but_awake(state) -> None:
    states = {"awake": 0, "weights_offloaded": 0, "discard_all": 0, state: state != "awake"}
    page = "".join(
        f'vllm:engine_sleep_state{{engine="0",sleep_state="{name}"}} {int(value)}.0\n'
        for name, value in states.items()
    )
    assert read_page(page.encode(), "vllm", None)[0].asleep
