"""Paths of engines that are for operators, not for clients.

vLLM and SGLang serve them on the port that answers requests, many without a key: they put an engine
to sleep, load weights, empty caches, call any method of a worker. A gateway that forwards every
path would hand them to strangers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote

from laar.errors import RequestError

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
"""Rounds of %25 that servers in a row may take off."""
_PLAIN = re.compile(r"[A-Za-z0-9_/-]*")
_SEPARATORS = re.compile(r"[/\\]+")


class DeniedPaths:
    """Recognises denied paths, however they are written.

    A path is denied when its end is: engines may be mounted below another path.

    Args:
        paths: such as `DENIED_PATHS`.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = frozenset(tuple(path.strip("/").split("/")) for path in paths)
        self._lengths = {len(path) for path in self._paths}
        self._last = frozenset(path[-1] for path in self._paths)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeniedPaths) and self._paths == other._paths

    def __hash__(self) -> int:
        return hash(self._paths)

    def __contains__(self, path: str) -> bool:
        if _PLAIN.fullmatch(path) and path.rstrip("/").rpartition("/")[2] not in self._last:
            return False  # nearly every request
        plain = path.partition("?")[0].partition("#")[0]
        for _ in range(_MAX_UNQUOTED):
            if self._ends_so(plain):
                return True
            if "%" not in plain:
                return False
            plain = unquote(plain)
        return self._ends_so(plain)

    def _ends_so(self, path: str) -> bool:
        segments: list[str] = []
        for segment in _SEPARATORS.split(path):
            name = segment.partition(";")[0].strip()  # parameters, as some servers know them
            if name == "..":
                del segments[-1:]
            elif name not in ("", "."):
                segments.append(name)
        return any(tuple(segments[-length:]) in self._paths for length in self._lengths)


def denied_path_error() -> RequestError:
    """The refusal of a request for an operators' path of an engine."""
    return RequestError(403, "denied-path", "this path is for the engine's operators")
