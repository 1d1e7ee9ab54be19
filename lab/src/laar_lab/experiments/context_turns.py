"""ContextPilot over several turns, and with memories: TTFT as received and with the hook.

`context-turns`: conversations of five turns with eight documents of 1,024 tokens each, 40 % of them
seen in earlier turns, in LangChain's format. The paper reports half RadixCache's TTFT on MT-RAG
(table 3a). In the row "order" the hook does not de-duplicate; "order and notes" has the defaults,
which hold out two groups of conversations for comparison. All rows route by cached prefix,
including the one without the hook. Removing 40 % of the documents from four of five turns reduces
the prefill work to 0.68 at best, a speed-up of 1.47; any further gain comes from less queueing.

`context-memories`: questions with 20 or 100 memories of about 25 tokens (Mem0 on LoCoMo), in
`<memory>` tags of the system prompt. In the paper TTFT improves by factors of 1.23 and 1.83 (with
100 memories it falls from 0.101 to 0.055 s).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product

from laar.context.hook import ContextHook
from laar.context.settings import ContextSettings
from laar_lab.claims import Seen, paired
from laar_lab.declared import declared
from laar_lab.experiment import Scope
from laar_lab.report import Report
from laar_lab.sim.engine import load_profile
from laar_lab.sim.fleet import Arrival, Exchange, FleetSettings, VirtualFleet, replay_open
from laar_lab.suite.fleets import workers
from laar_lab.sweep import grid
from laar_lab.tally import Tally
from laar_lab.workloads.rag_turns import HookedBodies, Turn, conversations, document, memories

ENGINE = "qwen2.5-7b-a100"
WORKERS = 4
DOC_TOKENS = 1024
MEMORY_TOKENS = 25
MEMORIES = (20, 100)
RECEIVED, ORDER, NOTES = "as received", "order", "order and notes"
WAYS: dict[str, ContextSettings | None] = {
    RECEIVED: None,
    ORDER: ContextSettings(holdout_share=0.0, dedup="off"),
    NOTES: ContextSettings(),
}
_Messages = list[dict[str, str]]


def run_turns(scope: Scope) -> Report:
    """Run the same conversations in every way."""
    count = 30 if scope.quick else 120
    cases = {way: (way, count) for way in WAYS}
    runs = grid(run_conversations, cases, scope.seeds, label="context-turns")
    return Report(
        evidence={
            "ttft": {"": paired(runs[RECEIVED], runs[NOTES], "ttft_s")},
            "second-turns": {"": Seen([run["second_turns"] for run in runs[NOTES]])},
        },
    )


def run_memories(scope: Scope) -> Report:
    """Compare ordered memories with memories as received, for each number of memories."""
    questions = 15 if scope.quick else 40
    ways = (RECEIVED, ORDER)
    cases = {(k, way): (way, k, questions) for k, way in product(MEMORIES, ways)}
    found = grid(run_questions, cases, scope.seeds, label="context-memories")
    evidence = {}
    for k in MEMORIES:
        runs = {way: found[k, way] for way in ways}
        evidence[f"memories-{k}"] = {"": paired(runs[RECEIVED], runs[ORDER], "ttft_s")}
    return Report(evidence=evidence)


def run_conversations(way: str, count: int, seed: int) -> dict[str, float]:
    """Run conversations on fresh engines."""
    load = conversations(seed, count=count, turns=5, docs=8, repeats=0.4, every_s=3.0)
    return _replay(load, way, turn_messages(), seed)


def turn_messages() -> Callable[[Turn], _Messages]:
    """Return a function that returns a client's messages for a turn, including earlier turns."""
    history: dict[int, _Messages] = {}

    def messages(turn: Turn) -> _Messages:
        texts = (document(doc, DOC_TOKENS) for doc in turn.docs)
        listed = "\n".join(f"<document>{text}</document>" for text in texts)
        said = history.setdefault(
            turn.conversation, [{"role": "system", "content": "Answer from the documents."}]
        )
        if turn.number:
            said.append(
                {"role": "assistant", "content": f"Answer {turn.number}, {turn.conversation}"}
            )
        question = f"Question {turn.number} of {turn.conversation}?"
        said.append(
            {
                "role": "user",
                "content": "Use the following pieces of context to answer the question at the end."
                f"\n\n{listed}\n\nQuestion: {question}\nHelpful Answer:",
            }
        )
        return said

    return messages


def run_questions(way: str, k: int, questions: int, seed: int) -> dict[str, float]:
    """Run questions over memories on fresh engines."""
    load = memories(seed, users=12, questions=questions, k=k, pool=2 * k, every_s=k / 400)

    def messages(turn: Turn) -> _Messages:
        texts = (document(doc, MEMORY_TOKENS) for doc in turn.docs)
        listed = "\n".join(f"<memory>{text}</memory>" for text in texts)
        return [
            {
                "role": "system",
                "content": "You are a helpful AI. Answer the question based on query and memories."
                f"\nUser Memories:\n{listed}",
            },
            {"role": "user", "content": f"Question {turn.conversation}?"},
        ]

    return _replay(load, way, messages, seed)


def _replay(
    load: Sequence[Turn], way: str, messages: Callable[[Turn], _Messages], seed: int
) -> dict[str, float]:
    sites = workers(load_profile(ENGINE), WORKERS)
    fleet = VirtualFleet(sites, FleetSettings(), seed=seed)
    settings = WAYS[way]
    bodies = HookedBodies(ContextHook(settings) if settings else None, output_tokens=32)
    tally = Tally()
    noted: list[bool] = []

    def arrivals() -> Iterator[Arrival]:
        for number, turn in enumerate(load):
            prompt = bodies.prompt(str(number), messages(turn), fleet.clock.now)
            if turn.number == 1:
                noted.append(bodies.removed_bytes(str(number)) > 0)
            yield Arrival(at_s=turn.at_s, prompt=prompt, kind=str(number))

    def ended(arrival: Arrival, exchange: Exchange) -> None:
        if exchange.status == 200:
            bodies.accepted(arrival.kind, exchange.end_s)
        tally.add(arrival, exchange)

    replay_open(fleet, arrivals(), ended, max_in_flight=len(load))
    return {
        "ttft_s": tally.ttft.mean,
        "second_turns": sum(noted) / max(len(noted), 1),
    }


EXPERIMENTS = declared(__name__, {"context-turns": run_turns, "context-memories": run_memories})
