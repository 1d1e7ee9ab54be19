"""Limits and choices of a stream."""

from __future__ import annotations

from dataclasses import dataclass

from laar.protocol.headers import FAIRNESS, Answers
from laar.protocol.paths import DENIED_PATHS, DeniedPaths

__all__ = ["StreamSettings"]

_DENIED = DeniedPaths(DENIED_PATHS)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """Limits and choices of a stream.

    Args:
        max_body_bytes: longest request body that is held in the gateway shape; 413 above it. In
            the native shape Envoy's own buffer limit says the same before laar sees a byte.
        opaque_paths: request paths, by prefix, whose bodies are never read.
        denied_paths: request paths that are refused.
        tenant_header: names the tenant.
        answers: which headers clients get with an answer.
        prefix_by_tenant: a prefix of one tenant's is no other's.
    """

    max_body_bytes: int = 32 << 20
    opaque_paths: tuple[str, ...] = ("/v1/audio/", "/v1/images/", "/v1/files")
    denied_paths: DeniedPaths = _DENIED
    tenant_header: str = FAIRNESS
    answers: Answers = Answers.AUTO
    prefix_by_tenant: bool = False
