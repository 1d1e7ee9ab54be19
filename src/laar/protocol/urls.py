"""URLs of images and other media without what signs them, which differs in every turn."""

from __future__ import annotations

import re

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
