"""The simulated models: the fleet file's accuracies, correlated failures, reproducible answers."""

from __future__ import annotations

from pathlib import Path
from statistics import mean

import pytest
import yaml

from laar.errors import SettingError
from laar_lab.kv_lookup import queries
from laar_lab.sim.answers import AccuracySurface, Answerer

SURFACE = AccuracySurface.load()


def solved(surface: AccuracySurface, model: str, count: int, length: int = 32768) -> list[bool]:
    return [surface.is_correct(model, f"key-{n}", "ja", length) for n in range(count)]


def test_the_share_of_correct_answers_is_the_accuracy_of_the_cell() -> None:
    for model in SURFACE.models:
        expected = SURFACE.accuracy(model, "ja", 32768)
        # 4 standard errors of a share from 5000 draws are below 0.03.
        assert mean(solved(SURFACE, model, 5000)) == pytest.approx(expected, abs=0.03)


def test_failures_are_correlated_as_configured() -> None:
    """Two models with accuracy 1/2 are both correct with probability 1/4 + arcsin(r) / (2 pi)."""
    half = {"seconds_per_token": 1e-4, "decode_s_per_token": 0.01, "accuracy": {"en": [0.5]}}
    surface = AccuracySurface.model_validate(
        {
            "lengths_tokens": [4096],
            "languages": ["en"],
            "difficulty_correlation": 0.3,
            "answer_tokens": 1,
            "models": {"a": half, "b": half},
        }
    )
    both = [
        surface.is_correct("a", f"k{n}", "en", 1) and surface.is_correct("b", f"k{n}", "en", 1)
        for n in range(20_000)
    ]
    arcsin_03 = 0.30469265401539
    assert mean(both) == pytest.approx(0.25 + arcsin_03 / (2 * 3.14159265), abs=0.013)


@pytest.mark.parametrize("model", SURFACE.models)
def test_answers_are_correct_exactly_if_the_accuracy_surface_says_so(model: str) -> None:
    answerer = Answerer(SURFACE, model)
    verdicts = set()
    for query in queries(lengths_tokens=[8192, 65536], per_cell=3, seed=1):
        prompt = query.prompt
        answer = answerer.answer(prompt)
        assert answer == answerer.answer(prompt)
        right = SURFACE.is_correct(model, query.key, query.language, query.length_tokens)
        assert (query.answer in answer) == right
        value = answer.removeprefix("The value is ").removesuffix(".")
        assert f': "{value}"' in prompt
        verdicts.add(right)
    assert verdicts == {True, False}


def test_a_wrong_answer_is_the_key_if_there_is_no_other_value() -> None:
    (query,) = queries(languages=["en"], lengths_tokens=[4096], per_cell=1)
    prompt = query.prompt
    head, tail = prompt.index("{") + 1, prompt.rindex("}")
    one_pair = f'{prompt[:head]}"{query.key}": "{query.answer}"{prompt[tail:]}'
    wrong = AccuracySurface.model_validate(
        {
            **SURFACE.model_dump(),
            "models": {
                "m": {
                    **SURFACE.models["phi3-mini"].model_dump(),
                    "accuracy": {language: [0.0] * 5 for language in SURFACE.languages},
                }
            },
        }
    )
    assert Answerer(wrong, "m").answer(one_pair) == f"The value is {query.key}."


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"lengths_tokens": [8192, 4096]}, "ascend"),
        ({"languages": ["en", "ko"]}, "ko"),
        ({"difficulty_correlation": 1.5}, "difficulty_correlation"),
        ({"difficulty_correlation": float("nan")}, "difficulty_correlation"),
        ({"surprise": 1}, "surprise"),
        ({"models": {}}, "models"),
    ],
)
def test_an_invalid_fleet_file_is_rejected_by_name(
    tmp_path: Path, change: dict[str, object], complaint: str
) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(yaml.safe_dump(SURFACE.model_dump() | change))
    with pytest.raises(SettingError, match=complaint) as fault:
        AccuracySurface.load(path)
    assert str(path) in str(fault.value)
