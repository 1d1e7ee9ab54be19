"""The session that a request belongs to, by fields that clients send anyway.

laar's own header comes first. Coding agents name the session in a header of theirs, and a sub-agent
in another: its prompts share little with those of the session, so it counts as one of its own. The
APIs have fields with the same meaning: ``prompt_cache_key`` (OpenAI) and ``metadata.user_id``
(Anthropic), which Claude Code fills with a text that ends in the session.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

SESSION = "x-laar-session"

SESSION_HEADERS = (
    "x-claude-code-session-id",
    "session-id",
    "session_id",
    "x-session-affinity",
    "x-session-id",
    "x-dynamo-session-id",
    "x-switchyard-session-id",
    "x-smg-routing-key",
    "thread-id",
)
"""Headers of Claude Code, Codex (both spellings) and OpenCode, a common one, and those that clients
of Dynamo, Switchyard and SMG send, and of agents with threads; the first that is present counts.
They are left in place, since engines may read them too."""

NAMING = frozenset({SESSION, *SESSION_HEADERS})
"""All headers that name a session; most requests have none of them."""

AGENT_HEADERS = ("x-claude-code-agent-id",)
"""Names a sub-agent within the session."""

MAX_SESSION_CHARS = 256
"""Longer ones are as good as absent."""

NAME = re.compile(r"[!-~](?:[ -~]*[!-~])?")
"""A header value that may name something: printable, without blanks around it."""

_SESSION_IN_USER = re.compile(r"_session_([0-9A-Za-z-]+)$")


SESSION_MEMBERS = frozenset(("prompt_cache_key", "metadata"))
"""Members of a body that may name a session."""


def session_of_headers(headers: Mapping[str, str]) -> str:
    """Return the session that a request's headers name; empty when they name none."""
    get = headers.get
    own = get(SESSION)
    if own and (own := _checked(own)):
        return own
    for name in SESSION_HEADERS:
        value = get(name)
        if value and (value := _checked(value)):
            for agent in AGENT_HEADERS:
                if part := _checked(get(agent, "")):
                    return f"{value}/{part}"[:MAX_SESSION_CHARS]
            return value
    return ""


def session_of_body(document: Mapping[str, Any]) -> str:
    """Return the session that a body names; empty when it names none."""
    key = document.get("prompt_cache_key")
    if isinstance(key, str) and (key := _checked(key)):
        return key
    metadata = document.get("metadata")
    user = metadata.get("user_id") if isinstance(metadata, dict) else None
    return _session_of_user(user) if isinstance(user, str) else ""


def _session_of_user(user: str) -> str:
    """Return the session in a user id, else the user: better than none, for one user's chats."""
    if len(user) > 4 * MAX_SESSION_CHARS:
        return ""
    found = _SESSION_IN_USER.search(user)
    if found:
        return _checked(found[1])
    if user.startswith("{"):
        try:
            inner = orjson.loads(user)
        except orjson.JSONDecodeError:
            return ""
        session = inner.get("session_id") if isinstance(inner, dict) else None
        return _checked(session) if isinstance(session, str) else ""
    return _checked(user)


def _checked(value: str) -> str:
    value = value.strip()
    return value if len(value) <= MAX_SESSION_CHARS and NAME.fullmatch(value) else ""
