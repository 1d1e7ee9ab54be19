"""Identify a request's session by fields that clients send anyway.

laar's header takes precedence. Coding agents name the session in one header, and a sub-agent in
another. A sub-agent's prompts share little with the session's, so it is treated as a separate
session. Bodies have fields with the same meaning: ``session_id`` (vLLM, SGLang, OpenRouter),
``conversation`` and ``prompt_cache_key`` (OpenAI) and, from Claude Code, a ``metadata.user_id``
that ends with the session's id. Agents behind vLLM's router name their session in
``vllm_xargs.agentic_context``.

A ``cache_salt`` does not identify a session: all chats of a tenant share it. It is part of the
prompt's hash chain.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

SESSION = "x-laar-session"

SESSION_HEADERS = (
    "x-claude-code-session-id",
    "thread-id",
    "session-id",
    "session_id",
    "x-session-affinity",
    "x-session-id",
    "x-dynamo-session-id",
    "x-switchyard-session-id",
    "x-smg-routing-key",
)
"""Headers of Claude Code, Codex (both spellings) and OpenCode, the common x-session-id, and headers
of clients of Dynamo, Switchyard and SMG. The first one present is used, so Codex's threads come
before its sessions, which sub-agents share. All are forwarded, since engines may read them too."""

NAMING = frozenset({SESSION, *SESSION_HEADERS})
"""All headers that name a session; most requests have none."""

SESSION_MEMBERS_OF_HEADERS = ("thread_id", "session_id", "conversation_id")
"""The same names in a header that holds an object, or in a query; Codex sends all three."""

AGENT_HEADERS = ("x-claude-code-agent-id", "x-claude-code-parent-agent-id")
"""Headers that name a sub-agent of the session. If only the parent's id is present, it is used."""

MAX_NAME_CHARS = 256
"""Maximum length of session and other names; longer names are ignored."""

_NAME = re.compile(r"[!-~](?:[ -~]*[!-~])?")
"""Matches values usable as a name: printable, without surrounding spaces."""

_SESSION_IN_USER = re.compile(r"_session_([0-9A-Za-z-]+)$")

SESSION_MEMBERS = frozenset(("session_id", "prompt_cache_key", "metadata", "vllm_xargs"))
"""Members of a body that may name a session, besides its conversation."""


def session_of_headers(headers: Mapping[str, str]) -> str:
    """Return the session named in a request's headers; empty if none."""
    get = headers.get
    if own := name_of(get(SESSION, "")):
        return own
    for name in SESSION_HEADERS:
        if value := name_of(get(name, "")):
            for agent in AGENT_HEADERS:
                if part := name_of(get(agent, "")):
                    return f"{value}/{part}"[:MAX_NAME_CHARS]
            return value
    return ""


def session_of_body(document: Mapping[str, Any]) -> str:
    """Return the session named in a body that continues no conversation; empty if none."""
    for member in ("session_id", "prompt_cache_key"):
        key = document.get(member)
        if isinstance(key, str) and (key := name_of(key)):
            return key
    if session := _session_of_agent(document.get("vllm_xargs")):
        return session
    metadata = document.get("metadata")
    user = metadata.get("user_id") if isinstance(metadata, dict) else None
    return _session_of_user(user) if isinstance(user, str) else ""


def conversation_of(document: Mapping[str, Any]) -> str:
    """Return the id of the conversation that a body of the Responses API continues, or empty."""
    conversation = document.get("conversation")
    if isinstance(conversation, dict):
        conversation = conversation.get("id")
    return name_of(conversation) if isinstance(conversation, str) else ""


def _session_of_agent(xargs: object) -> str:
    """Return the session in an ``agentic_context``: its program, or else its session and agent."""
    context = xargs.get("agentic_context") if isinstance(xargs, dict) else None
    if not isinstance(context, dict):
        return ""
    names = {key: name_of(value) for key, value in context.items() if isinstance(value, str)}
    if program := names.get("program_id"):
        return program
    session, agent = names.get("session_id") or names.get("task_id"), names.get("agent_id")
    return f"{session}/{agent}"[:MAX_NAME_CHARS] if session and agent else session or ""


def _session_of_user(user: str) -> str:
    """Return the session in a user id; empty if it names only a user, who may have many."""
    if len(user) > 4 * MAX_NAME_CHARS:
        return ""
    if found := _SESSION_IN_USER.search(user):
        return name_of(found[1])
    try:
        inner = orjson.loads(user)
    except orjson.JSONDecodeError:
        return ""
    session = inner.get("session_id") if isinstance(inner, dict) else None
    return name_of(session) if isinstance(session, str) else ""


def name_of(value: str) -> str:
    """Return a value without surrounding spaces if it is usable as a name; else an empty string."""
    if not value:
        return ""
    value = value.strip()
    return value if len(value) <= MAX_NAME_CHARS and _NAME.fullmatch(value) else ""
