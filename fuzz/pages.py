"""Everything else that is read: answers, pages, events, files, headers, messages."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from tempfile import gettempdir

import msgspec
import numpy as np
import orjson
import yaml
from google.protobuf.message import DecodeError

from fuzz.choices import Choices, json_text
from laar.accuracy.artifact import parse_artifact
from laar.accuracy.capability import CapabilityModel
from laar.accuracy.features import Features
from laar.accuracy.online import OnlineOutcomes
from laar.accuracy.retry import parse_tried
from laar.datalayer.document import parse_yaml, read_document
from laar.datalayer.endpoints_file import EndpointsDocument, split_address
from laar.datalayer.kv_batches import Cleared, Groups, Removed, decode_batch
from laar.datalayer.metrics_page import ENGINES, read_page
from laar.errors import SettingError
from laar.prefix.tokens import Stored
from laar.protocol import headers as names
from laar.protocol.answers import AnswerReader, name_restorer
from laar.protocol.paths import DENIED_PATHS, DeniedPaths
from laar.protocol.sessions import SESSION
from laar.server.extproc.messages import event_of
from laar.settings import Settings
from laar.sharing.batches import SCHEMA, Unreadable, read_batch
from laar.wire import ext_proc_pb2 as pb

__all__ = [
    "answers",
    "artifact",
    "batches",
    "events",
    "files",
    "headers",
    "messages",
    "metrics",
    "state",
]

_SSE = (
    b"data: ",
    b"data:",
    b"\n",
    b"\n\n",
    b"\r\n",
    b'{"model":"served","usage":{"prompt_tokens":5,"completion_tokens":2}}',
    b'{"usage":{"prompt_tokens_details":{"cached_tokens":3}}}',
    b'"model": "served"',
    b'"model":"serv',
    b"ed",
    b'"',
    b"[DONE]",
    b'{"usage":null}',
    b'{"error":{"message":"x"}}',
    b"event: error",
)
_DENIED = DeniedPaths(DENIED_PATHS)


def answers(data: bytes) -> None:
    """An answer says the same however it is cut."""
    choices = Choices(data)
    events = bool(choices.number(2))
    cuts = [1 + choices.number(30) for _ in range(4)]
    text = b"".join(
        choices.one(_SSE) if choices.number(4) else choices.some(8)
        for _ in range(choices.number(40))
    )
    whole = AnswerReader(events=events)
    whole.feed(text)
    reader, restored = AnswerReader(events=events), name_restorer(served="served", asked="auto")
    at, turn = 0, 0
    while at < len(text):
        piece = text[at : at + cuts[turn % 4]]
        at, turn = at + len(piece), turn + 1
        reader.feed(piece)
    reader.end()
    whole.end()
    assert reader.usage == whole.usage
    made = restored(text)
    assert made.replace(b'"auto"', b'"served"') == text
    for line in made.split(b"\n"):
        with contextlib.suppress(ValueError):
            document = json.loads(line[line.find(b"{") :])
            assert not isinstance(document, dict) or document.get("model") != "served"


_METRICS = (
    b"vllm:num_requests_waiting",
    b"vllm:num_requests_running",
    b"vllm:kv_cache_usage_perc",
    b"vllm:prompt_tokens_total",
    b'vllm:cache_config_info{num_gpu_blocks="100",block_size="16"}',
    b"sglang:num_queue_reqs",
    b'sglang:token_usage{tp_rank="1"}',
    b"trtllm_kv_cache_max_blocks",
    b"# TYPE x gauge\n",
    b"{",
    b"}",
    b'model="a"',
    b",",
    b" ",
    b" 1\n",
    b" 0.5\n",
    b" NaN\n",
    b" +Inf\n",
    b" 1e308\n",
    b" -1\n",
    b"\n",
)


def metrics(data: bytes) -> None:
    """Any page gives numbers that make sense, or NaN."""
    choices = Choices(data)
    engine = sorted(ENGINES)[choices.number(len(ENGINES))]
    before = None
    for _ in range(2):
        page = b"".join(
            choices.one(_METRICS) if choices.number(4) else choices.some(10)
            for _ in range(choices.number(40))
        )
        reading, before = read_page(page, engine, before)
        for value in (reading.waiting, reading.running, reading.capacity_tokens):
            assert math.isnan(value) or 0.0 <= value < math.inf
        assert math.isnan(reading.kv_usage) or 0.0 <= reading.kv_usage <= 1.0


def events(data: bytes) -> None:
    """A batch of cache events is read, or is a ValueError."""
    choices = Choices(data)
    if choices.number(2):
        payload = choices.rest()
    else:
        try:
            payload = msgspec.msgpack.encode(json.loads(json_text(choices)))
        except (ValueError, OverflowError, RecursionError, UnicodeEncodeError):
            return
        payload = msgspec.msgpack.encode([1.0, [msgspec.msgpack.decode(payload)], None])
    try:
        found = decode_batch(payload, Groups())
    except ValueError:
        return
    for event in found:
        assert isinstance(event, Stored | Removed | Cleared)
        if not isinstance(event, Cleared):
            assert all(isinstance(one, int | bytes) for one in event.hashes)
        if isinstance(event, Stored):
            assert event.parent is None or isinstance(event.parent, int | bytes)


_YAML = (
    b"endpoints:",
    b"\n  - address: 10.0.0.1:8000",
    b"\n    model: m",
    b"\n    models: [a, b]",
    b"\n    labels: {a: b}",
    b"\n    max_model_len: ",
    b"\nlisten:",
    b"\n  admin: ",
    b"\nrouting:",
    b"\n  policy: laar",
    b"\nbodies: {max_held_bytes: ",
    b"&a ",
    b"*a",
    b"<<: *a",
    b"? ",
    b"- ",
    b"!!int ",
    b"!!float ",
    b"!!timestamp ",
    b"!!binary ",
    b"!!set ",
    b"!!omap ",
    b"!!pairs ",
    b"!!bool ",
    b"!!null ",
    b"!!str ",
    b"!!python/object:os.system ",
    b"0x",
    b"0b1",
    b"0o7",
    b"1:59:59",
    b"1_000",
    b".inf",
    b".nan",
    b"2026-01-01T00:00:00Z",
    b"2026-99-99",
    b"|\n",
    b">-\n",
    b"'",
    b'"',
    b"\\x",
    b"[",
    b"]",
    b"{",
    b"}",
    b",",
    b":",
    b": ",
    b"\n",
    b"\n  ",
    b"#",
    b"%YAML 1.1\n---\n",
    b"...",
    b"\t",
    b"9" * 50,
    b"\xef\xbb\xbf",
    b"\xff",
)


def files(data: bytes) -> None:
    """A YAML file is read, or its fault is named; nothing else."""
    choices = Choices(data)
    model = (Settings, EndpointsDocument)[choices.number(2)]
    text = b"".join(
        choices.one(_YAML) if choices.number(5) else choices.some(6)
        for _ in range(choices.number(30))
    )
    path = Path(gettempdir()) / f"laar-fuzz-{id(choices):x}.yaml"
    path.write_bytes(text)
    try:
        read_document(path, model)
    except SettingError:
        pass
    finally:
        path.unlink()
    with contextlib.suppress(yaml.YAMLError):
        parse_yaml(text.decode("utf-8", "replace"))
    with contextlib.suppress(ValueError):
        split_address(text.decode("utf-8", "replace"))


def artifact(data: bytes) -> None:
    """An artifact is read into probabilities, or its fault is named."""
    choices = Choices(data)
    text = choices.rest() if choices.number(3) == 2 else _mutated(choices, _sample_artifact())
    try:
        found = parse_artifact(text, source="fuzz")
    except SettingError:
        return
    model = CapabilityModel(found)
    features = Features("en", 8192, "code")
    known = (*model.models, "unknown")
    row = model.probabilities(known, features)
    assert np.all((row > 0.0) & (row < 1.0))
    row = model.given_failures(row, known, known[:3])
    assert np.all((row >= 0.0) & (row <= 1.0))
    assert np.all(model.seconds_per_token(known) > 0.0)


_sample: bytes | None = None


def _sample_artifact() -> bytes:
    """One as `laar fit` writes it."""
    global _sample
    if _sample is None:
        from laar.accuracy.artifact import (
            Capability,
            FittedCell,
            ModelCapability,
            RetryTerms,
            Speed,
        )

        _sample = Capability(
            created="2026-01-01",
            data_sha256="0" * 64,
            outcomes=100,
            models={
                "m": ModelCapability(
                    intercept=0.5,
                    terms={"language=en": 0.1},
                    mean=0.6,
                    regularisation=1.0,
                    cells=[
                        FittedCell(
                            language="en", bucket=4096, task="code", outcomes=100, correct=50
                        )
                    ],
                    speed=Speed(
                        seconds_per_token=1e-4, spread_s_per_token=0.0, fixed_s=0.0, samples=50
                    ),
                    chars_per_token={"en": 4.0},
                    held_out=None,
                )
            },
            retry=RetryTerms(difficulty=1.0),
        ).dump()
    return _sample


_ODD = (b"null", b"-1", b"1e308", b"0", b'""', b"[]", b"{}", b"true", b"1e-320", b"NaN", b"9" * 30)


def _mutated(choices: Choices, text: bytes) -> bytes:
    """With some bytes, or some values, replaced."""
    for _ in range(choices.number(5)):
        at = (choices.number(256) << 8 | choices.number(256)) % max(1, len(text))
        if choices.number(2):
            text = text[:at] + choices.some(4) + text[at + choices.number(6) :]
        else:
            colon = text.find(b":", at)
            ends = [text.find(sign, max(colon, 0)) for sign in (b",", b"}", b"]")]
            end = min((found for found in ends if found > 0), default=0)
            if 0 <= colon < end:
                text = text[: colon + 1] + choices.one(_ODD) + text[end:]
    return text


_STATE = orjson.dumps(
    {
        "schema": 1,
        "features_schema": 1,
        "cells": [["m", "en", 4096, "code", 3.0, 5.0, 1.0, 0.5]],
    }
)


def state(data: bytes) -> None:
    """A saved state is taken up as far as it makes sense, and can be saved again."""
    choices = Choices(data)
    text = _mutated(choices, _STATE)
    if choices.number(4) == 3:
        text = choices.rest()
    try:
        saved = orjson.loads(text)
    except orjson.JSONDecodeError:
        return
    online = OnlineOutcomes()
    online.restore(saved, 100.0, away_s=5.0)
    features = Features("en", 4096, "code")
    row, reported = online.posterior(np.array([0.5, 0.5]), ("m", "other"), features, 101.0)
    assert np.all((row > 0.0) & (row < 1.0) & (reported >= 0.0))
    again = orjson.loads(orjson.dumps(online.state(102.0)))
    assert OnlineOutcomes().restore(again, 103.0) <= len(online.cells)
    online.observe("m", features, True, 104.0)


_BATCH = orjson.dumps(
    {
        "schema": SCHEMA,
        "namespace": "laar",
        "origin": "p/1",
        "seq": 1,
        "key_id": "k",
        "sent_at_s": 1.0,
        "oldest_open": 0,
        "full": True,
        "loads": {"a:1": [1.0] * 9, "b:1": [2.0] * 9},
        "records": [
            ["p", 1, "a:1", 64, "AAAAAAAAAAA="],
            ["s", 1, True, None],
            ["c", "a:1"],
            ["a", "r", "a:1", "s"],
        ],
    }
)


def batches(data: bytes) -> None:
    """A batch of another picker is read as far as it is valid, or is Unreadable."""
    choices = Choices(data)
    text = choices.rest() if choices.number(4) == 3 else _mutated(choices, _BATCH)
    try:
        batch, bad = read_batch("laar", text)
    except Unreadable:
        return
    assert bad >= 0
    assert all(record.makes_sense() for record in batch.records)


_HEADERS = (
    names.TRIED,
    names.TASK,
    names.POLICY,
    SESSION,
    names.TTFT_OBJECTIVE,
    names.REQUEST_ID,
    names.SUBSET,
    names.REWRITE,
    names.FAIRNESS,
    ":path",
    ":method",
    "upgrade",
)


def headers(data: bytes) -> None:
    """Headers: malformed ones are absent, whatever is in them."""
    choices = Choices(data)
    given = {
        _HEADERS[choices.number(len(_HEADERS))]: choices.some(40).decode("utf-8", "replace")
        for _ in range(choices.number(8))
    }
    head = names.read_head(given)
    assert head.ttft_objective_s is None or 0.0 < head.ttft_objective_s <= 3600.0
    for name in (head.task, head.policy, head.named.session, head.tenant, head.rewrite):
        assert len(name) <= 256
        assert name.isprintable()
    _ = head.path in _DENIED
    names.read_subset(given.values())
    parse_tried(head.tried, ("a", "b"))


def messages(data: bytes) -> None:
    """A message of Envoy's is read, or is a DecodeError."""
    try:
        message = pb.ProcessingRequest.FromString(data)
    except DecodeError:
        return
    event_of(message)
