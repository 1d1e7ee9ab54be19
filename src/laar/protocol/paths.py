"""Request paths: the format of their bodies, and paths that only an engine's operators may use.

vLLM and SGLang serve operator paths on the inference port, many without a key. They put an engine
to sleep, load weights, empty caches or call any method of a worker. A gateway that forwards every
path would expose them to anyone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import parse_qs, unquote

from laar.core.request import Api
from laar.errors import RequestError

SUFFIXES: tuple[tuple[str, Api], ...] = (
    ("/chat/completions", Api.CHAT),
    ("/completions", Api.COMPLETIONS),
    ("/inference/v1/generate", Api.COMPLETIONS),  # vLLM's, with token ids as input and output
    ("/responses", Api.RESPONSES),
    ("/embeddings", Api.EMBEDDINGS),
    ("/messages", Api.MESSAGES),
    # SageMaker's path for any API; prompts in other forms are priced by their length.
    ("/invocations", Api.CHAT),
)

_ENCODE = ("/rerank", "/score", "/pooling", "/classify", "/embed")
_MODELS = "/v1/models/"
_STORED = re.compile(r"/responses/([^/?]{1,256})(/[a-z_]+)?/?(?:\?|$)")
_OBJECTS = re.compile(r"/(conversations|files|uploads|batches)(?:/([^/]{1,256})|$)")

DENIED_PATHS = (
    # vLLM
    "/abort_requests",
    "/collective_rpc",
    "/fault_tolerance/apply",
    "/fault_tolerance/status",
    "/finish_weight_update",
    "/get_world_size",
    "/init_weight_transfer_engine",
    "/is_paused",
    "/is_scaling_elastic_ep",
    "/is_sleeping",
    "/kv_event_sources",
    "/load_lora_adapter",
    "/metrics",
    "/pause",
    "/release_kv_cache_memory",
    "/reset_encoder_cache",
    "/reset_mm_cache",
    "/reset_prefix_cache",
    "/resume",
    "/scale_elastic_ep",
    "/server_info",
    "/shutdown_weight_transfer_engine",
    "/sleep",
    "/start_draft_weight_update",
    "/start_profile",
    "/start_weight_update",
    "/stop_profile",
    "/tokenizer_info",
    "/unload_lora_adapter",
    "/update_weights",
    "/wake_up",
    "/weight_checker",
    "/weight_info",
    # SGLang
    "/abort_request",
    "/clear_hicache_storage_backend",
    "/close_session",
    "/configure_logging",
    "/continue_generation",
    "/destroy_weights_update_group",
    "/dump_expert_distribution_record",
    "/flush_cache",
    "/freeze_gc",
    "/get_internal_state",
    "/get_server_info",
    "/get_weights_by_name",
    "/init_weights_send_group_for_remote_instance",
    "/init_weights_update_group",
    "/open_session",
    "/pause_generation",
    "/release_memory_occupation",
    "/resume_memory_occupation",
    "/send_weights_to_remote_instance",
    "/set_internal_state",
    "/set_trace_level",
    "/slow_down",
    "/start_expert_distribution_record",
    "/stop_expert_distribution_record",
    "/update_weights_from_disk",
    "/update_weights_from_distributed",
    "/update_weights_from_ipc",
    "/update_weights_from_tensor",
    "/update_weight_version",
    "/weights_checker",
)

_MAX_UNQUOTED = 3
"""Number of times that a path may be percent-decoded, by servers in a chain."""
_USUAL = re.compile(r"[A-Za-z0-9_/-]*")
_SEPARATORS = re.compile(r"[/\\]+")


class DeniedPaths:
    """A set of denied paths that recognizes them in any spelling.

    Only the end of a path is compared, since engines may be mounted below a different path.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = frozenset(tuple(path.strip("/").split("/")) for path in paths)
        self._lengths = {len(path) for path in self._paths}
        self._last = frozenset(path[-1] for path in self._paths)

    def __contains__(self, path: str) -> bool:
        if _USUAL.fullmatch(path) and path.rstrip("/").rpartition("/")[2] not in self._last:
            return False  # nearly every request ends here
        plain = path.partition("?")[0].partition("#")[0]
        for _ in range(_MAX_UNQUOTED + 1):
            if self._is_denied(plain):
                return True
            plain = unquote(plain)
        return False

    def _is_denied(self, path: str) -> bool:
        segments: list[str] = []
        for segment in _SEPARATORS.split(path):
            name = segment.partition(";")[0].strip()  # some servers strip path parameters
            if name == "..":
                del segments[-1:]
            elif name not in ("", "."):
                segments.append(name)
        return any(tuple(segments[-length:]) in self._paths for length in self._lengths)


class PathFacts(NamedTuple):
    """The properties of requests to a path.

    Args:
        api: format of the bodies; opaque for unknown paths.
        encodes: they ask for vectors, scores or labels instead of text.
        unread: their bodies are not read (`bodies.opaque_paths`).
        denied: they are refused.
        stores: the collection of objects that engines store: conversations, files, uploads or
            batches; empty for other paths.
        stored_ids: the id of the object that the path names, if any.
    """

    api: Api
    encodes: bool
    unread: bool
    denied: bool
    stores: str = ""
    stored_ids: tuple[str, ...] = ()


MAX_PATHS, MAX_PATH_CHARS = 256, 128
"""Maximum number and length of cached paths; clients send a handful, all short."""


class Paths(dict[str, PathFacts]):
    """A cache of the properties of paths.

    Args:
        denied: paths reserved for operators.
        opaque: prefixes of paths whose bodies are never read.
    """

    def __init__(self, denied: DeniedPaths, opaque: tuple[str, ...]) -> None:
        super().__init__()
        self._denied = denied
        self._opaque = opaque

    def __missing__(self, path: str) -> PathFacts:
        """Compute and cache the properties of a path."""
        plain = _plain(path)
        stored = _OBJECTS.search(plain)
        facts = PathFacts(
            api_of(path),
            plain.endswith(_ENCODE),
            path.startswith(self._opaque),
            path in self._denied,
            stored[1] if stored else "",
            (stored[2],) if stored and stored[2] else (),
        )
        if len(path) <= MAX_PATH_CHARS:
            if len(self) >= MAX_PATHS:
                self.clear()
            self[path] = facts
        return facts


def api_of(path: str) -> Api:
    """Return the body format of a path; unknown paths are opaque."""
    path = _plain(path)
    return next((api for suffix, api in SUFFIXES if path.endswith(suffix)), Api.OPAQUE)


def model_of(path: str) -> str:
    """Return the model named in a path whose body is not read; empty if none."""
    plain = _plain(path)
    if plain.startswith(_MODELS):
        return plain.removeprefix(_MODELS)
    if plain.endswith("/realtime"):
        return parse_qs(path.partition("?")[2]).get("model", [""])[0]
    return ""


def response_of(method: str, path: str) -> str:
    """Return the id of the stored answer that a request gets, cancels or deletes; empty if none.

    A POST directly below the collection (``/render``, ``/input_tokens``) names no stored answer.
    """
    found = _STORED.search(path)
    return found[1] if found and (found[2] or method != "POST") else ""


def _plain(path: str) -> str:
    """Normalize a path as engines do, so that no spelling bypasses the queue."""
    return unquote(path.partition("?")[0]).rstrip("/")


def denied_path_error() -> RequestError:
    """Return the error for a request to an operator path."""
    return RequestError(403, "denied-path", "this path is for the engine's operators")
