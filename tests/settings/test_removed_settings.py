"""Settings of earlier versions: what a file is told that still has one."""

import pytest

from laar.accuracy import online
from laar.context import aligner, formats, guard, hook, memo
from laar.context.settings import ContextSettings
from laar.core import adapters, exploring, filters
from laar.core.decision import DirectorSettings
from laar.datalayer import dns, probe, scrape, served_names
from laar.errors import SettingError
from laar.flow import saturation
from laar.health import breaker, recent, standing
from laar.server import state_file
from laar.settings import Settings, leaves, load
from laar.sharing import outbox
from laar.sharing.settings import SNAPSHOT_INTERVAL_S, SharingSettings
from laar.telemetry import log

USED = {
    "routing.explore_share": exploring.EXPLORE_SHARE,
    "routing.max_failures": filters.MAX_FAILURES,
    "routing.max_kv_usage": filters.MAX_KV_USAGE,
    "routing.stale_s": filters.STALE_S,
    "routing.adapter_load_s": adapters.LOAD_S,
    "routing.transfer_tokens_per_s": DirectorSettings().transfer_tokens_per_s,
    "accuracy.prior_weight": online.KAPPA,
    "accuracy.state_interval_s": state_file.INTERVAL_S,
    "tuner.state_interval_s": state_file.INTERVAL_S,
    "readings.scrape_timeout_s": scrape.TIMEOUT_S,
    "readings.probe_timeout_s": probe.TIMEOUT_S,
    "readings.models_interval_s": served_names.INTERVAL_S,
    "readings.resolve_interval_s": dns.INTERVAL_S,
    "flow.max_kv_usage": saturation.MAX_KV_USAGE,
    "flow.stale_after_s": saturation.STALE_AFTER_S,
    "context.routes.min_docs": ContextSettings().min_docs,
    "context.routes.max_docs": formats.MAX_DOCS,
    "context.routes.min_saving_bytes": ContextSettings().min_saving_bytes,
    "context.routes.annotate": ContextSettings().annotate,
    "context.routes.dedup_tool_lines": False,
    "context.routes.max_added_ms": hook.MAX_ADDED_MS,
    "context.routes.ttl_s": aligner.TTL_S,
    "context.routes.max_scopes": aligner.MAX_SCOPES,
    "context.routes.memo_entries": memo.MAX_ENTRIES,
    "context.routes.memo_ttl_s": memo.TTL_S,
    "context.routes.min_gain": guard.MIN_GAIN,
    "context.routes.guard_requests": guard.MIN_REQUESTS,
    "context.routes.guard_outcomes": guard.MIN_OUTCOMES,
    "decisions.log_sample": 1,
    "decisions.log_max_bytes": log.MAX_BYTES,
    "decisions.log_keep": log.KEEP,
    "share.flush_ms": SharingSettings().flush_ms,
    "share.max_waiting_bytes": outbox.MAX_WAITING_BYTES,
    "share.snapshot_interval_s": SNAPSHOT_INTERVAL_S,
    "otlp.sample_without_parent": 0,
    "health.failing_share": breaker.FAILING_SHARE,
    "health.half_life_s": recent.HALF_LIFE_S,
    "health.first_trial_s": breaker.FIRST_TRIAL_S,
    "health.slow_start_s": breaker.SLOW_START_S,
    "health.max_out_share": standing.MAX_OUT_SHARE,
    "health.overdue_s": breaker.OVERDUE_S,
    "health.full_s": breaker.FULL_S,
    "health.longest_full_s": breaker.LONGEST_FULL_S,
}


def test_the_values_that_a_file_is_told_are_those_in_use():
    assert {path: str(float(value)) for path, value in USED.items()} == {
        path: str(float({"true": 1, "false": 0}.get(text, text)))
        for path, text in Settings.removed.items()
    }
    assert not set(Settings.removed) & {path for path, _ in leaves(Settings)}


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("routing: {stale_s: 5}", "laar.yaml:1: routing.stale_s: .* its value is always 10; take"),
        (
            "context:\n  routes:\n  - name: rag\n    annotate: false",
            r"laar.yaml:4: context.routes\[0\].annotate: .* its value is always true; take it out",
        ),
    ],
)
def test_a_file_that_still_sets_one_is_told_its_value(tmp_path, written, says):
    (tmp_path / "laar.yaml").write_text(written)
    with pytest.raises(SettingError, match=says):
        load(tmp_path / "laar.yaml")
