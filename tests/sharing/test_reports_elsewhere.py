"""An outcome may be reported to any picker: it is passed to the one that decided."""

from laar.accuracy.capability import CapabilityModel
from laar.accuracy.features import Features
from laar.accuracy.online import OnlineOutcomes
from laar.accuracy.reports import OutcomeReports, Verdict
from laar.sharing.snapshot import read_snapshot, restore, snapshot
from support.pickers import Network, sharing_picker

CELL = Features("en", 1024, "qa")


def pair():
    made = []
    for name in ("p/1", "q/1"):
        online = OnlineOutcomes(CapabilityModel())
        reports = OutcomeReports(online)
        made.append(
            sharing_picker(
                name,
                ("10.0.0.1:80",),
                online=online,
                reports=reports,
            )
        )
    net = Network(made)
    for _ in range(2):
        net.exchange(0.0)
    return (*made, net)


def decided(picker, number):
    name = f"{picker.tag}{number:032x}"
    picker.reports.decided(name, "m", CELL, ())
    return name


def outcomes(picker, now):
    return {name: round(known.outcomes, 3) for name, known in picker.online.by_model(now).items()}


def test_a_report_reaches_the_picker_that_decided_and_affects_all():
    p, q, net = pair()
    name = decided(p, 1)
    assert q.reports.report(name, False, 1.0) is Verdict.PASSED
    net.exchange(1.01)
    net.exchange(1.02)
    assert p.reports.outcome_of(name) is False
    assert p.reports.verdicts[Verdict.TAKEN] == 1
    assert outcomes(p, 1.1) == outcomes(q, 1.1) == {"m": 1.0}


def test_what_repeats_are_worth_is_known_to_all_and_after_a_restart():
    p, q, net = pair()
    for correct in (True, False, False, False, False, False):
        p.online.observe("m", CELL, correct, 1.0, tried=("m",))
    net.exchange(1.01)
    net.exchange(1.02)
    fresh = sharing_picker("fresh/1", ("10.0.0.1:80",), online=OnlineOutcomes())
    restore(fresh, read_snapshot(snapshot(q, 1.1, with_key=True)(), "laar"), 1.2)
    learned = [each.online.repeats.share("m") for each in (p, q, fresh)]
    assert learned == [learned[0]] * 3
    assert learned[0] < 0.6 < fresh.online.repeats.share("another")


def test_a_report_counts_once_even_if_sent_to_several_pickers():
    p, q, net = pair()
    name = decided(p, 1)
    assert p.reports.report(name, True, 1.0) is Verdict.TAKEN
    for correct in (True, False, True):
        assert q.reports.report(name, correct, 1.0) is Verdict.PASSED
    for step in range(3):
        net.exchange(1.1 + step / 100)
    assert outcomes(p, 1.2) == outcomes(q, 1.2) == {"m": 1.0}
    assert p.reports.verdicts[Verdict.REPEATED] == 2
    assert p.reports.verdicts[Verdict.CONTRADICTORY] == 1


def test_an_unknown_id_is_forwarded_to_no_picker():
    p, q, net = pair()
    name = decided(p, 1)
    for unknown in ("", "x", q.tag + "0" * 32, name + "0" * 100, "ffffff" + "0" * 32):
        assert q.reports.report(unknown, True, 1.0) is Verdict.UNKNOWN
    p.leaving()
    net.exchange(1.01)
    assert q.reports.report(name, True, 1.02) is Verdict.UNKNOWN
    assert not q.outbox.waiting_bytes


def test_a_report_on_a_forgotten_decision_is_not_forwarded():
    p, q, net = pair()
    assert q.reports.report(p.tag + "0" * 32, True, 1.0) is Verdict.PASSED
    net.exchange(1.01)
    net.exchange(1.02)
    assert not p.reports.verdicts
    assert q.outbox.sent["judged"] == 1
    assert p.outbox.sent["judged"] == 0
