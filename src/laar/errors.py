"""The errors laar raises on purpose.

LaarError            a fault that its reader can act on; the text names the fault and the remedy
├── SettingError     in the settings, an endpoints file, an artifact or a command's arguments
├── RequestError     in a client's request; carries the HTTP status and a stable reason code
├── ApiError         of a Kubernetes API server (`laar.datalayer.kubernetes.api`)
└── Unreadable       a batch of another picker (`laar.sharing.batches`)

Exceptions outside this tree, such as `NoRoomError`, go from one part of laar to another and reach
no reader. Anything else raised is a defect, and is caught only at the guards that degrade a
decision.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LaarError(Exception):
    """A fault that the reader of its text can act on."""


class SettingError(LaarError):
    """A setting, file or argument that cannot be used; the text says where and what to do.

    Args:
        text: the fault, and the remedy.
        setting: path of the setting at fault, as ``listen.tls.key``; it stands before the text.
            `laar.settings.Loaded` puts the file and the line before that.
    """

    def __init__(self, text: str, *, setting: str = "") -> None:
        super().__init__(f"{setting}: {text}" if setting else text)
        self.setting = setting


class RequestError(LaarError):
    """A request that laar answers itself instead of forwarding.

    Args:
        status: HTTP status of the answer.
        reason: stable code for metrics and for the ``x-laar-reason`` header.
        message: text for the client, which never contains any of the prompt.
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
    """Return the remedy for a missing package; laar is on no package index, so from its clone.

    `lab` is the distribution laar-lab.
    """
    target = ". ./lab" if extra == "lab" else f"'.[{extra}]'"
    return f"in a clone of laar: pip install {target}"


def unknown(kind: str, name: object, known: Iterable[str]) -> str:
    """Return the text for a name that does not exist, the same wherever a name is looked up.

    Args:
        kind: kind of thing, such as ``policy``.
        name: the name as given.
        known: the names that exist.
    """
    names = list(map(str, known))
    near = difflib.get_close_matches(str(name), names, n=1)
    meant = f" (did you mean `{near[0]}`?)" if near else ""
    return f"unknown {kind} `{name}`{meant}; known: {', '.join(names) or 'none'}"
