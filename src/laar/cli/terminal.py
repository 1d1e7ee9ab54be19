"""Shared parts of the commands: options, exit statuses, files, and error reporting."""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from laar.datalayer.files import read_file
from laar.errors import LaarError, SettingError, install
from laar.telemetry.problems import PASSWORD

ConfigFile = Annotated[
    Path, typer.Option("--config", "-c", help="Settings file.", show_default=True)
]
JsonFile = Annotated[
    Path | None, typer.Option("--json", help="Write the figures to this file (JSON).")
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        help="File with the viewers' token of the running picker (decisions.viewers_token_file)."
    ),
]
OutcomesFile = Annotated[Path, typer.Option(help="Outcomes file (JSONL); resumed if it exists.")]
Models = Annotated[
    list[str] | None,
    typer.Option("--model", help="Model to query; repeatable. Default: every served model."),
]
Concurrency = Annotated[
    int,
    typer.Option(
        help="Requests in flight at each endpoint. With 1, the measured times include no queuing.",
        min=1,
    ),
]
MaxTokens = Annotated[int | None, typer.Option(help="Token limit of an answer.", min=1)]
ModesFile = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="Settings file with modes (routing.modes) to ask in, too."),
]
KeyVariable = Annotated[
    str | None, typer.Option(help="Environment variable that holds the API key.")
]

_EXTRA_OF = {
    "cryptography": ("cryptography", "tls"),
    "sklearn": ("scikit-learn", "fit"),
    "zmq": ("pyzmq", "kv-events"),
}
"""The package with a module that may be missing, and the extra that installs it."""

MIN_TABLE_WIDTH = 160  # in a narrower terminal lines wrap, which beats truncated numbers
FAULT = 2
"""Exit status for an error the user can correct."""


@contextmanager
def report_errors() -> Iterator[None]:
    """Print user errors and missing extras, and exit with status 2."""
    try:
        yield
    except ModuleNotFoundError as error:
        package, extra = _EXTRA_OF.get((error.name or "").partition(".")[0], ("", ""))
        if not extra:
            raise
        text = f"this needs the package {package}; {install(extra)}"
    except LaarError as error:
        text = str(error)
    except OSError as error:
        if error.filename is None:
            raise
        text = f"{error.filename}: {error.strerror}"
    else:
        return
    typer.echo(f"laar: {PASSWORD.sub('', text)}", err=True)
    raise typer.Exit(FAULT)


def handle_signals() -> None:
    """Make SIGTERM and SIGHUP end a command and everything it started, as Ctrl-C does.

    Ctrl-C is enabled even if it was ignored, as in a script's background jobs. Commands with their
    own shutdown replace these handlers.
    """
    handlers: dict[signal.Signals, Any] = {signal.SIGINT: signal.default_int_handler}
    handlers[signal.SIGTERM] = lambda *_: signal.raise_signal(signal.SIGINT)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # `nohup` ignores it
        handlers[signal.SIGHUP] = handlers[signal.SIGTERM]
    with suppress(ValueError):  # not in the main thread
        for number, handler in handlers.items():
            signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, handlers)  # the image's entry point blocks SIGTERM


class _Unblocking:
    """stderr for the log; drops lines that nobody reads, since waiting would stop all requests."""

    def __init__(self, handle: int) -> None:
        self._handle, self._dropped, self._room = handle, 0, select.poll()
        self._room.register(handle, select.POLLOUT)

    def write(self, text: str) -> None:
        """Write text in parts that a writable pipe accepts at once."""
        gap = f"\nlog lines dropped because nobody read them in time: {self._dropped}\n"
        data = ((gap if self._dropped else "") + text).encode(errors="backslashreplace")
        while data and self._room.poll(0):
            data = data[os.write(self._handle, data[: select.PIPE_BUF]) :]
        self._dropped = self._dropped + 1 if data else 0


LogFormat = Annotated[Literal["text", "json"], typer.Option(help="Format of the log on stderr.")]


class LogLines(logging.Formatter):
    """Lines of a log, as text or each as a JSON object; times are ISO 8601 with the time zone."""

    def __init__(self, style: Literal["text", "json"]) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._in_json = style == "json"

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        """Return a record's time."""
        return (
            datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds")
        )

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as a line; an exception takes more lines, unless in JSON."""
        if not self._in_json:
            return super().format(record)
        shown = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            shown["exception"] = self.formatException(record.exc_info)
        return json.dumps(shown)  # `orjson` refuses lone surrogates, as in a file's name


def log_to_stderr(style: Literal["text", "json"]) -> None:
    """Configure logging for a long-running command."""
    logging.basicConfig(
        stream=sys.__stderr__ and _Unblocking(sys.__stderr__.fileno()),
        level=logging.INFO,
    )
    for handler in logging.getLogger().handlers:
        handler.setFormatter(LogLines(style))
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def check_places(*files: Path | None) -> None:
    """Reject unwritable output files up front, before a long run.

    Raise `SettingError` if a file is a directory, or its directory is missing.
    """
    for path in files:
        if path and path.is_dir():
            raise SettingError(f"{path} is a directory; give a file")
        if path and not path.parent.is_dir():
            raise SettingError(f"{path}: there is no directory {path.parent}")


def admin_url(place: str) -> str:
    """Return the URL of an admin port given by the user, adding a missing scheme."""
    return (place if "://" in place else f"http://{place}").rstrip("/")


def read_token(path: Path | None) -> str | None:
    """Return the token in a file; None if no file is given.

    Raise `OSError` if the file can't be read, and `SettingError` if the file has several lines.
    """
    if path is None:
        return None
    token = read_file(path).decode("ascii", "replace").strip()
    if not token.isprintable():
        raise SettingError(f"--token-file {path}: not a single token; give the viewers' token")
    return token


def key_headers(key_variable: str | None) -> Mapping[str, str]:
    """Return a header with the API key from an environment variable; empty if none is named.

    Raise `SettingError` if the variable is not set, or its value can't be sent in a header.
    """
    if key_variable is None:
        return {}
    key = os.environ.get(key_variable, "")
    if not key or not key.isprintable():
        why = "contains control characters, such as a line break" if key else "is not set"
        raise SettingError(f"--key-env: the environment variable {key_variable} {why}")
    return {"authorization": f"Bearer {key}"}
