"""Run real engines on a CPU, which serve a tiny random model with a tokenizer over HTTP."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import random
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from vllm_driver import MODEL, QUIET

from support.waiting import free_ports

PYTHON = os.environ.get("LAAR_VLLM_PYTHON", sys.executable)
NEEDS_VLLM = [
    pytest.mark.vllm,
    pytest.mark.skipif(
        sys.executable == PYTHON and importlib.util.find_spec("vllm") is None,
        reason="NO vLLM HERE: install vllm 0.32 into this environment, or set LAAR_VLLM_PYTHON to "
        "the python of one that has it",
    ),
]
"""Marks of tests that start an engine."""

_TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>"
    "{% if m.content is string %}{{ m.content }}"
    "{% else %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_READY_S = 600.0
"""Startup takes minutes if other engines are busy; a dead process is noticed immediately."""

QUESTION = "Tell me in a sentence what a cache is for."
"""The first prompt of an engine. On some CPUs, vLLM crashes if it has only one token."""


@dataclass(frozen=True)
class Engine:
    """A running vLLM and the ports of its KV events."""

    kind: ClassVar = "vllm"

    port: int
    events: int
    replay: int

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    @property
    def labels(self) -> dict[str, str]:
        """Labels that tell where its events are."""
        return {
            "laar.dev/kv-events": str(self.events),
            "laar.dev/kv-events-replay": str(self.replay),
        }

    def publishes(self) -> str:
        """Return its option for events; with stars, as otherwise it would connect, not bind."""
        return json.dumps(
            {
                "enable_kv_cache_events": True,
                "publisher": "zmq",
                "endpoint": f"tcp://*:{self.events}",
                "replay_endpoint": f"tcp://*:{self.replay}",
            }
        )

    def command(self, model: Path) -> tuple[list[str], dict[str, str]]:
        """Return the command that starts it, and its environment's variables."""
        command = [PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
        command += ["--served-model-name", "tiny", "--load-format", "dummy", "--enforce-eager"]
        command += ["--max-model-len", "8192", "--max-num-batched-tokens", "2048"]
        command += ["--enable-prompt-tokens-details", "--prefix-caching-hash-algo", "sha256_cbor"]
        command += ["--kv-events-config", self.publishes()]
        return command, {
            **QUIET,
            "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
            "VLLM_ENABLE_RESPONSES_API_STORE": "1",
        }


def write_model(work: Path) -> None:
    """Write configuration, tokenizer and chat template; the weights are random."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    (work / "config.json").write_text(json.dumps(MODEL))
    rng = random.Random(3)
    letters = "etaoinshrdlu"
    words = ["".join(rng.choices(letters, k=rng.randint(2, 8))) for _ in range(400)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1000,
        special_tokens=["<unk>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([" ".join(rng.choices(words, k=200)) for _ in range(50)], trainer)
    tokenizer.save(str(work / "tokenizer.json"))
    told = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "chat_template": _TEMPLATE,
    }
    (work / "tokenizer_config.json").write_text(json.dumps(told))


@contextlib.contextmanager
def running(
    model: Path, logs: Path, count: int, *options: str, of: type[Engine] = Engine
) -> Iterator[Sequence[Engine]]:
    """Start `count` engines of one model; all are stopped at the end."""
    ports = iter(free_ports(3 * count))
    engines = [of(next(ports), next(ports), next(ports)) for _ in range(count)]
    with started(engines, model, logs, *options):
        yield engines


@contextlib.contextmanager
def started(engines: Sequence[Engine], model: Path, logs: Path, *options: str) -> Iterator[None]:
    """Start engines on given ports, so that some can be restarted."""
    processes: list[subprocess.Popen[bytes]] = []
    with contextlib.ExitStack() as stack:
        for engine in engines:
            log = logs / f"{engine.port}.log"
            processes.append(stack.enter_context(_process(engine, model, log, options)))
        for engine, process in zip(engines, processes, strict=True):
            _wait(engine, process, logs / f"{engine.port}.log")
        yield


@contextlib.contextmanager
def _process(
    engine: Engine, model: Path, log: Path, options: Sequence[str]
) -> Iterator[subprocess.Popen[bytes]]:
    command, environment = engine.command(model)
    command += [*options, "--host", "127.0.0.1", "--port", str(engine.port)]
    with log.open("wb") as said:
        process = subprocess.Popen(
            command, env=os.environ | environment, stdout=said, stderr=said, cwd=log.parent
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def _wait(engine: Engine, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until an engine answers; show its log if it does not start, or fails."""
    asked = json.dumps({"model": "tiny", "prompt": QUESTION, "max_tokens": 2}).encode()
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{engine.url}/v1/completions", asked, headers)
    deadline = time.monotonic() + _READY_S
    fault: object = "it did not start"
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(request, timeout=120):
                return
        except urllib.error.HTTPError as error:
            if error.code != 500:  # it answers, but does not support this request
                return
            fault = error
            break
        except OSError:
            pass  # not listening yet
        time.sleep(0.5)
    raise AssertionError(f"{engine.kind}: {fault}:\n{log.read_text(errors='replace')[-3000:]}")
