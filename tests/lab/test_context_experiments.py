"""ContextPilot's experiments: their prompts, and results at a small size."""

from __future__ import annotations

import pytest

from laar_lab.experiments.context_prefill import HOOK, RECEIVED, run_load
from laar_lab.sim.engine import load_profile
from laar_lab.sim.fleet import BLOCK_TOKENS, FleetSettings, Site, VirtualFleet, replay_open
from laar_lab.workloads.rag_fleet import DOC_TOKENS, RagClient, prompt_of


def shared(a, b):
    """Return the number of leading blocks that two prompts have in common."""
    pairs = zip(a.blocks, b.blocks, strict=False)
    return next((i for i, (left, right) in enumerate(pairs) if left != right), len(a.blocks))


@pytest.mark.parametrize("common", [0, 1, 3, 5])
def test_prompts_share_whole_blocks_up_to_their_last_common_document(common):
    docs = [7, 3, 9, 1, 5]
    other = docs[:common] + [100 + doc for doc in docs[common:]]
    a, b = prompt_of(docs, 1), prompt_of(other, 2, note_tokens=50)
    assert shared(a, b) == (40 + common * DOC_TOKENS) // BLOCK_TOKENS
    assert b.prompt_tokens == a.prompt_tokens + 50
    assert len(a.blocks) == (a.prompt_tokens + a.output_tokens) // BLOCK_TOKENS


@pytest.mark.parametrize("hooked", [False, True])
def test_the_production_hook_orders_the_simulated_prompts(hooked):
    load = [[1, 2, 3, 4], [4, 3, 2, 1], [9, 1, 3, 2]]
    site = Site(name="one", model="model", engine=load_profile("qwen2.5-7b-a100"))
    fleet = VirtualFleet([site], FleetSettings(), seed=1)
    client = RagClient(load, hooked=hooked)
    sent = []

    def ended(arrival, exchange):
        client.ended(arrival, exchange)
        sent.append(arrival.prompt)

    replay_open(fleet, client.arrivals(fleet, (0.0, 10.0, 20.0)), ended)
    # The second prompt was made before the first was answered.
    assert shared(sent[0], sent[1]) == (40 + 4 * hooked * DOC_TOKENS) // BLOCK_TOKENS
    found = max(shared(sent[2], prompt) for prompt in sent[:2])
    documents = 3 if hooked else 0  # documents 1, 2, 3, as in the first prompt
    assert found == (40 + documents * DOC_TOKENS) // BLOCK_TOKENS
    assert (sent[2].prompt_tokens > sent[0].prompt_tokens) is hooked  # for the note about the order


def test_prefill_is_faster_if_documents_are_shared():
    received, hook = (run_load("same documents", way, 150, 1) for way in (RECEIVED, HOOK))
    assert hook["tokens_per_s"] > 1.05 * received["tokens_per_s"]
    assert hook["ttft_s"] < received["ttft_s"]
