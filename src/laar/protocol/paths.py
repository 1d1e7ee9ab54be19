"""Request paths: the format of their bodies, and paths that only an engine's operators may use.

Engines serve operator paths on the inference port, many without a key: to put an engine to sleep,
load models, empty caches or call any method of a worker. A gateway that forwards every path would
expose them to anyone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote, unquote_plus

from laar.errors import RequestError
from laar.request import Api

_ENCODERS = {
    "/v1/embeddings": ("/embed", "/embedding", "/encode"),
    "/v1/rerank": ("/rerank", "/reranking", "/score"),
    "/pooling": ("/pooling",),
    "/classify": ("/classify",),
}
"""Routes whose engines read prompts without writing, with the ends of their paths."""
_WRITERS = ("/completions/batch", "/chat")
_OTHERS = (
    *(*sum(_ENCODERS.values(), ()), *_WRITERS),
    # SGLang's, llama.cpp's and vLLM's own
    *("/generate", "/completion", "/infill", "/decisions", "/systemone", "/generative_scoring"),
)
"""Ends of paths with prompts in forms of an engine's own."""

SUFFIXES: tuple[tuple[str, Api], ...] = (
    ("/chat/completions", Api.CHAT),
    ("/completions", Api.COMPLETIONS),
    ("/inference/v1/generate", Api.COMPLETIONS),  # vLLM's, with token ids as input and output
    ("/responses", Api.RESPONSES),
    ("/responses/compact", Api.RESPONSES),
    ("/embeddings", Api.EMBEDDINGS),
    ("/messages", Api.MESSAGES),
    # SageMaker's path for any API; prompts in other forms are priced by their length.
    ("/invocations", Api.CHAT),
    *((end, Api.OTHER) for end in _OTHERS),
)

_CONVERSATIONS, _IMAGES = "/v1/conversations", "/v1/images/generations"
ROUTES: Mapping[str, tuple[str, ...]] = {
    **_ENCODERS,
    "/v1/embeddings": (*_ENCODERS["/v1/embeddings"], "/embeddings"),
    "/v1/audio/transcriptions": ("/transcriptions", "/translations"),
    "/v1/audio/speech": ("/speech",),
    _IMAGES: ("/images/generations", "/images/edits", "/images/variations"),
    _CONVERSATIONS: ("/conversations",),
    "/v1/chat/completions": (*(*_WRITERS, "/count_tokens", "/tokenize", "/detokenize"),),
}
"""Routes that not every engine has, with the ends of the paths that need an engine with it."""
_COMPUTING = "/infer"
"""End of KServe's paths, which only compute; their bodies may be binary."""
ENCODING_ROUTES = tuple(_ENCODERS)
_ENDS = "|".join(sorted({end for end, _ in SUFFIXES}.union(*ROUTES.values()), reverse=True))
_COLLECTIONS = "(?:[a-z]+M|m)odels|deployments|engines"
_ACTIONS = (
    # KServe, Triton, TorchServe and others; SageMaker and Bedrock; Hugging Face
    "/(?:infer|infer_stream|generate_stream|ready|config|stats|metadata|predict|explain|predictions"
    "|async-invoke|(?:invoke|converse)[a-z-]*|pipeline/[a-z-]+)"
    # Gemini and Vertex in camel case, TensorFlow Serving; what follows a colon in a name is neither
    "|(?::|%3[aA])(?:[a-z]+[A-Z][A-Za-z]*|predict|explain|classify|regress)"
)
NAMING_PATH = (
    rf"(?:/[^?]*?)?/(?:model|{_COLLECTIONS})/([^?]+?)(?:/(?:versions|labels)/[^/?]+)?"
    rf"(?:(?:/v[0-9][a-z0-9]*)?(?:/audio|/images|/messages)?(?:{_ENDS})|{_ACTIONS})/?(?:\?.*)?$"
    rf"|(?:/[^?]*?)?/(?:{_COLLECTIONS})/([^?]+?)/?(?:\?.*)?$"
    r"|[^?]*/realtime/?\?(?:.*?&)?(?:model|deployment)=([^&]*).*$"
)
"""A path, with its query, that names the model in one of three groups: a collection, a name and
what is asked of it, below any prefix; a name alone; OpenAI's realtime API. An unknown last word
counts as part of the name, so that no other model gets the request. Envoy uses it as well."""
_NAMING_PATH = re.compile(NAMING_PATH)
_LISTED = re.compile(r"(?:/(?!v[02-9]|v1[^/])[^/]+)*/models(?:/(.+))?")
HEALTH_PATHS = ("/health", "/ping")
"""Beginnings of paths that any endpoint may serve, also if Envoy chooses."""
_STORED = re.compile(r"/responses/([^/?]{1,256})(/[a-z_]+)?/?(?:\?|$)")
_OBJECTS = re.compile(r"/(conversations|files|uploads|batches)(?:/([^/]{1,256})|$)")

