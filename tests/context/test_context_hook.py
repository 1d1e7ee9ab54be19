"""The hook as the server calls it: its changes, bodies that it must not change, its memory."""

from __future__ import annotations

import json
import random
from functools import partial

import orjson
import pytest

from laar.context.aligner import OrderIndex
from laar.context.hook import MAX_BODY_BYTES, ContextHook
from laar.context.notes import order_note
from laar.context.settings import ContextSettings, Reason
from support.speed import times_as_long


def doc_text(i):
    return f"Document number {i}. " + " ".join(f"w{(i * 7919 + k) % 1000}" for k in range(60))


def block(ids, wrap="documents"):
    items = "\n".join(f'<document id="d{i}">\n{doc_text(i)}\n</document>' for i in ids)
    return f"<{wrap}>\n{items}\n</{wrap}>" if wrap else items


def user(ids, question="What is it?"):
    return {"role": "user", "content": f"{block(ids)}\n\n{question}"}


def within(delimiter):
    """Return documents, one of which contains a delimiter."""
    return block([4, 1, 2]).replace("</document>", f"{delimiter} text</document>", 1)


def chat(*messages, **more):
    return json.dumps({"model": "m", "messages": messages, **more}).encode()


def hook(**changes):
    return ContextHook(ContextSettings(**{"holdout_share": 0.0} | changes))


def apply(hook_, body, **changes):
    call = {"api": "chat", "tenant": "t", "now": 0.0, "mode": "on"} | changes
    return hook_.apply(body, **call)


def send(hook_, body, **changes):
    """Apply the hook, and commit the result as if the request was accepted."""
    result = apply(hook_, body, **changes)
    hook_.commit(result, changes.get("now", 0.0))
    return result


def messages(body):
    return orjson.loads(body)["messages"]


def ids_in(text):
    return [int(part.split('"')[0]) for part in text.split('<document id="d')[1:]]


def same(result, body, reason):
    assert result.body is body
    assert result.reason is reason


def test_a_body_parsed_by_the_caller_is_changed_in_the_same_way():
    reading, given = hook(), hook()
    for ids in ([2, 1, 4], [1, 9, 4, 2], [9, 4, 7]):
        body = chat(user(ids))
        alone, shared = send(reading, body), send(given, body, document=orjson.loads(body))
        assert shared == alone
        assert (shared.body is body) == (alone.body is body)
    assert given.stats() == reading.stats()


class TestOrder:
    def test_a_second_request_follows_the_order_of_the_first_with_a_note(self):
        h = hook()
        first = chat({"role": "system", "content": "Be brief."}, user([2, 1, 4]))
        same(send(h, first), first, Reason.UNCHANGED)
        second = chat({"role": "system", "content": "Be brief."}, user([1, 9, 4, 2], "And?"))
        result = send(h, second)
        assert result.reason is Reason.REORDERED
        assert result.documents == 4
        assert result.predicted_bytes > result.baseline_bytes == 0
        text = messages(result.body)[1]["content"]
        assert ids_in(text) == [2, 1, 4, 9]
        assert text.startswith(block([2, 1, 4, 9]) + "\n(")
        assert "[d1] > [d9] > [d4] > [d2]" in text
        assert text.endswith("\n\nAnd?")

    @pytest.mark.parametrize(
        ("api", "make"),
        [
            ("completions", lambda text: {"prompt": text}),
            ("responses", lambda text: {"input": text}),
            ("responses", lambda text: {"instructions": text, "input": "Q?"}),
            ("responses", lambda text: {"input": [{"role": "user", "content": text}]}),
            (
                "responses",
                lambda text: {
                    "input": [{"role": "user", "content": [{"type": "input_text", "text": text}]}]
                },
            ),
            (
                "responses",
                lambda text: {
                    "input": [
                        {"role": "user", "content": "Q?"},
                        {"type": "function_call", "call_id": "1", "arguments": "{}"},
                        {"type": "function_call_output", "call_id": "1", "output": text},
                    ]
                },
            ),
            ("chat", lambda text: {"messages": [{"role": "system", "content": text}]}),
            ("chat", lambda text: {"messages": [{"role": "developer", "content": text}]}),
            (
                "chat",
                lambda text: {
                    "messages": [
                        {
                            "role": "user",
                            "content": [
                                {"type": "image_url", "image_url": {"url": "data:x"}},
                                {"type": "text", "text": text},
                            ],
                        }
                    ]
                },
            ),
            (
                "chat",
                lambda text: {
                    "messages": [
                        {"role": "user", "content": "Q?"},
                        {"role": "assistant", "tool_calls": [{"id": "1"}], "content": None},
                        {"role": "tool", "tool_call_id": "1", "content": text},
                    ]
                },
            ),
        ],
    )
    def test_documents_are_found_everywhere_in_a_prompt(self, api, make):
        h = hook()
        send(h, json.dumps(make(block([2, 1, 4]))).encode(), api=api)
        body = json.dumps(make(block([4, 1, 2]))).encode()
        result = send(h, body, api=api)
        assert result.reason is Reason.REORDERED
        assert ids_in(result.body.decode().replace('\\"', '"')) == [2, 1, 4]

    def test_a_prompt_that_differs_before_the_documents_keeps_its_order(self):
        h = hook()
        send(h, chat({"role": "system", "content": "It is Monday."}, user([2, 1, 4])))
        body = chat({"role": "system", "content": "It is Tuesday."}, user([4, 1, 2]))
        same(send(h, body), body, Reason.UNCHANGED)


