"""Names by which a request would make an engine, or its sidecar, contact another host.

Engines take peers for KV caches, prefills and encodings from headers and from members of the body,
whoever sends them. Releases add and rename these, so laar recognizes them by their words: one for
what moves or who moves it (`kv`, `prefiller`), and one for a place (`host`, `peer`, `url`).
`tests/protocol/test_reserved_names.py` compares the rule with the names that released engines and
routers read. URLs in messages and tools are the user's and are not examined.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any

from laar.errors import RequestError
from laar.protocol.jsonscan import CutText


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_TRANSFERS = _set(
    "bootstrap disagg disaggregated disaggregation kv lmcache migration mooncake moriio nccl nixl"
    " p2p pd transfer"
)
_MOVED = _TRANSFERS | _set(
    "cache decode decoder dp encode encoder engine hicache kvcache parallel peer prefill prefiller"
    " worker"
)
_PLACES = _set(
    "addr address bootstrap endpoint host hostport instance ip ipc node path peer port receiver"
    " remote sender server source target uri url"
)
_HEADER_PLACES = _PLACES | {"rank", "room"}
"""In headers also the numbers of places, which laar sets itself."""
_PARAMETERS = _set("args body ext extra hint nvext option param request spec xargs")

_PEER = re.compile(r"(?:prefill|decode|encode)[a-z]*_addr_")
"""Matches a request id that names peers; vLLM's connectors for P2P transfers read them there."""
_ADDRESS = (b"_addr_", b"\\u005f", b"\\u005F", b"\\u0061", b"\\u0064", b"\\u0072")
"""Parts of such an id as it is written in JSON; nobody else escapes these letters."""
_IDS = ("request_id", "rid")

DENIED = "denied-member"
"""Reason of the refusal."""

_MAX_CHARS = 64
"""Maximum length of a name; no engine reads longer ones."""
_MAX_NAMES = 4096
_MOST = 1000
"""Maximum number of new names, and of objects with parameters, that are looked at in a body; only
batches have more than a few. In an object with more members, only those in `_ANY` count."""

_ANY = re.compile("|".join(sorted({*_MOVED, *_PARAMETERS, *_IDS})), re.IGNORECASE)
"""Matches every name that may be reserved, and others; most of 100,000 names do not match."""
_WORDS = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")
_KEY = re.compile(rb'"([\w.\\-]{1,%d})"\s*:' % (6 * _MAX_CHARS))
_NAME = re.compile(rb"(?:[\w.-]|\\u00[2-7][0-9A-Fa-f])+")
"""Matches the names among what `_KEY` finds; the rest are ends of strings."""
_SPACE = re.compile(rb"\s*")
_ID = re.compile(rb'\s*("(?:[^"\\]|\\.){0,4096}"|\[[^\[\]]{0,1048576}\]|[^"\[\s])')
"""Matches the value after a key in `_IDS`, unless it is longer than any request id."""
_PIECE_BYTES = 64 << 10

HARMLESS: set[str] = set()
HARMLESS_HEADERS: set[str] = set()
"""Names that were examined before: most requests cost a single set operation."""


def reserved_headers(names: Collection[str]) -> tuple[str, ...]:
    """Return the headers, in lower case, that clients may not send to an engine or its sidecar."""
    found = {
        name
        for name in names
        if name.startswith("x-override-")  # with which SGLang sets any member of a body
        or _is_pair((words := _words(name)) & _MOVED, words & _HEADER_PLACES)
    }
    remember(HARMLESS_HEADERS, set(names) - found)
    return tuple(found)


def header_pattern() -> str:
    """Return a regular expression for the headers of `reserved_headers`, for Envoy."""
    moved, places = ("|".join(sorted(words)) for words in (_MOVED, _HEADER_PLACES))
    start, between, end = "(.*[^a-z0-9])?", "([^a-z0-9].*)?[^a-z0-9]", "([^a-z0-9].*)?"
    return "|".join(
        (
            f"{start}({moved})(e?s)?{between}({places})(e?s)?{end}",
            f"{start}({places})(e?s)?{between}({moved})(e?s)?{end}",
            "x-override-.*",
        )
    )