DENIED_PATHS = tuple(
    """
    /abort_requests /adapters /collective_rpc /fault_tolerance /finish_weight_update /get_world_size
    /init_weight_transfer_engine /is_paused /is_scaling_elastic_ep /is_sleeping /kv_event_sources
    /load_lora_adapter /metrics /pause /release_kv_cache_memory /reset_encoder_cache /reset_mm_cache
    /reset_prefix_cache /resume /scale_elastic_ep /server_info /shutdown_weight_transfer_engine
    /sleep /start_draft_weight_update /start_profile /start_weight_update /stop_profile
    /tokenizer_info /unload_lora_adapter /update_weights /wake_up /weight_checker /weight_info
    /abort_request /add_external_corpus /begin_weight_update /clear_hicache_storage_backend
    /close_session /configure_logging /continue_generation /destroy_weights_update_group
    /dump_expert_distribution_record /dumper /end_weight_update /flush_cache /freeze_gc
    /get_hicache_l3_cache_layout /get_internal_state /get_remote_instance_transfer_engine_info
    /get_server_info /get_weights_by_name /get_weights_checksum /hicache/storage-backend
    /init_weights_send_group_for_remote_instance /init_weights_update_group /list_external_corpora
    /load_lora_adapter_from_tensors /merge_lora_weights /open_session /pause_generation
    /pd_role_switch /release_memory_occupation /remote_instance_transfer_engine_info
    /remove_external_corpus /resume_memory_occupation /send_weights_to_remote_instance
    /set_internal_state /set_lora /set_trace_level /slow_down /start_expert_distribution_record
    /stop_expert_distribution_record /unmerge_lora_weights /update_weights_from_disk
    /update_weights_from_distributed /update_weights_from_ipc /update_weights_from_tensor
    /update_weights_from_tensor_checker /update_weight_version /weights_checker
    /_resource_governor /kv_cache_events /perf_metrics /release_memory /resume_memory
    /steady_clock_offset
    /distserve /terminate /wakeup
    /cors-proxy /lora-adapters /models/load /models/unload /slots /tools
    /api/blobs /api/copy /api/create /api/delete /api/pull /api/push
    """.split()  # noqa: SIM905 - one per line would fill pages
)
"""Those of vLLM, SGLang, TensorRT-LLM, LMDeploy, llama.cpp and Ollama, in this order."""

_MAX_UNQUOTED = 3
"""Number of times that a path may be percent-decoded, by servers in a chain."""
_LONGEST_CHARS = 2048
"""Longer paths, without query, are denied: no engine has any, and reading them takes long."""
_SEPARATORS = re.compile(r"[/\\]+")


ANY_NAME_PATH = (
    "(?:/v1/models/([^?%;]+?)|(?:/(?:openai|v[0-9][a-z0-9]*))*/(?:deployments|engines|models)"
    f"/([^/?%;]+)(?:/(?:audio|chat|images))?(?:{_ENDS}))/?"
)
"""Pattern of whole paths in which the name of a model may be any word; Envoy reads it too. It is
narrower than `NAMING_PATH`, as denied paths must not match."""
_ANY_NAME = re.compile(ANY_NAME_PATH)


