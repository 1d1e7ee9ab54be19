"""`laar tune` climbs on a trace, prints the best weights, and reports bad input."""

import json

import yaml
from typer.testing import CliRunner

from laar.cli import app
from laar.core.cost import CostWeights
from laar.settings import load
from laar_lab.sim.engine import EngineProfile, EngineSettings, LinearCost
from laar_lab.sim.fleet import Arrival, FleetSettings, Prompt, Site, spread
from laar_lab.tuning.climb import tune
from laar_lab.tuning.settings import TUNABLE, TunerSettings

WINDOW = 20


def sites(num_blocks=4096):
    engine = EngineProfile(
        name="e",
        cost=LinearCost(seconds_per_token=1e-4, decode_s_per_token=5e-3),
        settings=EngineSettings(num_blocks=num_blocks),
    )
    return [Site(name=f"{name}:80", model="m", engine=engine) for name in ("a", "b")]


def trace(count, tokens=640):
    return [
        Arrival(
            at_s=0.05 * i,
            prompt=Prompt(
                prompt_tokens=tokens, output_tokens=4, blocks=spread(i % 5 << 20, tokens // 16)
            ),
        )
        for i in range(count)
    ]


def climb(arrivals, max_windows=6, fleet=None, on_end=lambda _a, _e: None):
    settings = TunerSettings(bounds=TUNABLE, window=WINDOW, max_windows=max_windows)
    initial = {"k_rtt": 1.0, "k_queue": 0.5, "k_delay": 0.5}
    return tune(
        lambda: arrivals,
        fleet or sites(),
        FleetSettings(),
        settings,
        initial,
        seed=1,
        on_end=on_end,
    )


def test_the_trace_is_repeated_until_the_windows_are_full():
    seen = []
    tuner = climb(trace(30), on_end=lambda arrival, _exchange: seen.append(arrival))
    assert tuner.frozen
    assert len(tuner.export()["windows"]) == 6
    assert len(seen) > 5 * WINDOW
    times = [arrival.at_s for arrival in seen]
    assert max(times) > 30 * 0.05  # several passes, one after another


def test_a_second_pass_shares_no_prefixes_with_the_first():
    cached = {}

    def ended(arrival, exchange):
        cached.setdefault(arrival.prompt.blocks[0], []).append(exchange.cached_tokens)

    climb(trace(30), on_end=ended)
    assert len(cached) > 5  # five prompts per pass, with different ids in each pass
    assert all(min(tokens) == 0 for tokens in cached.values())
    assert max(max(tokens) for tokens in cached.values()) > 0


def test_the_best_weights_are_exported_instead_of_the_last_tried():
    tuner = climb(trace(30), max_windows=8)
    export = tuner.export()
    won = [w for w in export["windows"] if w["outcome"] == "accepted"]
    expected = won[-1]["weights"] if won else {"k_rtt": 1.0, "k_queue": 0.5, "k_delay": 0.5}
    assert export["weights"] == expected
    assert len(export["windows"]) == 8


def test_the_command_tunes_a_trace_and_prints_settings_that_the_picker_loads(tmp_path):
    lines = [
        {
            "timestamp": 40 * i,
            "input_length": 640,
            "output_length": 4,
            "hash_ids": [i % 5],
        }
        for i in range(60)
    ]
    (tmp_path / "trace.jsonl").write_text("\n".join(map(json.dumps, lines)))
    ends = [
        {"name": f"{n}:80", "profile": "gorgo-main", "rtt_ms": ms} for n, ms in (("a", 1), ("b", 9))
    ]
    (tmp_path / "fleet.yaml").write_text(yaml.safe_dump({"endpoints": ends}))
    outcome = CliRunner().invoke(
        app,
        [
            "tune",
            str(tmp_path / "trace.jsonl"),
            *("--fleet", str(tmp_path / "fleet.yaml")),
            *("--window", "20", "--windows", "3"),
            *("--json", str(tmp_path / "path.json")),
        ],
    )
    assert outcome.exit_code == 0, outcome.output
    printed = outcome.stdout.partition("# for laar.yaml\n")[2]
    settings = tmp_path / "laar.yaml"
    settings.write_text("endpoints: [{address: '10.0.0.1:80', model: m}]\n" + printed)
    found = json.loads((tmp_path / "path.json").read_text())
    assert load(settings).settings.routing.weights == CostWeights(**found["weights"])
    assert len(found["windows"]) == 3
