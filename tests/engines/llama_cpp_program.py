"""Serve a tiny random model with llama.cpp's own server: PROGRAM DIRECTORY [--NAME VALUE ...].

It runs under another Python, with xllamacpp and gguf; each NAME is one of the server's parameters.
"""

import itertools
import sys
import time
from pathlib import Path

import numpy as np
import xllamacpp
from gguf import GGUFWriter, TokenType

LETTERS = "etaoinshrdlu"
WIDTH, LAYERS, HEADS = 64, 2, 4
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write_model(path: str) -> None:
    """Write a llama whose tokens are bytes, and runs of two or three common letters."""
    runs = ["".join(run) for n in (2, 3) for run in itertools.product(LETTERS, repeat=n)]
    pieces = [*map(chr, range(33, 127)), "\u2581", *runs]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    kinds = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[TokenType.BYTE] * 256]
    made = GGUFWriter(path, "llama")
    made.add_context_length(1 << 17)
    made.add_embedding_length(WIDTH)
    made.add_block_count(LAYERS)
    made.add_feed_forward_length(2 * WIDTH)
    made.add_head_count(HEADS)
    made.add_layer_norm_rms_eps(1e-5)
    made.add_rope_dimension_count(WIDTH // HEADS)
    made.add_tokenizer_model("llama")
    made.add_token_list(tokens)
    made.add_token_scores([float(len(token)) for token in tokens])
    made.add_token_types([*kinds, *[TokenType.NORMAL] * len(pieces)])
    made.add_chat_template(TEMPLATE)
    rng = np.random.default_rng(0)
    shapes = {"token_embd": (len(tokens), WIDTH), "output": (len(tokens), WIDTH)}
    for layer in range(LAYERS):
        square = ("attn_q", "attn_k", "attn_v", "attn_output")
        shapes |= {f"blk.{layer}.{name}": (WIDTH, WIDTH) for name in square}
        shapes |= {f"blk.{layer}.ffn_{name}": (2 * WIDTH, WIDTH) for name in ("gate", "up")}
        shapes[f"blk.{layer}.ffn_down"] = WIDTH, 2 * WIDTH
        for name in ("attn_norm", "ffn_norm"):
            made.add_tensor(f"blk.{layer}.{name}.weight", np.ones(WIDTH, np.float32))
    made.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    for name, shape in shapes.items():
        made.add_tensor(f"{name}.weight", rng.standard_normal(shape, np.float32) / 2)
    made.write_header_to_file()
    made.write_kv_data_to_file()
    made.write_tensors_to_file()
    made.close()


def main() -> None:
    """Serve until killed."""
    path = str(Path(sys.argv[1], "tiny.gguf"))
    if not Path(path).exists():
        write_model(path)
    asked = xllamacpp.CommonParams()
    asked.model.path, asked.model_alias = path, {"tiny"}
    asked.n_parallel, asked.n_ctx, asked.endpoint_metrics = 2, 1 << 15, True
    asked.cpuparams.n_threads = 1
    for name, value in zip(sys.argv[2::2], sys.argv[3::2], strict=True):
        if name == "--host":
            asked.hostnames = [value]
        else:
            setattr(asked, name.removeprefix("--"), int(value))
    _server = xllamacpp.Server(asked)  # stops when it is dropped
    while True:
        time.sleep(3600.0)


main()