class TestSameBytes:
    @pytest.mark.parametrize(
        ("body", "reason"),
        [
            (b"", Reason.INVALID_JSON),
            (chat({"role": "user", "content": "Hello"}), Reason.NO_DOCUMENTS),
            (b'{"messages": "<document>"', Reason.INVALID_JSON),
            (b'{"messages": [{"role": "user", "content": "<document>\xff"}]}', Reason.INVALID_JSON),
            (b'["<document>"]', Reason.NO_DOCUMENTS),
            (b'{"messages": {"<document>": 1}}', Reason.NO_DOCUMENTS),
            (b'{"messages": ["<document>", 3, null, []]}', Reason.NO_DOCUMENTS),
            (chat(user([1])), Reason.NO_DOCUMENTS),
            (chat(user([1, 2])), Reason.NO_DOCUMENTS),
            (chat({"role": "user", "content": "<doc>x</doc>" * 10_000}), Reason.TOO_MANY),
            (chat(user([1, 1, 1])), Reason.REPEATED),
            (chat(user([1, 2, 1])), Reason.REPEATED),
            (chat(user([3, 5, 6]), {"role": "user", "content": "<doc>"}), Reason.UNCHANGED),
            (chat({"role": "user", "content": "<document> is a tag"}), Reason.UNBALANCED),
            (chat({"role": "user", "content": within("<document>")}), Reason.NESTED),
            (chat({"role": "user", "content": within("</document>")}), Reason.UNBALANCED),
            (chat({"role": "user", "content": "<doc>a</doc>" * 3}), Reason.TOO_SMALL),
            (chat({"role": "assistant", "content": block([4, 1, 2])}), Reason.NO_DOCUMENTS),
            (chat(user([4, 1, 2]) | {"cache_control": {}}), Reason.NO_DOCUMENTS),
            (
                chat(
                    {
                        "role": "user",
                        "content": [
                            {"type": "text", "text": block([4, 1, 2]), "cache_control": {}}
                        ],
                    }
                ),
                Reason.NO_DOCUMENTS,
            ),
            (
                chat({"role": "user", "content": "x[0] = y[1] + 2 <document"}),
                Reason.NO_DOCUMENTS,
            ),
        ],
    )
    def test_an_unchanged_body_has_a_reason(self, body, reason):
        h = hook(dedup="off")
        send(h, chat(user([2, 1, 4])))
        same(send(h, body), body, reason)

    def test_a_body_of_an_unknown_api_is_unchanged(self):
        body = chat(user([4, 1, 2]))
        same(apply(hook(), body, api="embeddings"), body, Reason.UNSUPPORTED_API)

    def test_a_body_above_the_size_limit_is_unchanged(self):
        body = chat({"role": "user", "content": "x" * MAX_BODY_BYTES})
        same(apply(hook(), body), body, Reason.TOO_LARGE)

    def test_a_body_with_a_duplicate_key_is_unchanged(self):
        h = hook()
        send(h, chat(user([2, 1, 4])))
        body = chat(user([4, 1, 2])).replace(b'{"model"', b'{"messages": [], "model"', 1)
        same(send(h, body), body, Reason.DUPLICATE_KEYS)

    def test_an_assistant_prefill_does_not_hide_the_last_turn(self):
        h = hook()
        prefill = {"role": "assistant", "content": "The answer"}
        send(h, chat(user([2, 1, 4]), prefill))
        assert send(h, chat(user([4, 1, 2]), prefill)).reason is Reason.REORDERED

    def test_a_body_is_forwarded_unchanged_when_time_is_up(self):
        ticks = iter(8 * x / 1e3 for x in range(100))
        h = ContextHook(ContextSettings(holdout_share=0.0), clock=lambda: next(ticks))
        body = chat(user([4, 1, 2]))
        same(apply(h, body), body, Reason.OVER_BUDGET)

    def test_the_time_is_checked_for_each_list(self):
        lists = "\n".join(block([n, n + 9, n + 18]) for n in range(8))
        body = chat({"role": "user", "content": lists})
        for ms, reason in ((0.1, Reason.UNCHANGED), (1.0, Reason.OVER_BUDGET)):
            ticks = iter([ms * x / 1e3 for x in range(100)])
            h = ContextHook(ContextSettings(holdout_share=0.0), clock=ticks.__next__)
            same(apply(h, body), body, reason)

    def test_a_body_is_forwarded_unchanged_after_an_internal_error(self):
        def broken():
            raise RuntimeError

        h = ContextHook(ContextSettings(), clock=broken)
        body = chat(user([4, 1, 2]))
        same(apply(h, body), body, Reason.ERROR)


