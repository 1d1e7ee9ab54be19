"""Key-value look-ups: the workload of LAAR's evaluation (LAAR, sections 3.1 and 6.1).

A prompt is a JSON object of random UUID keys and values, cut to a length in tokens, followed by a
question for the value of one key. The lead-in and the question exist in seven languages (in the
paper: English, Japanese and Chinese); everything between them is UUIDs. An answer that contains
the value is correct.

A query stores a seed instead of a text, since 100 queries in each of 15 cells would be 230 MB of
prompts. `Query.prompt` builds the text on each read (about 5 ms at 64K tokens); the key and the
answer come from the seed alone. Every cell, split and seed has its own keys, so no two queries
share a prefix beyond the lead-in.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal, NamedTuple

from laar_lab.tokens import ASCII_PER_TOKEN, count_tokens

TASK = "kv-lookup"
"""The picker's name for the task of these prompts (`laar.accuracy.features`)."""

LANGUAGES = ("en", "ja", "zh")
LENGTHS_TOKENS = (4096, 8192, 16384, 32768, 65536)

Split = Literal["fit", "evaluate"]


class _Wording(NamedTuple):
    lead_in: str
    before_key: str
    after_key: str


_WORDINGS = {
    "en": _Wording("JSON data: ", "Key: ", ". State the value stored under this key:"),
    "ja": _Wording("JSONデータ: ", "キー: ", "。このキーに対応する値を答えてください:"),
    "zh": _Wording("JSON数据: ", "键: ", "。请回答该键对应的值:"),
    "ko": _Wording("JSON 데이터: ", "키: ", ". 이 키에 저장된 값을 답하세요:"),
    "ru": _Wording("Данные JSON: ", "Ключ: ", ". Назовите значение этого ключа:"),
    "ar": _Wording("بيانات JSON: ", "المفتاح: ", ". اذكر القيمة المخزنة تحت هذا المفتاح:"),
    "hi": _Wording("JSON डेटा: ", "कुंजी: ", ". इस कुंजी का मान बताइए:"),
}


def _wording(language: str) -> _Wording:
    """Return the wording in a language; if it is unknown, an English wording that names it."""
    if language in _WORDINGS:
        return _WORDINGS[language]
    return _Wording(f"JSON data [{language}]: ", f"Key [{language}]: ", _WORDINGS["en"].after_key)


_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_QUESTIONS = {
    language: re.compile(f"{re.escape(w.before_key)}({_UUID}){re.escape(w.after_key)}\\s*$")
    for language, w in _WORDINGS.items()
}
_NAMED_QUESTION = re.compile(
    rf"Key \[([^\[\]\n]{{1,32}})\]: ({_UUID}){re.escape(_WORDINGS['en'].after_key)}\s*$"
)
_QUESTION_CHARS = 200  # more than the longest question with its key
_UUID_CHARS = 36
_PAIR_CHARS = 2 * _UUID_CHARS + len('"": "", ')


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One question and its answer.

    Args:
        id: unique across cells, splits and seeds.
        language: language of the lead-in and of the question.
        length_tokens: length of the cell; the prompt is the longest that fits (`count_tokens`).
        key: the UUID to look up; the lab also derives the query's difficulty from it.
        answer: the UUID stored under the key.
    """

    id: str
    language: str
    length_tokens: int
    key: str
    answer: str

    @property
    def prompt(self) -> str:
        """The text of the user's message, rebuilt on each read."""
        words = _wording(self.language)
        question = f"\n\n{words.before_key}{self.key}{words.after_key}"
        frame = f"{words.lead_in}{{}}{question}"
        # Only ASCII is added to the frame, so `free_chars` is exact except for rounding: if the
        # frame ends inside a token, a pair completes that token.
        free_chars = (self.length_tokens - count_tokens(frame)) * ASCII_PER_TOKEN
        pairs = free_chars // _PAIR_CHARS
        rng = random.Random(self.id)  # a str seed is the same in every process
        ids = _uuids(rng, 2 * (pairs - 1))
        entries = [f'"{k}": "{v}"' for k, v in zip(ids[::2], ids[1::2], strict=True)]
        entries.insert(rng.randrange(pairs), f'"{self.key}": "{self.answer}"')
        return f"{words.lead_in}{{{', '.join(entries)}}}{question}"


class Solution(NamedTuple):
    """A perfect model's answer to a look-up prompt, with the prompt's features."""

    key: str
    value: str
    language: str
    length_tokens: int


def queries(
    *,
    languages: Sequence[str] = LANGUAGES,
    lengths_tokens: Sequence[int] = LENGTHS_TOKENS,
    per_cell: int = 50,
    seed: int = 0,
    split: Split = "evaluate",
) -> list[Query]:
    """Return look-ups for each language and length, in cell order.

    The two splits of one seed share no query: "fit" is for learning, "evaluate" for reported
    figures. Lengths below 100 tokens have no room for a pair.
    """
    drawn = []
    for language in languages:
        for length in lengths_tokens:
            for index in range(per_cell):
                name = f"kv-{seed}-{split}-{language}-{length}-{index}"
                digest = blake2b(name.encode(), digest_size=32).hexdigest()
                drawn.append(
                    Query(
                        id=name,
                        language=language,
                        length_tokens=length,
                        key=_uuid(digest[:32]),
                        answer=_uuid(digest[32:]),
                    )
                )
    return drawn


def solve(prompt: str) -> Solution | None:
    """Find the requested key, its value, the language and the length; None for any other prompt."""
    tail = prompt[-_QUESTION_CHARS:]
    for language, question in _QUESTIONS.items():
        if asked := question.search(tail):
            return _found(prompt, asked[1], language)
    if named := _NAMED_QUESTION.search(tail):
        return _found(prompt, named[2], named[1])
    return None


def _found(prompt: str, key: str, language: str) -> Solution | None:
    start = prompt.find(f'"{key}": "')
    if start < 0:
        return None
    start += len(key) + len('"": "')
    value = prompt[start : start + _UUID_CHARS]
    return Solution(key, value, language, count_tokens(prompt))


def _uuids(rng: random.Random, count: int) -> list[str]:
    digits = rng.randbytes(16 * count).hex()
    return [_uuid(digits[at : at + 32]) for at in range(0, len(digits), 32)]


def _uuid(digits: str) -> str:
    """Format 32 hexadecimal digits as a version 4 UUID."""
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"
