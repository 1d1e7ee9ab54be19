"""Race laar against other routers on real vLLM engines, on this machine's CPU, with real traffic.

Two vLLM engines serve one small model with random weights. Each has one thread and prefills some
3,500 tokens a second. The traffic is real (Mooncake's chats, sessions of coding agents), with
lengths divided so that prompts take about as long as on a GPU. The race itself is `laar race`,
which documents how it is kept fair. It needs `make test-vllm`'s environment, the programs `smg` and
`vllm-router` from PyPI, and the traffic, which is not part of the repository
(docs/performance.md names both sets).

    python -m bench vllm --data DIR --programs peers/bin
    python -m bench vllm --data DIR --programs peers/bin chats --repeat 1

For each race it writes NAME.jsonl.gz (each request as its client saw it), NAME.json and NAME.svg
into docs/race, whose README says what was declared before the stored run. ttft.svg shows all races.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from bench.options import name_of, parser_for
from laar_lab.live.processes import free_ports
from laar_lab.race.figure import draw_panels
from laar_lab.race.result import Turn
from laar_lab.race.words import text

ROOT = Path(__file__).parents[1]
VLLM = ROOT / ".venv-vllm/bin/python"
READY_S = 300.0
BLOCKS = 1900
"""Cached blocks of 16 tokens at each engine. Together they hold ten average agent contexts."""
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 16384,
    "torch_dtype": "bfloat16",
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
QUIET = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # so that `uni` below is accepted
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # for /reset_prefix_cache
}
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Load:
    """The traffic of one race, and laar's rivals.

    Args:
        about: title in a figure.
        file: name of the traffic file.
        divisor: divisor of its lengths, a power of two.
        options: other options of `laar race`.
        rivals: the other routers.
    """

    about: str
    file: str
    divisor: int
    options: Sequence[str]
    rivals: Sequence[str]


LOADS = {
    "chats": Load(
        "chats",
        "conversation-trace.jsonl.gz",
        8,
        ("--speed", "0.5"),
        ("vllm-router", "smg", "least-loaded"),
    ),
    "agents": Load(
        "agents that fit the caches",
        "agent-sessions.jsonl.gz",
        16,
        ("--speed", "3", "--sessions", "8"),
        ("vllm-router", "smg"),
    ),
    "agents-many": Load(
        "agents, 1.6 times the caches",
        "agent-sessions.jsonl.gz",
        16,
        ("--speed", "3", "--sessions", "16"),
        ("vllm-router", "smg"),
    ),
}


def main(arguments: Sequence[str]) -> int:
    """Run the named races, all by default, and return an exit status."""
    parser = parser_for("vllm", __doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", type=name_of(LOADS))
    parser.add_argument("--data", type=Path, required=True, help="directory with the traffic")
    parser.add_argument("--programs", type=Path, required=True, help="of smg and vllm-router")
    parser.add_argument("--vllm", type=Path, default=VLLM, help="python that has vLLM")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/race")
    parser.add_argument("--repeat", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=75.0)
    parser.add_argument("--seed", type=int, default=2000)
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="laar-vllm-") as directory:
        work = Path(directory)
        write_model(work)
        for name in given.names or LOADS:
            with engines(given.vllm, work, 2) as urls:
                _race(given, name, urls, work)
    draw_all(given.out)
    return 0


def draw_all(out: Path) -> None:
    """Write ttft.svg from the stored numbers: the mean TTFT of each router in each race."""
    panels = []
    for name, load in LOADS.items():
        if (stored := out / f"{name}.json").exists():
            turns = [Turn(**turn) for turn in orjson.loads(stored.read_bytes())["turns"]]
            panels.append((load.about, "ttft_mean_s", turns))
    draw_panels(panels, out / "ttft.svg", "Mean TTFT in s; points are repetitions")


def write_model(work: Path) -> None:
    """Write the model's configuration and tokenizer.

    Each token is a piece of ASCII text: vLLM sends no chunk for a token that completes no
    character, so with random weights the first chunk would come at a random time.
    """
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    ascii_letters = [chr(code) for code in range(33, 127)] + ["Ġ", "Ċ"]  # its space and newline
    trainer = trainers.BpeTrainer(
        special_tokens=["<unk>", "<s>", "</s>"],
        initial_alphabet=ascii_letters,
        show_progress=False,
    )
    tokenizer.train_from_iterator([text(0x9E3779B97F4A7C15 * n, 400) for n in range(64)], trainer)
    tokenizer.save(str(work / "tokenizer.json"))
    model = {**MODEL, "vocab_size": tokenizer.get_vocab_size()}
    (work / "config.json").write_text(json.dumps(model))
    names = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "chat_template": TEMPLATE,
    }
    (work / "tokenizer_config.json").write_text(json.dumps(names))


@contextlib.contextmanager
def engines(python: Path, work: Path, count: int) -> Iterator[list[str]]:
    """Start engines, yield their URLs when each has answered, and stop them."""
    urls = []
    with contextlib.ExitStack() as stack:
        for port in free_ports(count):
            command = [str(python), "-m", "vllm.entrypoints.openai.api_server"]
            command += [
                "--distributed-executor-backend",
                "uni",
            ]  # with two processes, waiting would use CPU
            command += ["--model", str(work), "--served-model-name", "small"]
            command += ["--load-format", "dummy", "--enforce-eager", "--max-model-len", "16384"]
            command += ["--max-num-batched-tokens", "2048", "--max-num-seqs", "32"]
            command += ["--enable-prompt-tokens-details", "--num-gpu-blocks-override", str(BLOCKS)]
            command += ["--host", "127.0.0.1", "--port", str(port)]
            log = stack.enter_context((work / f"{port}.log").open("wb"))
            process = subprocess.Popen(
                ["nice", "-n", "19", *command],
                env=os.environ | QUIET,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            stack.callback(_stop, process)
            _give_way(process.pid)
            urls.append(f"http://127.0.0.1:{port}")
        for url in urls:
            _wait(url)
        yield urls


def _give_way(pid: int) -> None:
    """Lower the engines' priority, as if routers and clients had separate cores.

    Linux divides CPU time between sessions, regardless of priorities within one.
    """
    with contextlib.suppress(OSError):  # a kernel without such groups
        Path(f"/proc/{pid}/autogroup").write_text("19")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()


def _wait(url: str) -> None:
    """Wait until an engine has answered long prompts, so that its code is warm."""
    ends_s = time.monotonic() + READY_S
    while True:
        try:
            for number in range(3):
                body = {"model": "small", "prompt": text(number, 20_000), "max_tokens": 20}
                headers = {"content-type": "application/json"}
                request = urllib.request.Request(
                    f"{url}/v1/completions", orjson.dumps(body), headers
                )
                with urllib.request.urlopen(request, timeout=120):
                    pass
            return
        except urllib.error.HTTPError:
            raise
        except OSError:
            if time.monotonic() > ends_s:
                raise
            time.sleep(0.5)


def _race(given: argparse.Namespace, name: str, urls: Sequence[str], work: Path) -> None:
    load = LOADS[name]
    traffic = work / load.file
    with gzip.open(given.data / load.file) as source, gzip.open(traffic, "wb") as out:
        for line in source:
            entry = orjson.loads(line)
            for length in ("input_length", "output_length"):
                entry[length] = max(1, entry[length] // load.divisor)
            out.write(orjson.dumps(entry, option=orjson.OPT_APPEND_NEWLINE))
    rows = work / f"{name}.jsonl"
    command = [sys.executable, "-m", "laar.cli", "race"]
    for url in urls:
        command += ["--engines", url]
    for router in load.rivals:
        command += ["--with", router]
    command += ["--traffic", str(traffic), "--block-tokens", str(512 // load.divisor)]
    command += ["--most-tokens", "12000", "--programs", str(given.programs), *load.options]
    command += ["--seconds", str(given.seconds), "--warm-up", "10", "--repeat", str(given.repeat)]
    command += ["--seed", str(given.seed), "--rows", str(rows)]
    command += ["--json", str(given.out / f"{name}.json"), "--plot", str(given.out / f"{name}.svg")]
    subprocess.run(command, check=True)
    (given.out / f"{name}.jsonl.gz").write_bytes(gzip.compress(rows.read_bytes(), mtime=0))
