"""Operator paths are denied, even if they are disguised."""

import json
import re
from pathlib import Path
from urllib.parse import quote

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laar.core.decision import Enforcement
from laar.protocol.events import Immediate, RequestHeaders, Shape
from laar.protocol.paths import ANY_NAME_PATH, DENIED_PATHS, DeniedPaths, api_of, model_of
from laar.protocol.stream import Environment, Stream, StreamSettings
from laar.request import Api
from support.paths import FORMS, PREFIXES

DENIED = DeniedPaths(DENIED_PATHS)


@pytest.mark.parametrize(
    "path",
    [
        *DENIED_PATHS,
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter?x=/v1/models",
        "/sleep?level=1",
        "/sleep/",
        "//sleep",
        "/./sleep",
        "/v1/../sleep",
        "/v1/models/../../sleep",
        "/../../sleep",
        "/%73leep",
        "/%73%6C%65%65%70",
        "/%2573leep",
        "/v1%2f..%2fsleep",
        "/\\sleep",
        "/sleep;x=1",
        "/sleep%3Fx",
        "/root-path/collective_rpc",
        "/sleep#x",
        "/sleep%0A",
        "/sleep/..",
        "/v1/../../elsewhere",
        "/v1/%2e%2e/%252e%252e/elsewhere",
        "/v1/..%5celsewhere",
        "/..;/elsewhere",
        "/metrics/x",
        "/metricsx",
        "/root-path/metrics%2Fx",
        "/adapters/sql-lora",
        "/root-path/fault_tolerance//apply",
        "/slots;x/0?action=erase",
        "/%u0073leep",
        "/s%25u006ceep",
        "/long" * 1000,
    ],
)
def test_an_operator_path_is_recognized_in_any_spelling(path):
    if path == "/sleep%3Fx":
        assert path not in DENIED  # for the engine this is the path `sleep?x`, which does not exist
    else:
        assert path in DENIED


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "",
        "/v1/chat/completions",
        "/v1/models",
        "/v1/models/sleepy",
        "/health",
        "/tokenize",
        "/v1/audio/transcriptions",
        "/asleep/well",
        "/v1/embeddings?q=/sleep",
        "/load",
        "/%",
        "/%zz",
        "/%ff%fe",
        "/v1/models/a..b",
        "/v1/realtime?model=" + "m" * 10_000,
    ],
)
def test_other_paths_pass(path):
    assert path not in DENIED


SERVED = json.loads((Path(__file__).parent / "engine_routes.json").read_text())
"""Paths that released engines serve; `python deploy/engine_names.py` renews them."""


@pytest.mark.parametrize("base", ["", "/base", "/v1/base/"])
def test_every_path_that_engines_serve_is_priced_denied_or_known_to_need_neither(base):
    paths = {kind: [base + path for path in SERVED[kind]] for kind in SERVED if kind != "packages"}
    assert not paths["unreviewed"]
    for kind in ("prompts", "others", "operators"):
        assert {path for path in paths[kind] if path in DENIED} == (
            set(paths[kind]) if kind == "operators" else set()
        )
    assert [path for path in paths["prompts"] if api_of(path) is Api.OPAQUE] == []
    assert [path for path in paths["others"] if api_of(path) is not Api.OPAQUE] == []


WORDS = [path.strip("/") for path in DENIED_PATHS]
OPERATORS = st.sampled_from([*WORDS, "metrics-bot", "metricsx"])
NAMES = st.one_of(OPERATORS, st.from_regex(r"[a-z][a-z0-9._-]{0,8}", fullmatch=True))
COLLECTIONS = st.sampled_from(["deployments", "engines", "models"])
BASES = st.sampled_from(["", "/openai", "/v1", "/openai/v1", "/v1beta"])
ENDS = st.sampled_from(["/chat/completions", "/completions", "/images/generations", "/embeddings"])


@given(BASES, COLLECTIONS, NAMES.filter(lambda name: "/" not in name), ENDS)
def test_a_model_may_have_any_name(base, collection, name, end):
    for path in (
        f"{base}/{collection}/{name}{end}",
        f"/v1/models/{name}",
        f"/v1/models/a/{name}/b",
    ):
        assert path not in DENIED, path
        assert re.fullmatch(ANY_NAME_PATH, path), path


@given(BASES, COLLECTIONS, NAMES, st.sampled_from(WORDS), ENDS)
def test_operator_paths_around_the_name_of_a_model_are_denied(base, collection, name, word, end):
    for path in (
        f"/{word}{base}/{collection}/{name}{end}",
        f"{base}/{collection}/{name}/{word}",
        f"{base}/{collection}/a/{word}{end}",
        f"/{name}/{word}",
        f"/{name}/{word}/{name}",
        f"/v1/{word}/models/{name}",
    ):
        if not path.startswith("/v1/models/"):
            assert path in DENIED, path
            assert re.fullmatch(ANY_NAME_PATH, path) is None, path


MODELS = st.text(
    st.characters(min_codepoint=33, max_codepoint=0x2FF, exclude_characters="?%;#\\"), min_size=1
).filter(lambda name: api_of(name) is Api.OPAQUE and model_of(f"/v1/models/{quote(name)}") == name)


@pytest.mark.parametrize("form", FORMS)
@given(
    prefix=st.sampled_from([*PREFIXES, "/v1", "/%C3%A9/b"]),
    name=MODELS,
    safe=st.sampled_from(["", "/", "/:@!"]),
)
def test_the_model_in_a_path_is_found_in_any_form_below_any_prefix(form, prefix, name, safe):
    assert model_of(prefix + form.format(quote(name, safe))) == name


def test_an_operators_own_list_applies_to_collections_of_models():
    denied = DeniedPaths(["/v1/models", "/deployments/secret"])
    assert all(p in denied for p in ("/v1/models/a", "/deployments/secret/chat/completions"))
    assert "/deployments/a/chat/completions" not in denied


PATH = "/v1/tune/chat/completions?level=2"


@pytest.mark.parametrize("share", [1.0, 0.0])
@pytest.mark.parametrize(
    "first",
    [
        *(
            RequestHeaders({":path": PATH, ":method": method}, method == "GET", shape)
            for shape in (Shape.NATIVE, Shape.STREAMED, Shape.GATEWAY)
            for method in ("GET", "POST")
        ),
        # sent if Envoy keeps the headers
        RequestHeaders({":path": PATH}, False, Shape.NATIVE, body=b"no JSON"),
    ],
)
def test_an_operator_path_is_refused_in_openais_format_even_in_shadow_mode(first, share):
    stream = Stream(
        Environment(
            settings=StreamSettings(denied_paths=("/tune/chat/completions",)),
            new_id=lambda: "id",
            enforced=Enforcement(enforce_share=share).enforces,
        )
    )
    (refused,) = stream.receive(first, 0.0)
    assert isinstance(refused, Immediate)
    assert refused.status == 403
    assert orjson.loads(refused.body)["error"]["code"] == "denied-path"


@pytest.mark.parametrize("end", ["/", "//", "%2F", "%0A", "/%0a?x"])
def test_a_prompt_is_read_despite_a_path_suffix_that_engines_ignore(end):
    assert api_of(f"/v1/chat/completions{end}") is Api.CHAT