class DeniedPaths:
    """A set of denied paths, and all below them, that recognizes them in any spelling.

    What precedes them is ignored, since engines may be mounted below a different path; but the name
    of a model does not begin a denied path. Paths with `..` or `%uXXXX`, which only some engines
    resolve, and very long ones are denied as well.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        # vLLM and SGLang show their metrics on every path that starts with this word.
        self._paths = [path if path == "/metrics" else f"/{path.strip('/')}/" for path in paths]

    def __contains__(self, path: str) -> bool:
        plain = path.partition("?")[0].partition("#")[0]
        for _ in range(_MAX_UNQUOTED):
            if "%" not in plain or self._is_denied(plain):
                break
            plain = unquote(plain)
        return self._is_denied(plain)

    def _is_denied(self, path: str) -> bool:
        if len(path) > _LONGEST_CHARS or "%u" in path:  # llama.cpp decodes `%uXXXX`
            return True
        # Some servers strip path parameters.
        names = [part.partition(";")[0].strip() for part in _SEPARATORS.split(path)]
        plain = f"/{'/'.join(name for name in names if name not in ('', '.'))}/"
        if "/../" in plain:
            return True
        found = [denied for denied in self._paths if denied in plain]
        naming = _ANY_NAME.fullmatch(plain) if found else None
        if naming is None:
            return bool(found)
        start, end = naming.span(naming.lastindex or 0)
        return any(
            0 <= plain.find(each) < start - 1 or plain.find(each, end) >= 0 for each in found
        )


class PathFacts(NamedTuple):
    """The properties of requests to a path.

    Args:
        api: format of the bodies; opaque for unknown paths.
        unread: their bodies are not read (`bodies.opaque_paths`).
        computes: they only compute an answer, which may be done twice; `/responses` may do more,
            and images take too long.
        route: a route that the engines which serve the path have; empty if not known.
        stores: the collection of objects that engines store: conversations, files, uploads or
            batches; empty for other paths.
        conversation_id: the id of the stored conversation that the path names; empty if none.
        model: the model that the path names; empty if none.
        any_model: any endpoint may answer, whatever it serves (`bodies.any_model_paths`).
    """

    api: Api
    unread: bool
    denied: bool
    computes: bool = False
    route: str = ""
    stores: str = ""
    conversation_id: str = ""
    model: str = ""
    any_model: bool = False


def facts_reader(
    denied: Iterable[str], opaque: tuple[str, ...], any_model: tuple[str, ...] = ()
) -> Callable[[str], PathFacts]:
    """Return a function that returns the properties of a path without its query.

    `denied` lists paths reserved for operators, `opaque` prefixes of paths whose bodies are never
    read, `any_model` of those that need no model.
    """
    denied_paths = DeniedPaths(denied)

    @lru_cache(256)  # clients send a handful, all short
    def facts_of(path: str) -> PathFacts:
        plain, api = _plain(path), api_of(path)
        stored = _OBJECTS.search(plain)
        route = next((route for route, ends in ROUTES.items() if plain.endswith(ends)), "")
        return PathFacts(
            api,
            path.startswith(opaque),
            path in denied_paths,
            api not in (Api.OPAQUE, Api.RESPONSES)
            or route not in ("", _CONVERSATIONS, _IMAGES)
            or plain.endswith(_COMPUTING),
            route,
            stored[1] if stored else "",
            stored[2] or "" if stored and stored[1] == "conversations" else "",
            model_of(path),
            path.startswith((*opaque, *any_model)) or bool(stored),
        )

    return facts_of


def api_of(path: str) -> Api:
    """Return the body format of a path; unknown paths are opaque."""
    path = _plain(path)
    return next((api for suffix, api in SUFFIXES if path.endswith(suffix)), Api.OPAQUE)


def model_of(path: str) -> str:
    """Return the model named in a path, which outranks one in the body; empty if none."""
    found = _NAMING_PATH.match(path[:_LONGEST_CHARS].rstrip("\n"))
    if found is None:
        return ""
    return unquote(found[1] or found[2] or "") or unquote_plus(found[3] or "")


def listed_of(path: str) -> str | None:
    """Return the model that a GET of OpenAI's lists asks for; empty for all, None for no list."""
    plain = _plain(path)
    found = _LISTED.fullmatch(plain)
    if found is None or found[1] is None:
        return None if found is None else ""
    name = model_of(path)
    return name if name and plain.endswith(f"/{name}") else None


def response_of(method: str, path: str) -> str:
    """Return the id of the stored answer that a request gets, cancels or deletes; empty if none.

    A POST directly below the collection (``/render``, ``/input_tokens``) names no stored answer.
    """
    found = _STORED.search(path)
    return found[1] if found and (found[2] or method != "POST") else ""


def _plain(path: str) -> str:
    """Normalize a path as engines do, so that no spelling bypasses the queue.

    Starlette, and so vLLM, ignores a newline at the end.
    """
    return unquote(path.partition("?")[0][:_LONGEST_CHARS]).rstrip("/\n")


DENIED_ERROR = RequestError(403, "denied-path", "this path is for the engine's operators")