class TestSplice:
    """All bytes outside the changed strings are the client's."""

    def test_no_sampling_parameter_is_added(self):
        h = hook()
        send(h, chat(user([2, 1, 4])))
        assert set(orjson.loads(send(h, chat(user([4, 1, 2]))).body)) == {"model", "messages"}


class TestCommit:
    def test_a_request_that_was_not_accepted_is_not_learned(self):
        h = hook()
        before = h.stats()
        apply(h, chat(user([2, 1, 4])))
        assert h.stats()["index_documents"] == before["index_documents"] == 0
        body = chat(user([4, 1, 2]))
        same(send(h, body), body, Reason.UNCHANGED)

    def test_observe_mode_predicts_the_gain_and_changes_nothing(self):
        h = hook()
        for ids in ([2, 1, 4], [4, 1, 2]):
            body = chat(user(ids))
            result = send(h, body, mode="observe")
            assert result.body is body
        assert result.reason is Reason.OBSERVED
        assert result.predicted_bytes > 0
        # An order was only observed, not sent, so it is not followed.
        same(send(h, body), body, Reason.UNCHANGED)

    @pytest.mark.parametrize(
        "other", [{"tenant": "u"}, {"model": "n"}, {"cache_salt": "x"}, {"tools": [1]}]
    )
    def test_tenants_models_salts_and_tools_share_no_orders(self, other):
        h = hook()
        send(h, chat(user([2, 1, 4])))
        in_body = {key: other[key] for key in other if key != "tenant"}
        call = {key: other[key] for key in other if key == "tenant"}
        body = orjson.dumps(orjson.loads(chat(user([4, 1, 2]))) | in_body)
        same(send(h, body, **call), body, Reason.UNCHANGED)

    def test_an_order_is_not_followed_after_its_engine_lost_its_cache(self):
        h = hook()
        first = apply(h, chat(user([2, 1, 4])))
        h.commit(first, 0.0, endpoint="a")
        h.forget("b")
        assert send(h, chat(user([4, 1, 2]))).reason is Reason.REORDERED
        h.commit(first, 0.0, endpoint="a")
        h.forget("a")
        body = chat(user([1, 4, 2]))
        same(send(h, body), body, Reason.UNCHANGED)

    def test_the_received_order_is_also_forgotten_with_a_cache(self):
        h = hook()
        first = apply(h, chat(user([2, 1, 4])))
        h.commit(first, 0.0, endpoint="a")
        again = apply(h, chat(user([2, 1, 4], "And?")))
        assert again.baseline_bytes == again.predicted_bytes > 0
        h.forget("a")
        again = apply(h, chat(user([2, 1, 4], "And?")))
        assert again.baseline_bytes == again.predicted_bytes == 0

    def test_long_lists_take_the_room_of_several_messages(self, monkeypatch):
        monkeypatch.setattr("laar.context.memo.MAX_MOVED", 200)
        h, rng = hook(), random.Random(3)
        for i in range(30):
            send(h, chat(user(rng.sample(range(40), 40), f"Question {i}?")))
        assert h.stats()["memo_entries"] <= 7

    def test_memory_is_bounded(self, monkeypatch):
        monkeypatch.setattr("laar.context.memo.MAX_ENTRIES", 10)
        monkeypatch.setattr("laar.context.hook.OrderIndex", partial(OrderIndex, capacity_docs=50))
        h = hook()
        rng = random.Random(3)
        for i in range(200):
            send(h, chat(user(rng.sample(range(30), 5))), tenant=f"t{i % 40}", now=float(i))
        stats = h.stats()
        assert stats["index_documents"] <= 50
        assert stats["memo_entries"] <= 10
        assert stats["index_scopes"] <= 32


