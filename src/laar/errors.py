"""The errors that laar raises deliberately.

LaarError            an error that the reader can act on; the text says what is wrong and what to do
├── SettingError     in the settings, an endpoints file, an artifact or a command's arguments
├── RequestError     in a client's request; carries the HTTP status and a stable reason code
├── ApiError         from a Kubernetes API server (`laar.datalayer.kubernetes.api`)
└── Unreadable       in a batch from another picker (`laar.sharing.batches`)

Exceptions outside this tree, such as `NoRoomError`, are internal to laar and never shown. Anything
else raised is a bug, caught only by the guards that degrade a decision.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from itertools import islice
from typing import TYPE_CHECKING

from laar.faults import Fault

if TYPE_CHECKING:
    from pydantic import ValidationError


class LaarError(Exception):
    """An error that the reader of the message can act on."""


class SettingError(LaarError):
    """An unusable setting, file or argument; the text says where it is and what to do.

    Args:
        text: what is wrong and what to do.
        setting: path of the invalid setting, such as ``listen.tls.key_file``; prefixed to the text.
            `laar.settings.Loaded` prefixes the file and the line.
        fault: the kind of fault, whose remedy follows the text.
    """

    def __init__(self, text: str, *, setting: str = "", fault: Fault | None = None) -> None:
        self.what = f"{setting}: {text}" if setting else text
        """The error without its fault's remedy."""
        super().__init__(self.what if fault is None else f"{self.what}; {fault.fix}")
        self.setting = setting


class RequestError(LaarError):
    """A request that laar answers itself instead of forwarding.

    Args:
        status: HTTP status of the answer.
        reason: stable code for metrics and for the ``x-laar-reason`` header.
        message: text for the client; never contains any part of the prompt.
        retry_after_s: whole seconds after which the client may try again.
    """

    def __init__(
        self, status: int, reason: str, message: str, *, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.retry_after_s = retry_after_s


def install(extra: str) -> str:
    """Return the command that installs an extra from a clone: laar is not on a package index.

    The extra `lab` is a separate distribution, laar-lab.
    """
    target = ". ./engine ./lab" if extra == "lab" else f"'.[{extra}]'"
    return f"in a clone of laar: pip install {target}"


def first_fault(error: ValidationError, whole: str = "the entry") -> str:
    """Return the first error in a value, with its location but without the value's content."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"])) or whole
    return f"{where}: {first['msg'].removeprefix('Value error, ')}"


def some(texts: Collection[str], between: str = ", ") -> str:
    """Return the first five texts, and how many more there are."""
    more = [f"and {len(texts) - 5} more"] if len(texts) > 5 else []
    return between.join([*islice(texts, 5), *more])


def unknown(kind: str, name: object, known: Iterable[str]) -> str:
    """Return the error text for an unknown name, which is the same for all lookups.

    Args:
        kind: kind of thing, such as ``policy``.
        name: the name as given.
        known: the names that exist.
    """
    names = list(map(str, known))
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.75)
    meant = f" (did you mean `{near[0]}`?)" if near else ""
    return f"unknown {kind} `{name}`{meant}; known: {', '.join(names) or 'none'}"
