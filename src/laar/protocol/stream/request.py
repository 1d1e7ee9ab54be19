"""A request's head and body to the request that the core decides on."""

from __future__ import annotations

from laar.core.request import Api, Request, Trace
from laar.protocol.headers import Head
from laar.protocol.openai import Body, encodes, response_of
from laar.protocol.ports import GatewayRules

_OPAQUE = Api.OPAQUE
_KEPT_CHARS = 500
"""Characters of a question's head and of its tail that are kept once the request is decided: whole
prompts held for as long as their answers take would be gigabytes in a busy fleet. No feature reads
more."""


def model_wanted(api: Api, asked: str, head: Head, rules: GatewayRules, pool: str) -> str:
    """The model to look for: by the cluster's rules, the gateway's header, or as asked."""
    if api is _OPAQUE:
        return asked
    return rules.rewrite(asked, pool) or head.rewrite or asked


def request_of(
    head: Head,
    read: Body,
    *,
    request_id: str,
    api: Api,
    rules: GatewayRules,
    body_bytes: int,
    body: bytes = b"",
    salt_by_tenant: bool,
    pool: str,
    subset: frozenset[str] | None,
    shadow: bool,
    sees_answer: bool,
    trace: Trace | None,
) -> Request:
    """The core's request, made from headers and body.

    Args:
        head: the request's headers.
        read: its body, or the model that the path names where it is not read.
        request_id: the client's, or laar's where it gave none.
        api: the body's format.
        rules: the cluster's rules.
        body_bytes: size of the body.
        body: the whole body; dropped after the decision.
        salt_by_tenant: tenants share no prefixes.
        pool: the pool that the gateway's route names.
        subset: addresses that the gateway restricts the choice to; None for all.
        shadow: the decision does not count.
        sees_answer: the answer will be read as it passes.
        trace: the trace that the decision is seen in.
    """
    salt = read.salt
    if salt_by_tenant and head.tenant:
        salt = f"{head.tenant}\n{salt}"  # no tenant's name has a line break
    stored = response_of(head.method, head.path) if api is _OPAQUE else ""
    return Request(
        id=request_id,
        api=api,
        model=model_wanted(api, read.model, head, rules, pool),
        encodes=api is _OPAQUE and encodes(head.path),
        spans=read.spans,
        question=read.question,
        system=read.system,
        marks=read.marks,
        chars=read.chars,
        tokens=read.tokens,
        stream=read.stream,
        max_tokens=read.max_tokens,
        body_bytes=body_bytes,
        body=body,
        salt=salt,
        tenant=head.tenant,
        priority=rules.priority(head.objective, pool) if head.objective else 0,
        objective=head.objective,
        tried=head.tried,
        wants_hedge=head.hedge == "ask",
        hedge_of=head.hedge_of,
        task=head.task,
        policy=head.policy,
        session=head.session or read.session,
        response_id=read.previous or stored,
        ttft_objective_s=head.ttft_objective_s,
        pool=pool,
        subset=subset,
        shadow=shadow,
        first_token_seen=read.stream and sees_answer,
        trace=trace,
    )


def forget_prompt(request: Request) -> None:
    """Keeps of the prompt only the part that features are read from after the decision."""
    request.spans, request.body = (), b""
    if len(request.question) > 2 * _KEPT_CHARS:
        request.question = request.question[:_KEPT_CHARS] + request.question[-_KEPT_CHARS:]
