"""Check sharing between pickers: one picker's view of the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from laar.doctor.findings import Finding, Level, fine, warning

_LATE_S = 1.0
_REFUSED = {
    "key": (Level.ERROR, "give all pickers the same share.secret_file"),
    "schema": (Level.WARNING, "run one version of laar"),
}


def sharing_findings(where: str, shown: Mapping[str, Any] | None) -> list[Finding]:
    """Return findings on a picker's view of the others; its problems include the store.

    Args:
        where: the picker.
        shown: the section of `/fleet` on sharing; None if sharing is off.
    """
    if not shown or not shown["connected"]:
        return []
    if not shown["pickers"]:
        remedy = "start another with the same share.url and share.namespace, or remove `share`"
        what = "shares its data, but receives none from other pickers: it is alone"
        return [warning(where, what, remedy)]
    found = []
    for reason, (level, remedy) in _REFUSED.items():
        if count := shown["refused"].get(reason):
            what = f"could not use {count} batches from other pickers, which have another {reason}"
            found.append(Finding(level=level, where=where, what=what, remedy=remedy))
    age_s = float(shown["age_s"])
    if age_s > _LATE_S:
        what = f"records from other pickers are {age_s:.1f} s old, by both machines' clocks"
        found.append(warning(where, what, "check how fast the store answers, and run NTP"))
    what = f"knows {shown['pickers']} more; their records are {1e3 * age_s:.0f} ms old"
    return [*found, fine(where, what)]
