"""Files of the operator that are devices or pipes."""

import os
import threading
from pathlib import Path

import pytest

from laar.datalayer import files
from laar.datalayer.files import read_file


def test_an_endless_device_is_refused() -> None:
    with pytest.raises(OSError, match="larger than 1000 bytes"):
        read_file(Path("/dev/zero"), 1000)


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        read_file(tmp_path)


def test_an_impossible_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="null byte"):
        read_file(tmp_path / "a\0b")


def test_a_pipe_without_a_writer_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_PIPE_MS", 1)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="nothing is written"):
        read_file(tmp_path / "pipe")


def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def write() -> None:
        with pipe.open("wb", buffering=0) as file:
            for _ in range(3):
                file.write(b"x" * 70_000)  # more than a pipe can buffer

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert read_file(pipe) == b"x" * 210_000
    finally:
        writer.join()
