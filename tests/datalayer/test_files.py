"""Files of the operator that are devices or pipes; files that are replaced whole."""

import errno
import os
import threading
from pathlib import Path

import pytest

from laar.datalayer import files
from laar.datalayer.files import read_file, replace_file


def test_an_endless_device_is_refused() -> None:
    with pytest.raises(OSError, match="larger than 1000 bytes"):
        read_file(Path("/dev/zero"), 1000)


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


def test_a_device_or_pipe_is_never_replaced_by_a_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/null")):
        with pytest.raises(OSError, match="not a regular file"):
            replace_file(path, b"state")
    assert pipe.is_fifo()
    assert Path("/dev/null").is_char_device()


def test_a_replaced_file_is_readable_only_by_its_owner(tmp_path: Path) -> None:
    file = tmp_path / "state"
    file.write_bytes(b"old")
    file.chmod(0o644)
    replace_file(file, b"new")
    assert file.read_bytes() == b"new"
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [file]


def test_content_that_does_not_fit_on_the_disk_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "state"
    file.write_bytes(b"old")

    def full(_handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        replace_file(file, b"new")
    assert list(tmp_path.iterdir()) == [file]
    assert file.read_bytes() == b"old"


def test_a_file_may_be_replaced_while_another_process_replaces_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers save at the same interval; in containers, each picker is process 1."""
    file, sync = tmp_path / "state", os.fsync

    def while_another_replaces(handle: int) -> None:
        sync(handle)
        monkeypatch.setattr("os.fsync", sync)
        replace_file(file, b"longer than that")

    monkeypatch.setattr("os.fsync", while_another_replaces)
    replace_file(file, b"the last")
    assert file.read_bytes() == b"the last"
    assert list(tmp_path.iterdir()) == [file]
