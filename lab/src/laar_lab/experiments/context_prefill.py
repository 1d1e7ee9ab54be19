"""ContextPilot's main result in the lab: prefill throughput and TTFT with and without the hook.

Four engines run behind the production picker, whose cost includes cached prefixes in every row. If
a share h of the prompts is cached, prefill is at most 1 / (1 - h) times as fast, so the paper's
factors of 1.5 to 3 are for loads with high overlap, and so is the claim about prefill. `same
documents`, where requests of one topic share nearly all documents, overlaps like MultihopRAG with
DeepSeek-R1 (5.1 to 60.4 % cached, prefill 1.81 times as fast). `topic` overlaps like the paper's
run with Qwen3-32B (4.6 to 34 % cached), which allows a factor of 1.5; `zipf 1.0` overlaps less.
Throughput is measured on a backlog with one token per answer, and TTFT with Poisson arrivals at two
thirds of the fleet's capacity without the hook. In the paper all requests are known beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, product, repeat

from laar_lab.claims import Seen, paired
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.report import Report
from laar_lab.sim.engine import load_profile
from laar_lab.sim.fleet import (
    Arrival,
    Exchange,
    FleetSettings,
    VirtualFleet,
    generator,
    replay_open,
)
from laar_lab.suite.fleets import workers
from laar_lab.sweep import grid
from laar_lab.tally import Tally
from laar_lab.workloads import rag
from laar_lab.workloads.rag_fleet import RagClient, prompt_of

ENGINE = "qwen2.5-7b-a100"
WORKERS = 4
IN_FLIGHT = 64
RATE = 4.0
OUTPUT_TOKENS = 64
LOADS: dict[str, Callable[[int, int], list[list[int]]]] = {
    "topic": lambda seed, n: rag.topic(seed, requests=n),
    "same documents": lambda seed, n: rag.topic(seed, requests=n, noise=1, topic_docs=16),
    "zipf 1.0": lambda seed, n: rag.zipf(seed, 1.0, requests=n),
    "no overlap": lambda _seed, n: rag.disjoint(requests=n),
}
RECEIVED, HOOK = "as received", "hook"
WAYS = (RECEIVED, HOOK)


def run(scope: Scope) -> Report:
    """Run each load in both ways."""
    requests = 600 if scope.quick else 2000
    cases = {key: (*key, requests) for key in product(LOADS, WAYS)}
    runs = grid(run_load, cases, scope.seeds, label="context-prefill")

    def hooked(load: str, figure: str) -> dict[str, Seen]:
        return {load: paired(runs[load, HOOK], runs[load, RECEIVED], figure)}

    return Report(
        evidence={
            "prefill": hooked("same documents", "tokens_per_s"),
            "no-overlap": hooked("no overlap", "tokens_per_s"),
        },
    )


def run_load(load: str, way: str, requests: int, seed: int) -> dict[str, float]:
    """Run a load on fresh fleets: as a backlog, and with Poisson arrivals."""
    contexts = LOADS[load](seed, requests)
    # Only the tokens that the client sent; it did not ask for the hook's note.
    received_tokens = requests * prompt_of(contexts[0], 0).prompt_tokens
    backlog = replay(contexts, way, seed, None)
    paced = replay(contexts, way, seed, RATE)
    return {
        "tokens_per_s": received_tokens / (backlog.last_s - backlog.first_s) / WORKERS,
        "ttft_s": paced.ttft.mean,
    }


def replay(
    contexts: Sequence[Sequence[int]],
    way: str,
    seed: int,
    rate: float | None,
    seen: Callable[[Arrival, Exchange], None] = lambda _arrival, _exchange: None,
) -> Tally:
    """Send all contexts, `IN_FLIGHT` at a time or as Poisson arrivals; pass results to `seen`."""
    sites = workers(load_profile(ENGINE), WORKERS)
    fleet = VirtualFleet(sites, FleetSettings(), seed=seed)
    client = RagClient(contexts, hooked=way == HOOK, output_tokens=OUTPUT_TOKENS if rate else 1)
    tally = Tally()

    def ended(arrival: Arrival, exchange: Exchange) -> None:
        client.ended(arrival, exchange)
        tally.add(arrival, exchange)
        seen(arrival, exchange)

    rng = generator(seed, "arrivals")
    moments = accumulate(rng.expovariate(rate) for _ in contexts) if rate else repeat(0.0)
    cap = len(contexts) if rate else IN_FLIGHT
    replay_open(fleet, client.arrivals(fleet, moments), ended, max_in_flight=cap)
    return tally


EXPERIMENTS = declared(__name__, {"context-prefill": run})
