"""A prompt's length in tokens, without a tokenizer: its characters / characters per token.

The ratio is the artifact's for the model and language, or a rough figure for the language. It
chooses the length bucket, and is the length until a model's first report (`laar.prefix.lengths`
learns from those), or where no text is at hand. Length buckets double, which absorbs most errors.
"""

from __future__ import annotations

# Rough figures for today's tokenizers on prose.
_CHARS_PER_TOKEN = {"en": 4.0, "ja": 1.5, "zh": 1.5, "ko": 1.6, "ru": 3.0, "ar": 2.6}
_OTHER_CHARS_PER_TOKEN = 2.5

LEAST_CHARS, MOST_CHARS = 0.2, 20.0  # no tokenizer uses 5 tokens per character, or 1 per 20


def chars_per_token(language: str) -> float:
    """Return the characters per token of a language's prose."""
    return _CHARS_PER_TOKEN.get(language, _OTHER_CHARS_PER_TOKEN)
