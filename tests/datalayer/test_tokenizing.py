"""Token ids made in the process, by a tokenizer trained here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

pytest.importorskip("tokenizers")

from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

from laar.core.membership import EndpointSpec
from laar.core.request import Api
from laar.datalayer.tokenizing import LocalTokenizer, ask_engine
from laar.errors import SettingError

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content }}{% if message.tool_calls %}"
    "{{ message.tool_calls[0].function.arguments.city }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PROSE = "The quick brown fox jumps over the lazy dog, 12345 times; déjà vu. 日本語の文章です。 "


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<s>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([PROSE * 3], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"chat_template": TEMPLATE, "bos_token": {"content": "<s>"}}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


def ids(of: LocalTokenizer, text: str, **more: Any) -> list[int]:
    found = of.ids(Api.COMPLETIONS, {"prompt": text, **more})
    assert found is not None
    return list(found.tolist())


def test_a_prompt_gets_the_ids_that_the_library_gives_it(model: Path) -> None:
    tokenizer = LocalTokenizer(model)
    plain = Tokenizer.from_file(str(model / "tokenizer.json"))
    assert ids(tokenizer, PROSE) == plain.encode(PROSE).ids
    without = ids(tokenizer, PROSE, add_special_tokens=False)
    assert without == plain.encode(PROSE, add_special_tokens=False).ids


def test_a_chat_is_filled_in_as_its_template_says(model: Path) -> None:
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "f", "arguments": '{"city": "Rome"}'}}],
        },
    ]
    text = (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>assistant\nRome<|im_end|>\n"
        '[{"type": "function"}]<|im_start|>assistant\n'
    )
    plain = Tokenizer.from_file(str(model / "tokenizer.json"))
    document = {"messages": messages, "tools": [{"type": "function"}]}
    found = LocalTokenizer(model).ids(Api.CHAT, document)
    assert found is not None
    assert found.tolist() == plain.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"messages": "no list"},
        {"messages": ["no message"]},
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        {"messages": [{"role": "user", "content": 7}]},
        {"messages": [{"role": "user", "content": "x"}], "chat_template": "{{ 1 }}"},
        {"messages": [{"content": "x"}], "chat_template_kwargs": {"tools": [1]}, "tools": 5},
    ],
)
def test_what_is_no_plain_chat_is_none_or_some_ids_but_never_an_error(
    model: Path, document: dict[str, Any]
) -> None:
    found = LocalTokenizer(model).ids(Api.CHAT, document)
    assert found is None or len(found)
    assert LocalTokenizer(model).ids(Api.COMPLETIONS, {"prompt": [1, 2]}) is None


def test_files_that_are_no_tokenizer_are_said_with_their_name(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"tokenizer\.json can't be used"):
        LocalTokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(SettingError, match=r"tokenizer\.json can't be used"):
        LocalTokenizer(tmp_path)


async def test_an_engine_is_asked_for_its_own_ids(serve: Any) -> None:
    asked = []

    async def answer(request: web.Request) -> web.Response:
        asked.append((request.path, await request.json()))
        return web.json_response({"count": 2, "tokens": [5, 6]})

    spec = EndpointSpec(address=await serve(answer), models=("m",))
    chat = {"messages": [{"role": "user", "content": "x"}], "tools": [{}]}
    async with aiohttp.ClientSession() as session:
        found = await ask_engine(session, spec, chat, "m")
        assert found.tolist() == [5, 6]
    assert asked == [("/tokenize", {"model": "m", **chat})]


@pytest.mark.parametrize("body", [b"", b"[]", b'{"tokens": "x"}', b'{"tokens": [-1]}', b"{}"])
async def test_an_answer_without_ids_is_a_value_error(serve: Any, body: bytes) -> None:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(body=body)

    spec = EndpointSpec(address=await serve(answer), models=("m",))
    async with aiohttp.ClientSession() as session:
        with pytest.raises(ValueError, match="/tokenize"):
            await ask_engine(session, spec, {"messages": []}, "m")
