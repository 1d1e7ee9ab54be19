"""Cheap features of a request: language, length bucket and task (LAAR, sections 5.2 and 5.4).

They are computed from bounded samples of the last user message, so the cost does not grow with the
prompt. The language is inferred from the script of the head and the tail, because the middle of a
long prompt is data in any language; only the lead-in and the question are the user's words. Only
the script is identified: a code stands for the script's most common language ("en" for all Latin
text, "ru" for all Cyrillic), and one Chinese sentence in an English prompt's tail makes it "zh".
The capability model only needs classes that are stable, not correct.

`FEATURES_SCHEMA` must change whenever a prompt could get features for which existing artifacts
would be wrong; artifacts fitted on a different version are rejected. Adding finer buckets is not
such a change: if an artifact lacks one, the bucket above is used.
"""

from __future__ import annotations

import re
from typing import Annotated, NamedTuple

from msgspec import Meta

FEATURES_SCHEMA = 1

MIN_BUCKET_TOKENS = 512
MIN_LEARNED_BUCKET_TOKENS = 4096
"""Shortest bucket of online learning. It combines four, which would each fill slowly."""

MAX_BUCKET_TOKENS = 2**24
"""Largest bucket, to bound the number of buckets; no engine serves prompts over 16M tokens."""

GENERIC = "generic"

_HEAD_CHARS = 200
_TAIL_CHARS = 300  # enough for a question that contains a key or a quotation

_ESTIMATE_SLACK = 1.0625
"""Tolerance of one sixteenth above a bucket's edge, since lengths are estimates (learning error,
chat template) and a prompt cut to fit 64K is right at the edge."""

# Tried in order: both Japanese and Chinese use ideographs, but only Japanese uses kana.
_EASTERN = {
    "ja": "\u3041-\u309f\u30a1-\u30fa\u31f0-\u31ff\uff66-\uff9d",
    "zh": "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003fffd",
    "ko": "\u1100-\u11ff\u3130-\u318f\uac00-\ud7af",
}
# The first character in any of these ranges decides.
_OTHER = {
    "ru": "\u0400-\u052f",
    "ar": "\u0600-\u06ff\u0750-\u077f\u08a0-\u08ff\ufb50-\ufdff\ufe70-\ufefc",
    "he": "\u0590-\u05ff",
    "hi": "\u0900-\u097f",
    "th": "\u0e00-\u0e7f",
    "el": "\u0370-\u03ff\u1f00-\u1fff",
}
_SCRIPTS = {name: re.compile(f"[{ranges}]") for name, ranges in (_EASTERN | _OTHER).items()}
_ANY_EASTERN = re.compile(f"[{''.join(_EASTERN.values())}]")
_ANY_OTHER = re.compile(f"[{''.join(_OTHER.values())}]")

_UUID = "[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}"
_TASK_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,31}")

_LOOKUP = re.compile(rf'\{{\s*"{_UUID}"\s*:')

# Plain words, not patterns, so that a sample without any of them takes 2 us instead of 30.
_WORDS = (
    ("code", ("```", "\ndef ", "\nclass ", "\nimport ", "#include <", "function(", "public class")),
    ("translation", ("translate", "translation", "翻訳", "翻译", "翻譯")),
    ("summary", ("summar", "tl;dr", "要約", "摘要", "总结", "總結")),
)

Name = Annotated[str, Meta(max_length=1024)]
"""A name as sent between pickers; the receiver checks the bound."""


class Features(NamedTuple):
    """A request's class: the key of an artifact's cells.

    Args:
        language: code of the script's most common language.
        bucket: upper edge of the length bucket, in tokens.
        task: the task from the ``x-laar-task`` header or a detector, else ``generic``.
    """

    language: Name
    bucket: Annotated[int, Meta(ge=0)]
    task: Name = GENERIC


def task_name(task: str) -> str:
    """Return a task's name in canonical form; empty for an invalid name."""
    named = task.strip().lower()
    return named if _TASK_NAME.fullmatch(named) else ""


def bucket_of(tokens: float) -> int:
    """Return the smallest bucket (512 tokens and its doublings) that holds an estimated length."""
    tokens /= _ESTIMATE_SLACK
    if not tokens > MIN_BUCKET_TOKENS:  # NaN gets the shortest bucket
        return MIN_BUCKET_TOKENS
    if tokens >= MAX_BUCKET_TOKENS:
        return MAX_BUCKET_TOKENS
    floor = int(tokens)
    return 1 << (floor - (floor == tokens)).bit_length()


def head_and_tail(text: str, head_chars: int = _HEAD_CHARS, tail_chars: int = _TAIL_CHARS) -> str:
    """Return the head and the tail of a text, or all of it if it is short."""
    if len(text) <= head_chars + tail_chars:
        return text
    return f"{text[:head_chars]}\n{text[-tail_chars:]}"


def language_of(text: str) -> str:
    """Return the language by the script of head and tail; "en" for Latin script or no text."""
    if text.isascii() or (sample := head_and_tail(text)).isascii():
        return "en"
    if _ANY_EASTERN.search(sample):
        return next(name for name in _EASTERN if _SCRIPTS[name].search(sample))
    if first := _ANY_OTHER.search(sample):
        return next(name for name in _OTHER if _SCRIPTS[name].match(first[0]))
    return "en"


def task_of(text: str) -> str:
    """Return the task detected in the text's head and tail, else ``generic``."""
    lower = head_and_tail(text).lower()
    if "{" in lower and _LOOKUP.search(lower):
        return "kv-lookup"
    for task, words in _WORDS:
        for word in words:
            if word in lower:
                return task
    return GENERIC
