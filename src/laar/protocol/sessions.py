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
from collections.abc import Collection, Mapping
from itertools import islice
from typing import Any, NamedTuple

import orjson

from laar.protocol.reserved import remember

SESSION = "x-laar-session"

SESSION_HEADERS = {
    "x-claude-code-session-id": "Claude Code 2.1",
    "thread-id": "Codex 0.171",
    "session-id": "Codex 0.171",
    "session_id": "Codex 0.4x",
    "x-session-affinity": "OpenCode 1.18, Kilo Code 7.7",
    "x-affinity": "Mistral Vibe 3.0",
    "x-session-id": "common",
    "agent-session-id": "Envoy AI Gateway 1.2",
    "x-openwebui-chat-id": "Open WebUI 0.6",
    "x-grok-conv-id": "Grok CLI",
    "x-dynamo-session-id": "Dynamo 1.6",
    "x-switchyard-session-id": "Switchyard 0.3",
    "x-smg-routing-key": "SMG 1.13",
}
"""Headers that name a session, with who sends each and the version seen. The first one present is
used, so Codex's threads come before its sessions, which sub-agents share. All are forwarded, since
engines may read them too. Others are found by their use (`laar.flow.naming`)."""

SESSION_MEMBERS_OF_HEADERS = ("thread_id", "session_id", "conversation_id")
"""The same names in a header that holds an object, or in a query; Codex sends all three."""

AGENT_HEADERS = ("x-claude-code-agent-id", "x-claude-code-parent-agent-id")
"""Headers that name a sub-agent of the session. If only the parent's id is present, it is used."""

PARENT_HEADERS = ("x-parent-session-id", "x-codex-parent-thread-id")
"""Headers of OpenCode and Codex that name the session which started this one."""

_WORDS = "session|conversation|thread|affinity|chat(?!_template)"
_suggests = re.compile(_WORDS, re.IGNORECASE).search
_may_name = re.compile(
    "|".join((_WORDS, *SESSION_HEADERS, "^(prompt_cache_key|metadata|vllm_xargs)$")), re.IGNORECASE
).search

NAMELESS: set[str] = set()
"""Headers and members that were examined before and name no session, whatever their values: most
requests have no others, and cost a single set operation."""

_MAX_FIELDS = 128
MAX_HINTS = 4
"""Maximum number of fields of a request that are tried as names of its session."""

Hints = tuple[tuple[str, str], ...]
"""Fields that may name the session, with their values."""

MAX_NAME_CHARS = 256
"""Maximum length of session and other names; longer names are ignored."""

_NAME = re.compile(r"[!-~](?:[ -~]*[!-~])?")
"""Matches values usable as a name: printable, without surrounding spaces."""

_SESSION_IN_USER = re.compile(r"_session_([0-9A-Za-z-]+)$")

SESSION_MEMBERS = {
    "session_id": "vLLM, SGLang, OpenRouter",
    "prompt_cache_key": "OpenAI's libraries; one key may be a whole application's",
}
"""Members of a body, or of its metadata, that name a session, with who sends each."""

_METADATA = {"session_id": "LiteLLM", "conversation_id": "LangChain"}


class Named(NamedTuple):
    """A session's name, and the field that it was read from; both are empty if there is none.

    `hints` are given only if there is none.
    """

    session: str = ""
    field: str = ""
    hints: Hints = ()


UNNAMED = Named()


def session_of_headers(headers: Mapping[str, str]) -> Named:
    """Return the session named in a request's headers."""
    get = headers.get
    if own := name_of(get(SESSION, "")):
        return Named(own, SESSION)
    for name in SESSION_HEADERS:
        if value := name_of(get(name, "")):
            for agent in AGENT_HEADERS:
                if part := name_of(get(agent, "")):
                    return Named(f"{value}/{part}"[:MAX_NAME_CHARS], f"{name}, {agent}")
            return Named(value, name)
    _examine(headers)
    return Named(hints=_hints(headers, "", PARENT_HEADERS))


def parent_of_headers(headers: Mapping[str, str]) -> str:
    """Return the session that started this request's session; empty if none is named."""
    return next(filter(None, (name_of(headers.get(name, "")) for name in PARENT_HEADERS)), "")


def session_of_body(document: Mapping[str, Any]) -> Named:
    """Return the session named in a body that continues no conversation."""
    metadata = document.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    for of, within, start in ((SESSION_MEMBERS, document, ""), (_METADATA, metadata, _IN)):
        for member in of:
            key = within.get(member)
            if isinstance(key, str) and (key := name_of(key)):
                return Named(key, start + member)
    if session := _session_of_agent(document.get("vllm_xargs")):
        return Named(session, "vllm_xargs.agentic_context")
    user = metadata.get("user_id")
    if isinstance(user, str) and (session := _session_of_user(user)):
        return Named(session, "metadata.user_id")
    _examine(document)
    return Named(hints=_hints(document, "") + _hints(metadata, _IN))


def _examine(fields: Mapping[str, Any]) -> None:
    remember(NAMELESS, [name for name in islice(fields, _MAX_FIELDS) if not _may_name(name)])


_IN = "metadata."


def _hints(fields: Mapping[str, Any], start: str, but: Collection[str] = ()) -> Hints:
    """Return the fields whose names suggest a session, with values that may be its name."""
    found = (
        (start + field, name_of(value))
        for field, value in islice(fields.items(), _MAX_FIELDS)
        if len(field) <= MAX_NAME_CHARS and isinstance(value, str) and field not in but
        if _suggests(field) and _NAME.fullmatch(field)
    )
    return tuple(islice(((field, name) for field, name in found if name), MAX_HINTS))


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
