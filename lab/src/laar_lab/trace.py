"""Read request traces in the format of Mooncake and GORGO: JSON lines, gzipped or not.

A line has `timestamp` (ms), `input_length`, `output_length` (tokens) and `hash_ids`, one per block
of 512 prompt tokens; equal ids mean equal prompts up to that block. An optional `session` is read
too; all other fields (such as an embedded `request`) are ignored. Times are relative to the first
line. Lines are read when due, so a trace of any length takes only the memory of one line.
"""

from __future__ import annotations

import gzip
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import orjson

from laar.errors import SettingError
from laar_lab.sim.fleet import BLOCK_TOKENS, Arrival, Prompt

Entry: TypeAlias = "dict[str, Any]"
"""The JSON object of a line, not yet validated."""

TRACE_BLOCK_TOKENS = 512
"""Mooncake's block size."""

MAX_LINE_BYTES = 16 << 20
"""Enough for a request body of the longest context served, with its ids."""

MAX_TOKENS = 1 << 24
"""Maximum number of tokens in one prompt or answer."""

MAX_LENGTH_S = 366 * 86_400.0
"""One year. The virtual fleet probes and scrapes during the whole trace, so a long trace takes a
while."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MASK = (1 << 64) - 1


def read_trace(
    path: Path, *, time_scale: float = 1.0, block_tokens: int = TRACE_BLOCK_TOKENS
) -> Iterator[Arrival]:
    """Yield the requests in order.

    Args:
        path: the file.
        time_scale: factor for the time between requests; above 1 means a lighter load.
        block_tokens: prompt tokens per entry of `hash_ids`, a multiple of 16.

    Raises:
        SettingError: the file can't be read, or a line is invalid; the message names the line and
            field.
    """
    check_block(block_tokens)
    if not time_scale > 0:
        raise SettingError(f"time scale {time_scale}: give a number above 0")
    scale = time_scale / 1e3
    first_ms = None
    for where, entry, at_ms in timed(path):
        first_ms = at_ms if first_ms is None else first_ms
        yield Arrival(
            at_s=(at_ms - first_ms) * scale,
            prompt=lengths(entry, where).prompt(block_tokens),
            session=session_of(entry) or "",
        )


def timed(path: Path) -> Iterator[tuple[str, Entry, float]]:
    """Yield the file's objects like `entries`, each with its time in milliseconds.

    Raises:
        SettingError: as for `entries`; or a time is missing, decreases, or is far from the first.
    """
    first_ms, last_ms = None, 0.0
    for where, entry in entries(path):
        if "timestamp" not in entry and session_of(entry) is not None:
            raise SettingError(
                f"{where}: a session's request without `timestamp`; `laar lab replay "
                "--closed-loop` sends recorded sessions"
            )
        at_ms = number(entry, "timestamp", where)
        if at_ms < last_ms:
            raise SettingError(f"{where}: `timestamp` goes back; sort the trace")
        first_ms = at_ms if first_ms is None else first_ms
        if at_ms - first_ms > 1e3 * MAX_LENGTH_S:
            raise SettingError(
                f"{where}: `timestamp` is more than a year after the first; it counts milliseconds"
            )
        last_ms = at_ms
        yield where, entry, at_ms


def entries(path: Path) -> Iterator[tuple[str, Entry]]:
    """Yield the file's objects, each with a description of where it is in the file.

    Raises:
        SettingError: the file can't be read, or a line is too long or not a JSON object.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            line_number = 0
            while line := file.readline(MAX_LINE_BYTES):
                line_number += 1
                if line.strip():
                    where = f"{path}, line {line_number}"
                    yield where, _entry(line, where)
    except (EOFError, zlib.error) as error:
        raise SettingError(f"{path}: an incomplete or invalid gzip file: {error}") from None
    except OSError as error:
        raise SettingError(f"{path}: {error.strerror or error}") from None


def _entry(line: bytes, where: str) -> Entry:
    if len(line) == MAX_LINE_BYTES:
        raise SettingError(f"{where}: longer than {MAX_LINE_BYTES >> 20} MiB")
    try:
        entry = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise SettingError(f"{where}: not JSON: {error}") from None
    if not isinstance(entry, dict):
        raise SettingError(f"{where}: not a JSON object")
    return entry


@dataclass(frozen=True, slots=True)
class Lengths:
    """A line's lengths in tokens and its ids of long blocks, which take less memory than a prompt.

    Args:
        prompt_tokens: `input_length`.
        output_tokens: `output_length`, at least 1.
        ids: `hash_ids`, modulo 2^64.
    """

    prompt_tokens: int
    output_tokens: int
    ids: array[int]

    def prompt(self, block_tokens: int, salt: int = 0) -> Prompt:
        """Return the prompt to send; prompts with different salts share nothing."""
        # The id of a long block becomes the ids of its short blocks; a last, partial block has
        # only the ids of its full short blocks.
        stride = block_tokens // BLOCK_TOKENS
        long = np.frombuffer(self.ids, np.uint64) + np.uint64(salt & _MASK)
        short = (long[:, None] * np.uint64(stride) + np.arange(stride, dtype=np.uint64)) * _GOLDEN
        blocks = array("Q")
        blocks.frombytes(short.reshape(-1)[: self.prompt_tokens // BLOCK_TOKENS].tobytes())
        return Prompt(
            prompt_tokens=self.prompt_tokens, output_tokens=self.output_tokens, blocks=blocks
        )


def lengths(entry: Entry, where: str) -> Lengths:
    """Return the lengths and ids in a line; raise SettingError if one is missing or invalid."""
    tokens = whole(entry, "input_length", where, least=1)
    output = whole(entry, "output_length", where, least=0)
    ids = entry.get("hash_ids")
    if not isinstance(ids, list) or not all(type(item) is int for item in ids):
        raise SettingError(f"{where}: `hash_ids` must be a list of whole numbers")
    return Lengths(tokens, max(1, output), array("Q", [item & _MASK for item in ids]))


def check_block(block_tokens: int) -> None:
    """Raise SettingError for a block size that is not a multiple of the lab's."""
    if block_tokens < BLOCK_TOKENS or block_tokens % BLOCK_TOKENS:
        raise SettingError(f"trace blocks of {block_tokens} tokens: give a multiple of 16")


def session_of(entry: Entry) -> str | None:
    """Return a line's session, a string or a whole number, as a string; None if there is none."""
    name = entry.get("session")
    return str(name) if isinstance(name, str) or type(name) is int else None


def number(entry: Entry, name: str, where: str, *, most: float = 1e15) -> float:
    """Return a number from a line, 0 to `most`; raise SettingError if it is not one."""
    value = entry.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
        raise SettingError(f"{where}: `{name}` must be a number, 0 to {most:g}")
    return value


def whole(entry: Entry, name: str, where: str, *, least: int) -> int:
    """Return a whole number from a line, `least` to `MAX_TOKENS`; raise SettingError otherwise."""
    value = entry.get(name)
    if type(value) is not int or not least <= value <= MAX_TOKENS:
        raise SettingError(f"{where}: `{name}` must be a whole number, {least} to {MAX_TOKENS}")
    return value
