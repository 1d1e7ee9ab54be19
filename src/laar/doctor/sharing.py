"""Check sharing between pickers: the store, and one picker's view of the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from laar.doctor.findings import Finding, Level, error, fine, warning
from laar.errors import SettingError
from laar.server.sharing.store import Store, StoreError
from laar.settings.section import part
from laar.settings.share import Share
from laar.sharing.settings import SharingSettings

_LATE_S = 1.0
_REFUSED = {
    "key": (Level.ERROR, "give all pickers the same share.secret_file"),
    "schema": (Level.WARNING, "run one version of laar"),
}


async def store_findings(share: Share) -> list[Finding]:
    """Return findings on the store in the settings; none if there is no store."""
    if share.url is None:
        return []
    where = f"store {share.url}"
    settings = part(SharingSettings, share)
    try:
        store = Store(share, settings, origin="doctor", secret=b"")
    except SettingError as fault:
        return [Finding(level=Level.ERROR, where=where, what=str(fault))]
    try:
        seen = await store.probe()
    except StoreError as fault:
        remedy = "start it, or check share.url, its password and its certificates"
        what = f"{fault}: each picker continues alone"
        return [error(where, what, remedy)]
    finally:
        await store.close()
    answers = f"answers in {1e3 * seen.took_s:.1f} ms"
    if seen.record_age_s is None or seen.record_age_s > settings.lease_s:
        since = "never" if seen.record_age_s is None else f"{seen.record_age_s:.0f} s ago"
        what = (
            f"{answers}, but a picker of namespace {settings.namespace} last wrote to it: {since}"
        )
        remedy = "start the pickers, or give them this share.url and share.namespace"
        return [warning(where, what, remedy)]
    what = f"{answers}; its last record is {1e3 * seen.record_age_s:.0f} ms old"
    return [fine(where, what)]


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
        remedy = "check how fast the store answers, and run NTP"
        found.append(warning(where, what, remedy))
    what = f"knows {shown['pickers']} more; their records are {1e3 * age_s:.0f} ms old"
    return [*found, fine(where, what)]