def test_the_order_of_a_request_in_flight_is_followed_until_it_is_refused():
    hook_ = hook()
    first = apply(hook_, chat(user([4, 1, 2])))
    hook_.note(first, 0.0)
    burst = chat(user([1, 2, 4]))
    assert apply(hook_, burst).reason is Reason.REORDERED
    hook_.retract(first)
    assert apply(hook_, burst).body is burst


def test_the_orders_of_all_lists_in_a_refused_request_are_retracted():
    hook_ = hook()
    plan = apply(hook_, chat(user([4, 1, 2]), user([7, 5, 6])))
    hook_.note(plan, 0.0)
    assert hook_.stats()["index_orders"] == 2
    hook_.retract(plan)
    assert hook_.stats()["index_orders"] == 0


@pytest.mark.parametrize("notes_first", [False, True])
def test_an_order_that_another_request_also_sent_is_not_retracted(notes_first):
    hook_ = hook()
    first, second = (apply(hook_, chat(user([4, 1, 2]))) for _ in range(2))
    for result in (first, second) if notes_first else ():
        hook_.note(result, 0.0)
    hook_.commit(second, 0.0, endpoint="e")
    hook_.note(first, 1.0)
    hook_.retract(first)
    assert apply(hook_, chat(user([1, 2, 4]))).reason is Reason.REORDERED


def conversation(turns, seed, *, share=0.4):
    """Return turns of (documents, question, answer); `share` of the documents are repeated."""
    rng = random.Random(seed)
    said: list[int] = []
    for turn in range(turns):
        old = rng.sample(said, min(len(said), round(5 * share)))
        new = rng.sample([i for i in range(60) if i not in said], 5 - len(old))
        said += new
        ids = old + new
        rng.shuffle(ids)
        yield user(ids, f"Question {turn}?"), {"role": "assistant", "content": f"Answer {turn}."}


