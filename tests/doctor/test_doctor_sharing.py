"""Findings of `laar doctor` on sharing: the records of other pickers."""

import pytest

from laar.doctor import Level
from laar.doctor.doctor import sharing_findings

WELL = {"connected": True, "pickers": 2, "age_s": 0.004, "waiting_bytes": 0, "refused": {}}


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        (None, {}),
        (WELL | {"connected": False}, {}),  # already among the picker's problems
        (WELL, {Level.OK: "other pickers: 2; their records are 4 ms old"}),
        (WELL | {"pickers": 0}, {Level.WARNING: "it is alone"}),
        (WELL | {"age_s": 3.0}, {Level.WARNING: "3.0 s old", Level.OK: "3000 ms old"}),
        (WELL | {"refused": {"key": 7}}, {Level.ERROR: "7 batches", Level.OK: "4 ms"}),
        (WELL | {"refused": {"schema": 1}}, {Level.WARNING: "schema", Level.OK: "4 ms"}),
    ],
)
def test_sharing_yields_findings_about_other_pickers(shown, said):
    findings = {finding.level: finding.what for finding in sharing_findings("picker", shown)}
    assert findings.keys() == said.keys()
    for level, text in said.items():
        assert text in findings[level]
