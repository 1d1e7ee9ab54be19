"""A chain of agents: each question goes to 15 agents, each of which gets one document.

ContextPilot routes a document to the agent that processed it before; on MultihopRAG it has 1.8 to
2.1 times the throughput of agents that get the documents in retrieval order. With one document per
prompt there is nothing to reorder, so this compares only the picker's routing by cached prefix
with round-robin, which gives agent i the i-th document.
"""

from __future__ import annotations

from collections.abc import Iterator

from laar_lab.claims import paired
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.experiments.context_prefill import ENGINE, LOADS
from laar_lab.report import Report, means_table
from laar_lab.sim.engine import load_profile
from laar_lab.sim.fleet import Arrival, FleetSettings, VirtualFleet, replay_open
from laar_lab.suite.fleets import workers
from laar_lab.sweep import grid
from laar_lab.tally import Tally
from laar_lab.workloads.rag_fleet import DOC_TOKENS, prompt_of

AGENTS = 15
LOAD = "zipf 1.0"
BY_PLACE, BY_PREFIX = "round-robin", "laar"
_IN_FLIGHT = 4 * AGENTS
_SHOWN = {
    "hit_rate": "found cached",
    "questions_per_s": "questions/s",
    "busiest": "busiest/mean",
}


def run(scope: Scope) -> Report:
    """Run the same questions with round-robin and with routing by prefix."""
    questions = 60 if scope.quick else 200
    cases = {way: (way, questions) for way in (BY_PLACE, BY_PREFIX)}
    runs = grid(run_agents, cases, scope.seeds, label="context-agents")
    title = f"{AGENTS} documents of {DOC_TOKENS} tokens a question, {AGENTS} x {ENGINE}"
    return Report(
        tables=[means_table(title, "", runs, _SHOWN)],
        evidence={"throughput": {"": paired(runs[BY_PREFIX], runs[BY_PLACE], "questions_per_s")}},
    )


def run_agents(way: str, questions: int, seed: int) -> dict[str, float]:
    """Run a backlog of questions on fresh agents."""
    sites = workers(load_profile(ENGINE), AGENTS, "agent")
    fleet = VirtualFleet(sites, FleetSettings(policy=way), seed=seed)
    tally = Tally()

    def arrivals() -> Iterator[Arrival]:
        for number, docs in enumerate(LOADS[LOAD](seed, questions)):
            for place, doc in enumerate(docs[:AGENTS]):
                prompt = prompt_of([doc], number * AGENTS + place)
                yield Arrival(at_s=0.0, prompt=prompt)

    replay_open(fleet, arrivals(), tally.add, max_in_flight=_IN_FLIGHT)
    return {
        "hit_rate": tally.cached_tokens / tally.prompt_tokens,
        "questions_per_s": questions / (tally.last_s - tally.first_s),
        "busiest": AGENTS * max(tally.by_endpoint.values()) / (questions * AGENTS),
    }


EXPERIMENTS = declared(__name__, {"context-agents": run})
