"""The table of faults: each row is used, and the alerts, the runbook and the page agree with it."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from laar.faults import Fault
from laar.settings.listening import Listen

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "laar"
PAGE = SOURCE / "server" / "admin" / "page"
SECTIONS = re.findall(r'<h2 id="([^"]+)"', (PAGE / "runbook.html").read_text())
OF_STATUS = re.findall(r'"((?:clients|\d{3})-[a-z0-9-]+)"', (PAGE / "page.js").read_text())
RULES = yaml.safe_load((ROOT / "deploy/components/rules/rules.yaml").read_text())
ALERTS = [rule for group in RULES["spec"]["groups"] for rule in group["rules"] if "alert" in rule]
PART = "a-part-of-the-picker-has-a-problem"
SEEN_BY_USERS = {
    "the-picker-does-not-start",
    "long-uploads-are-reset",
    "everything-goes-to-one-endpoint",
    "wrong-answers-are-not-retried-elsewhere",
    "reported-outcomes-change-nothing",
}
"""Sections about what laar itself can't notice."""


def test_every_section_is_reached_and_every_link_leads_to_one() -> None:
    of_faults = {fault.section for fault in Fault}
    assert of_faults | {*OF_STATUS} | SEEN_BY_USERS == {*SECTIONS}
    assert not SEEN_BY_USERS & of_faults


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_has_the_remedy_and_the_section_of_a_fault(
    alert: dict[str, Any],
) -> None:
    annotations = alert["annotations"]
    page, _, section = annotations["runbook_url"].partition("#")
    assert page == f"http://{Listen().admin}/runbook"
    assert (annotations["remedy"], section) in {(fault.remedy, fault.section) for fault in Fault}
    left_out = re.findall(r'collector!~"([^"]+)"', alert["expr"])
    assert {name for names in left_out for name in names.split("|")} <= {*Fault}


def test_every_fault_is_noticed_by_laar_or_by_an_alert() -> None:
    text = "".join(path.read_text() for path in SOURCE.rglob("*.py") if path.stem != "faults")
    alerts = {alert["annotations"]["remedy"] for alert in ALERTS}
    unused = [f for f in Fault if f"Fault.{f.name}" not in text and f.remedy not in alerts]
    assert unused == []


def test_the_runbook_says_what_holds_while_a_part_has_a_problem() -> None:
    section = (PAGE / "runbook.html").read_text().partition(f'id="{PART}"')[2].partition("<h2")[0]
    rows = re.findall(r"<td>(<code>.*?)</td>", section)
    named = [name for row in rows for name in re.findall("<code>([^<]+)</code>", row)]
    assert sorted(named) == sorted({f for f in Fault if f.section == PART} - {Fault.PROBLEM})
