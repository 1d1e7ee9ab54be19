"""Tell media from text, by the shape of strings; and URLs of media without what signs them."""

from __future__ import annotations

import re
from collections.abc import Callable

_SHORTEST_DATA = 512
"""Shortest base64 that counts as data; hashes and tokens are shorter."""
_BASE64, _END = rb"[A-Za-z0-9+/_=-]", rb"(?:\\r|\r)?+(?:\\n|\n)?+"
_DATA = re.compile(
    rb'"(data:[^",\s]{1,256}+,)?+(?:%b{60,}+%b)++%b*+%b"' % (_BASE64, _END, _BASE64, _END)
)
prose = re.compile(rb"[ \x80-\xff]|\\n").search
"""Finds text, rather than URLs and ids, in JSON without spaces between its strings."""
_MAX_CHARS = 8192
"""Maximum length of a URL that is examined; longer ones are kept as they are."""

_WORDS = re.compile(r"[a-z]+|[A-Z]+(?![a-z])|[A-Z][a-z]*")
_SIGNS = frozenset(("auth", "hmac", "mac", "sig", "sign", "signature", "signed", "token"))
"""Words that name a signature. Only URLs with one are changed."""
_DETAILS = (
    "access ak algorithm credential date exp expire expires expiry expiration headers hash issued"
    " keyid nonce pair policy security signer time timestamp ts valid verify"
)
_SIGNING = _SIGNS.union(_DETAILS.split())
"""Words of a signature's parameters: who signed what, how, when, and until when."""
_SHORT = {
    "sig": re.compile(r"s(?:[eprstv]|dd|ip|pr|rt|cid|k[a-z]{1,4}|[ado]oid|uoid)"),  # Azure
    "hm": re.compile(r"hm|ex|is"),  # Discord
    "oh": re.compile(r"oh|oe"),  # Meta
}
"""A signature's short name, and the short names of its parameters."""


def without_data(text: bytes, stand_in: Callable[[bytes], str]) -> bytes:
    """Return JSON in which each string that is data, not text, is replaced by what stands for it.

    That is a data URL, or long base64, with or without line ends.
    """

    def replaced(found: re.Match[bytes]) -> bytes:
        is_data = found[1] or len(found[0]) >= _SHORTEST_DATA
        return b'"%b"' % stand_in(found[0]).encode() if is_data else found[0]

    return _DATA.sub(replaced, text)


def is_data(text: str) -> bool:
    """Return whether a string is data."""
    begin = text[:_SHORTEST_DATA]
    if " " in begin or not (begin.startswith("data:") or len(begin) == _SHORTEST_DATA):
        return False
    return _DATA.fullmatch(b'"%b"' % text.encode("utf-8", "replace")) is not None


def unsigned(url: str) -> str:
    """Return a URL without the parameters of its signature; return others unchanged."""
    if len(url) > _MAX_CHARS or not url[:8].lower().startswith(("http://", "https://")):
        return url
    base, mark, query = url.partition("?")
    query, hash_mark, fragment = query.partition("#")
    parameters = [(each.partition("=")[0], each) for each in query.split("&")]
    names = {name for name, _ in parameters}
    short = [pattern for name, pattern in _SHORT.items() if name in names]
    if not short and all(_SIGNS.isdisjoint(_words(name)) for name in names):
        return url
    kept = [
        each
        for name, each in parameters
        if _SIGNING.isdisjoint(_words(name)) and not any(p.fullmatch(name) for p in short)
    ]
    return base + mark + "&".join(kept) + hash_mark + fragment


def _words(name: str) -> set[str]:
    return {word.lower() for word in _WORDS.findall(name)}