def check_members(document: dict[str, Any]) -> None:
    """Raise an error if a body names hosts for the engine to contact.

    The body's own members and those of its objects with parameters are examined. Raise
    `RequestError` if 400; it names the member.
    """
    left, examined = [(document, False)], 0
    for members, within in left:  # `within` an object that describes a transfer
        many = len(members) > _MOST
        for name, value in members.items():
            if not within and (name in HARMLESS or (many and not _ANY.search(name))):
                continue
            examined += 1
            if max(examined, len(left)) > _MOST:
                raise RequestError(400, DENIED, "the body has too many members")
            words = _words(name)
            moves, values = within or _moves(words), value if isinstance(value, list) else [value]
            is_reserved, is_id = _is_reserved(words), name in _IDS
            if not (is_reserved or is_id or moves or words & _PARAMETERS):
                remember(HARMLESS, (name,))
                continue
            # Engines ignore null, and clients send it. Connectors read any member about a transfer,
            # and some are opaque strings.
            opaque = moves and (words & _PLACES or any(isinstance(v, str | list) for v in values))
            if value and (is_reserved or opaque or (is_id and any(map(names_peer, values)))):
                raise denied_member(name)
            left += [(each, moves) for each in values[: _MOST + 1] if isinstance(each, dict)]


def check_keys(text: bytes) -> None:
    """Raise the same errors for keys at any depth, in JSON that is too long to parse.

    Each name is examined once: in a list of messages, the same few recur.
    """
    seen: set[bytes] = set()
    ids: set[bytes] = set()
    examined, may_name_peers = 0, any(part in text for part in _ADDRESS)
    for at in range(0, len(text), _PIECE_BYTES):  # other threads run between the pieces
        ends = _SPACE.match(text, at + _PIECE_BYTES + 8 * _MAX_CHARS)  # a colon may follow
        end = ends.end() + 1 if ends else len(text)
        names = set(_KEY.findall(text, at, end))
        for raw in names - seen:
            name = raw.decode("unicode-escape") if _NAME.fullmatch(raw) else ""
            if len(name) > _MAX_CHARS or name in HARMLESS or not _ANY.search(name):
                continue
            examined += 1
            if name in _IDS:
                ids.add(raw)
            elif _is_reserved(words := _words(name)) or _moves(words):
                raise denied_member(name)
        seen = names if len(seen) > _MAX_NAMES else seen | names
        if may_name_peers and not ids.isdisjoint(names):
            for found in _KEY.finditer(text, at, end):
                if found[1] in ids:
                    examined += 1
                    if _has_peer(text, found.end()):
                        raise denied_member(found[1].decode("unicode-escape"))
        if examined > _MOST:
            raise RequestError(400, DENIED, "the body has too many members")


def _has_peer(text: bytes, start: int) -> bool:
    """Return whether the request ids at a place in JSON name peers, or can't be read."""
    found = _ID.match(text, start)
    if found is not None and found[1][:1] not in b'"[':
        return False
    try:
        ids = json.loads(found[1]) if found is not None else None
    except ValueError:
        ids = None
    return ids is None or any(map(names_peer, ids if isinstance(ids, list) else [ids]))


def names_peer(request_id: object) -> bool:
    """Return whether a request id names peers, or is so long that nobody has read it."""
    return isinstance(request_id, CutText) or (
        isinstance(request_id, str) and _PEER.search(request_id) is not None
    )


def _moves(words: frozenset[str]) -> bool:
    """Return whether a member has the parameters of a transfer between engines."""
    return bool(words & _TRANSFERS and words & _PARAMETERS)


def _is_reserved(words: frozenset[str]) -> bool:
    """Return whether a member of a body names a place for a transfer."""
    return "bootstrap" in words or _is_pair(words & _MOVED, words & _PLACES)


def _is_pair(moved: frozenset[str], places: frozenset[str]) -> bool:
    return bool(moved and places) and len(moved | places) > 1


def _words(name: str) -> frozenset[str]:
    """Return the words of a name in lower case, and without a plural's ending."""
    words = [word.lower() for word in _WORDS.findall(name)] if len(name) <= _MAX_CHARS else ()
    return frozenset(word.removesuffix(end) for word in words for end in ("", "s", "es"))


def remember(known: set[str], names: Collection[str]) -> None:
    """Add names to a set of those that were examined, whose size is bounded."""
    if len(known) > _MAX_NAMES:
        known.clear()
    known.update(name for name in names if len(name) <= _MAX_CHARS)


def denied_member(name: str) -> RequestError:
    """Return the error for a request that names hosts."""
    return RequestError(
        400,
        DENIED,
        f"`{name}` may not be set by clients: it tells an engine which hosts to contact",
    )