class TestConversation:
    """Case A4: the client resends the original history, which the hook must send as before."""

    @pytest.mark.parametrize("dedup", ["off", "exact"])
    def test_turns_extend_each_other_and_no_note_refers_to_missing_text(self, dedup):
        h = hook(dedup=dedup)
        rng = random.Random(9)
        for _ in range(40):  # other users' prompts, whose orders can be followed
            send(h, chat(user(rng.sample(range(60), 40), "Question 0?")))
        history, before, moved, removed = [], [], 0, 0
        for question, answer in conversation(10, seed=4):
            history.append(question)
            result = send(h, chat(*history))
            out = messages(result.body)
            assert out[: len(before)] == before
            moved += result.reason is Reason.REORDERED
            removed += result.removed_bytes
            for i, message in enumerate(out):
                check_notes(message["content"], [m["content"] for m in out[:i]])
            for i in ids_in("".join(m["content"] for m in history if m["role"] == "user")):
                assert doc_text(i) in "".join(m["content"] for m in out)
            history.append(answer)
            before = [*out, answer]
        assert removed > 0 if dedup == "exact" else moved > 0

    @pytest.mark.parametrize("sign", ["\x1b", "\0", "\x7f", "\x85", "\u2028", '"', "\\"])
    def test_a_body_stays_json_if_a_repeated_document_begins_with(self, sign):
        """A colored log of a build begins with an escape."""

        def blocks(ids):
            texts = [f"{sign}[31m{doc_text(i)}" for i in ids]
            sources = [{"type": "text", "media_type": "text/plain", "data": own} for own in texts]
            return [{"type": "document", "source": source} for source in sources]

        turns = ({"role": "user", "content": blocks(ids)} for ids in ([1, 2, 3], [4, 1, 5, 6]))
        body = chat(next(turns), {"role": "assistant", "content": "A"}, next(turns))
        result = send(hook(dedup="exact"), body, api="messages")
        assert result.reason is Reason.DEDUPLICATED
        noted = messages(result.body)[2]["content"][1]["source"]["data"]
        assert noted.startswith("(Please refer to the earlier document that begins: ")
        assert "31mDocument number 1. w919" in noted

    def test_an_identical_retry_is_sent_identically_with_every_document(self):
        # Case B1: if the memory were keyed by the texts sent, a retry would omit its own documents.
        h = hook(dedup="exact")
        send(h, chat(user([3, 1, 9])))
        body = chat(
            {"role": "user", "content": "Q?"},
            {"role": "assistant", "tool_calls": [{"id": "1"}]},
            {"role": "tool", "content": block([9, 3, 1])},
        )
        first = send(h, body)
        assert send(h, body).body == first.body
        assert all(doc_text(i) in messages(first.body)[2]["content"] for i in (9, 3, 1))

    def test_users_with_equal_first_messages_lose_no_documents(self):
        # Case B2: if the first message were the key of a session, users would be mixed up.
        h = hook(dedup="exact")
        for tenant in ("x", "y", "x"):
            body = chat({"role": "user", "content": "Hi"}, user([3, 1, 9]))
            out = send(h, body, tenant=tenant)
            assert "Same text" not in out.body.decode()
            assert all(doc_text(i) in out.body.decode() for i in (3, 1, 9))

    def test_unseen_history_stays_as_received(self):
        h = hook()
        send(h, chat(user([2, 1, 4])))
        body = chat(user([4, 1, 2]), {"role": "assistant", "content": "A"}, user([8, 7, 6]))
        same(send(h, body), body, Reason.UNCHANGED)

    def test_a_forgotten_conversation_stays_as_received(self, monkeypatch):
        monkeypatch.setattr("laar.context.memo.MAX_ENTRIES", 4)
        h = hook()
        send(h, chat(user([2, 1, 4])))
        first = send(h, chat(user([4, 1, 2])))
        assert first.reason is Reason.REORDERED
        rest = ({"role": "assistant", "content": "A"}, {"role": "user", "content": "More."})
        body = chat(user([4, 1, 2]), *rest)
        for n in range(5):  # a conversation that goes on outlasts others
            send(h, chat(user([7, 6, 8], f"Why {n}?")))
            assert send(h, body).reason is Reason.REORDERED
        for n in range(5):
            send(h, chat(user([7, 6, 8], f"How {n}?")))
        same(send(h, body), body, Reason.NO_DOCUMENTS)

    @pytest.mark.parametrize("dedup", ["off", "exact"])
    def test_documents_of_later_turns_leave_earlier_turns_as_sent(self, dedup):
        h, rng = hook(dedup=dedup), random.Random(3)
        said, before, changed = [], [], 0
        for turn in range(6):
            ids = rng.sample(range(9), 4)
            docs = "".join(f"<doc>Fact {doc_text(i)}</doc>\n" for i in ids)
            text = f"Use the following documents.\n\n{docs}\nQuestion: What is it?"
            said.append({"role": "user", "content": text})
            result = send(h, chat(*said), now=float(turn))
            changed += result.reason in {Reason.REORDERED, Reason.DEDUPLICATED}
            sent = messages(result.body)
            assert sent[: len(before)] == before
            said.append({"role": "assistant", "content": f"Answer {turn}."})
            before = [*sent, said[-1]]
        assert changed > 1 or dedup == "off"


def check_notes(text, earlier):
    """Assert that each note's document occurs in an earlier message, or earlier in this one."""
    for at in range(len(text)):
        if text.startswith("(Please refer to the earlier document that begins: ", at):
            head = text[at:].split("begins: ", 1)[1].split(")", 1)[0]
            start = head.split(" w")[0]
            assert any(start in said for said in [*earlier, text[:at]])


