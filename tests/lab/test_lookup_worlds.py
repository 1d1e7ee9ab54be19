"""Look-ups are recognized in every language."""

from __future__ import annotations

from laar_lab.kv_lookup import queries, solve


def test_the_words_of_every_language_are_recognized() -> None:
    for query in queries(languages=["ko", "ru", "ar", "hi", "de", "x-y"], per_cell=1)[::5]:
        found = solve(query.prompt)
        assert found is not None
        assert (found.key, found.value, found.language) == (
            query.key,
            query.answer,
            query.language,
        )
