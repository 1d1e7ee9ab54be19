"""Which answers are read: a share of them, one after each pause, within a limit on chunks."""

from __future__ import annotations

import random

import pytest

from laar.protocol.sampling import CHUNKS_PER_S, Sampler


def reads(*, share: float, chunks: int, a_second: int = 50, seconds: int = 60) -> tuple[int, int]:
    """Return answers and chunks read from steady traffic."""
    sampler = Sampler(share, every_s=0.25, rng=random.Random(1))
    answers = 0
    for number in range(a_second * seconds):
        now = number / a_second
        if sampler.draw(now):
            answers += 1
            sampler.read(chunks, now)
    return answers, answers * chunks


def test_in_sparse_traffic_up_to_four_answers_a_second_are_read() -> None:
    answers, _ = reads(share=1e-9, chunks=100)
    assert 60 * 3 < answers <= 60 * 4


@pytest.mark.parametrize("chunks", [500, 2000, 20_000])
def test_long_answers_are_read_less_often(chunks: int) -> None:
    answers, read = reads(share=1e-9, chunks=chunks)
    assert answers >= 2
    assert read <= 60 * CHUNKS_PER_S + chunks


def test_the_configured_share_is_read_however_long_the_answers_are() -> None:
    answers, _ = reads(share=1.0, chunks=10_000)
    assert answers == 50 * 60


def test_a_lowered_share_takes_effect_soon() -> None:
    sampler = Sampler(1.0, every_s=0.25, rng=random.Random(1))
    for number in range(1000):
        assert sampler.draw(number / 100)
        sampler.read(5000, number / 100)
    sampler.share = 1e-9
    assert any(sampler.draw(10.0 + after) for after in range(60))


def test_a_share_of_zero_reads_nothing() -> None:
    assert reads(share=0.0, chunks=1) == (0, 0)