class TestDedup:
    def test_a_note_names_the_omitted_documents_of_a_partly_repeated_block(self):
        h = hook(dedup="exact")
        tool = {"role": "tool", "content": block([1, 5, 2])}
        calls = {"role": "assistant", "tool_calls": [{"id": "1"}]}
        body = chat(user([1, 2, 4]), calls, tool)
        result = send(h, body)
        assert result.reason is Reason.DEDUPLICATED
        text = messages(result.body)[2]["content"]
        assert ids_in(text) == [1, 5, 2]  # vector P9: notes stay in place
        assert doc_text(5) in text
        assert doc_text(1) not in text
        assert text.count("(Please refer to the earlier document that begins: Document number") == 2
        assert result.removed_bytes == len(tool["content"]) - len(text)

    def test_documents_repeated_in_one_block_are_sent_once(self):
        h = hook(dedup="exact")
        text = messages(send(h, chat(user([1, 2, 1]))).body)[0]["content"]
        assert text.count(doc_text(1)) == 1
        assert ids_in(text) == [1, 2, 1]

    def test_prompts_of_a_batch_lose_no_documents(self):
        h = hook(dedup="exact")
        body = json.dumps({"model": "m", "prompt": [block([1, 2, 3]), block([2, 3, 4, 4])]})
        prompts = orjson.loads(send(h, body.encode(), api="completions").body)["prompt"]
        assert "Same text" not in prompts[0]
        assert all(prompts[1].count(doc_text(i)) == 1 for i in (2, 3, 4))
        assert prompts[1].count("(Please refer") == 1  # within one prompt, repeats are replaced

    def test_a_repeated_document_returns_if_the_earlier_copy_is_cut_off(self):
        h = hook(dedup="exact")
        answer = {"role": "assistant", "content": "A"}
        send(h, chat(user([1, 2, 4]), answer, user([1, 5, 2])))
        text = messages(send(h, chat(user([1, 5, 2]), answer, user([7, 8, 9]))).body)[0]["content"]
        assert all(doc_text(i) in text for i in (1, 5, 2))

    def test_json_results_keep_their_other_fields(self):
        h = hook(dedup="exact")
        results = [{"url": f"u{i}", "content": doc_text(i) + '\n"q"'} for i in (1, 2, 3)]
        tool = {"role": "tool", "content": json.dumps({"results": results})}
        text = messages(send(h, chat(user([7, 8, 9]), tool, tool)).body)[2]["content"]
        value = orjson.loads(text)
        assert [result["url"] for result in value["results"]] == ["u1", "u2", "u3"]
        assert all(result["content"].startswith("(Please refer") for result in value["results"])

    def test_repeated_documents_of_a_long_prompt_are_looked_for_in_bounded_time(self):
        """Each would be searched for in megabytes in which it nearly occurs everywhere."""
        docs = "".join(f"<doc>{'a' * 200}{i:04}{'a' * 100}</doc>\n" for i in range(250))

        def long(letter):
            texts = (letter * 1_700_000 + docs, docs)
            return chat(*({"role": "user", "content": text} for text in texts))

        nearly, nowhere = long("a"), long("b")
        same(apply(hook(dedup="exact"), nearly), nearly, Reason.CHECK_FAILED)
        ratio = times_as_long(
            lambda: apply(hook(dedup="exact"), nearly),
            lambda: apply(hook(dedup="exact"), nowhere),
            tries=2,
        )
        assert ratio < 50

    def test_user_prose_is_never_shortened(self):
        text = "".join(f"{i}: repeated on purpose, with some words\n" for i in range(80))
        body = chat({"role": "user", "content": text}, {"role": "user", "content": text})
        assert send(hook(dedup="exact"), body).body is body


class TestGuard:
    @pytest.fixture(autouse=True)
    def judges_soon(self, monkeypatch):
        monkeypatch.setattr("laar.context.guard.MIN_REQUESTS", 30)

    def run(self, found):
        h = hook(holdout_share=0.3)
        rng = random.Random(2)
        for i in range(400):
            result = send(h, chat(user(rng.sample(range(9), 5))), now=float(i))
            cached = rng.uniform(0.0, 0.1) + found * result.predicted_bytes / len(result.body)
            h.record_usage(result, prompt_tokens=1000, cached_tokens=int(1000 * cached))
        return h, result

    def test_reordering_stays_on_if_engines_find_the_expected_hits(self):
        h, _ = self.run(found=0.5)
        gain, error = h.guard.gain()
        assert not h.guard.off
        assert gain > 4 * error > 0

    def test_reordering_without_the_expected_hits_is_switched_off(self):
        h, last = self.run(found=0.0)
        assert last.reason is Reason.AUTO_OFF
        assert h.guard.off


def test_documents_without_labels_are_numbered_by_position_in_a_note() -> None:
    assert ": 2 > 1 > 3" in order_note([None, "b", "c"], [1, 0, 2])
