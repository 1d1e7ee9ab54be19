"""Problems are remembered, counted and logged, but not too often."""

import logging

import pytest

from laar.faults import Fault
from laar.telemetry.problems import MAX_PROBLEMS, Problems


@pytest.fixture
def logged(caplog):
    caplog.set_level(logging.INFO)
    return lambda: [record.getMessage() for record in caplog.records]


def test_the_text_of_another_program_cannot_control_a_terminal_or_fill_the_page(logged):
    problems = Problems()
    problems.report(Fault.SHARE, "the store says \x1b]0;title\x07 \x9b31m \r\b, the fix:\n  a line")
    assert problems["share"] == "the store says  ]0;title   31m   , the fix:\n  a line"
    assert logged() == [f"share: {problems['share']}; {Fault.SHARE.fix}"]
    problems.report(Fault.SHARE, "x" * 1_000_000)
    assert len(problems["share"]) < 10_000


@pytest.mark.parametrize(("end", "told"), [(None, "works again"), ("", "no longer watched")])
def test_a_problem_and_its_end_are_logged_once_each(logged, end, told):
    problems = Problems()
    for message in ("full", "full", "gone", end, end):
        problems.report(Fault.DECISION_LOG, message)
    said = [f"{what}; {Fault.DECISION_LOG.fix}" for what in ("full", "gone")] + [told]
    assert logged() == [f"decision-log: {what}" for what in said]
    assert not problems


@pytest.mark.parametrize("user", ["me:secret", "me:the@secret", "secret"])
def test_a_password_in_a_url_is_not_shown(logged, user):
    problems = Problems()
    problems.report(Fault.SCRAPE, f"http://{user}@a:1/metrics answered 401, not 200", "a:1")
    assert [*problems.values()] == ["http://a:1/metrics answered 401, not 200"]
    assert "secret" not in "".join(logged())


def test_every_report_is_counted_by_kind(logged):
    problems = Problems()
    for name in ("a:1", "b:1", "a:1"):
        problems.report(Fault.SCRAPE, "no answer", name)
    problems.report(Fault.EDS, "no answer")
    assert problems.counts == {"scrape": 3, "eds": 1}
    assert dict(problems) == dict.fromkeys(("scrape a:1", "scrape b:1", "eds"), "no answer")


def test_a_fleet_that_vanishes_does_not_flood_the_log(logged):
    problems = Problems()
    for _ in range(3):
        for number in range(2 * MAX_PROBLEMS):
            problems.report(Fault.PROBE, "no answer", f"10.0.{number // 256}.{number % 256}:80")
    assert len(logged()) == len(problems) == MAX_PROBLEMS
    assert problems.counts["probe"] == 6 * MAX_PROBLEMS
