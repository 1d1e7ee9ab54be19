"""Explain why an endpoint was picked, in one readable sentence."""

from __future__ import annotations

import numpy as np

from laar.core.cost import Terms
from laar.core.decision import Decision
from laar.core.eligible import Cause
from laar.core.exploring import EXPLORE, TRY
from laar.core.interfaces import View
from laar.core.picker import NEAR_TIE
from laar.core.picker import ranking as by_score
from laar.explain.decision_record import DecisionRecord

_MUCH = 1.2  # smaller ratios are not mentioned

_LANGUAGES = {
    "en": "Latin-script text",
    "ja": "Japanese",
    "zh": "Chinese",
    "ko": "Korean",
    "ru": "Cyrillic-script text",
    "ar": "Arabic",
    "he": "Hebrew",
    "hi": "Hindi",
    "th": "Thai",
    "el": "Greek",
}


def sentence(record: DecisionRecord) -> str:
    """Return why the picked endpoint won, what failed, and where the prompt is prefilled."""
    return _who_won(record) + _elsewhere(record.decision)


def _elsewhere(decision: Decision) -> str:
    """Return what happens before the answer: who prefills the prompt, and what is pulled."""
    said, at, view = "", decision.position, decision.view
    if view is not None and view.apart is not None and view.apart.saved_s is not None:
        saved_s = float(view.apart.saved_s[at])
        if decision.prefiller is not None:
            way = f"costs {_seconds(saved_s)} less" if saved_s > 0.0 else "costs no less"
            address = decision.prefiller.address
            said += f" {address} prefills the prompt, which {way} than at the endpoint itself."
        elif saved_s > 0.0:
            said += f" It prefills the prompt itself, which costs {_seconds(saved_s)} less."
    if (pull := decision.pull) is not None:
        said += (
            f" It pulls {pull.tokens:.0f} tokens of the prompt from {pull.address} in "
            f"{_seconds(pull.seconds)}, which costs {_seconds(pull.saved_s)} less than to compute "
            "them."
        )
    return said


def _who_won(record: DecisionRecord) -> str:
    decision, at = record.decision, record.decision.position
    winner = f"{decision.model} at {record.specs[decision.slot].key}"
    view, scores = decision.view, decision.scores
    if view is None or scores is None:
        return (
            f"{winner} has the fewest requests of those drawn at random: the body of this kind "
            "of request is not read."
        )
    degraded = _DEGRADED.get(decision.reason, "")
    if decision.reason == "trial":
        return f"{winner} is on trial: it failed, and this request tests whether it has recovered."
    if decision.reason == EXPLORE and view.reported is not None:
        known = view.evidence[at] + view.reported[at]
        return (
            f"{winner} was explored: only {known:.0f} outcomes of its model are known for requests "
            "like this, and it is not much slower."
        )
    if (first := view.beside) is not None and first.together_s is not None:
        return (
            f"{winner} was asked beside {first.model}: the first correct answer of the two is "
            f"expected after {_seconds(float(first.together_s[at]))}, instead of "
            f"{_seconds(first.alone_s)}.{degraded}"
        )
    if decision.reason == TRY:
        return f"{winner} was tried: it is idle, has seldom answered, and might be the fastest."
    if len(view.slots) == 1:
        return f"{winner} was the only candidate.{degraded}"
    rival = ranking(decision)[1]
    name = _name(record, view, rival)
    cause, why = why_not(record, rival)
    if cause in ("refuses", "tried", "share", "policy"):
        return f"{winner} won: {name} {why}.{degraded}"
    if cause is not None:
        return f"{winner} was the only candidate left: {name} {why}.{degraded}"
    mine, other = float(scores[at]), float(scores[rival])
    if mine < (1.0 - NEAR_TIE) * other:
        return (
            f"{winner} was drawn by the picker of {decision.policy}, with a score of {mine:.3g} "
            f"against {other:.3g} for {name}.{degraded}"
        )
    if view.terms is None and mine == other:
        return f"{winner} won a draw: {name} has the same score by {decision.policy}.{degraded}"
    if view.terms is None:
        return (
            f"{winner} won by the score of {decision.policy}: {mine:.3g} against {other:.3g} for "
            f"{name}.{degraded}"
        )
    if other >= (1.0 - NEAR_TIE) * mine:
        reason = f"cost the same within {NEAR_TIE:.0%}; the shortest queue or chance decided"
        return f"{winner} won a tie: {name} {reason}.{degraded}"
    margin_s = float(view.terms.cost_s[rival] - view.terms.cost_s[at])
    if not view.knows_outcomes and view.wrong_s is None:
        margin_s *= float(view.probability[at])
    why = _why(view, view.terms, at, rival, alike=_model(view, rival) == decision.model)
    remarks = _blind(view) + degraded
    return f"{winner} won by {_seconds(margin_s)}: {name} {why}.{remarks}"


def _blind(view: View) -> str:
    """Return a warning if only time decided between models; empty if accuracy is known."""
    if view.knows_outcomes or len(set(view.model_id.tolist())) < 2:
        return ""
    return " No outcomes are known for these models, so time decided: short answers win."


_DEGRADED = {
    "degraded-assessor": " The models' estimates could not be used: all were treated as equal.",
    "degraded-prefixes": " The cache estimates could not be used.",
    "degraded-scorer": " A scorer of the policy failed: its other scorers decided or, if it has "
    "none, the number of requests in flight.",
    "degraded-filter": " A filter of the policy failed and was skipped.",
    "degraded-picker": " The policy's picker failed: the best score won.",
    "all-failing": " All candidates are failing, so all are allowed.",
}


def _name(record: DecisionRecord, view: View, rival: int) -> str:
    """Return the rival's model, or its identity if the winner serves the same model."""
    model = _model(view, rival)
    return record.specs[int(view.slots[rival])].key if model == record.decision.model else model


def _why(view: View, terms: Terms, winner: int, rival: int, *, alike: bool) -> str:
    """Return the reasons for and against the rival; `alike` if both have the same model."""
    if view.times_repeated[rival] > view.times_repeated[winner]:
        return "was tried already"
    answers = terms.each(terms.answers, 1.0)
    if answers[winner] > _MUCH * answers[rival]:
        return f"is less likely to answer (P={answers[rival]:.2f} against {answers[winner]:.2f})"
    mine, other = float(view.probability[winner]), float(view.probability[rival])
    took = _compared(float(terms.latency_s[rival]), float(terms.latency_s[winner]))
    if terms.latency_s[rival] < terms.latency_s[winner]:
        if other >= mine:
            return f"is faster ({took}) but {_other_reason(terms, winner, rival)}"
        price = "" if view.wrong_s is None else f", and a wrong answer costs {view.wrong_s:.0f} s"
        right = f"right with P={other:.2f} against {mine:.2f}{_on(view)}"
        return f"is faster ({took}) but {right}{price}"
    slower = f"slower ({took}{_largest_difference(view, terms, winner, rival, alike)})"
    if round(other, 2) > round(mine, 2):
        return f"is more often right (P={other:.2f} against {mine:.2f}) but {slower}"
    if mine > _MUCH * other:
        return f"is {slower}, and right with P={other:.2f} against {mine:.2f}{_on(view)}"
    return f"is {slower}"


def _other_reason(terms: Terms, winner: int, rival: int) -> str:
    """Return a reason, other than latency and accuracy, against the rival."""
    others, ttft = terms.each(terms.others_s), terms.all_ttft_s
    if others[rival] > others[winner]:
        return f"costs other requests {_seconds(float(others[rival] - others[winner]))} more"
    if ttft[rival] > ttft[winner]:
        return f"its first token comes later ({_compared(float(ttft[rival]), float(ttft[winner]))})"
    return "answers less reliably"


def _model(view: View, candidate: int) -> str:
    """Return a candidate's model, or the mode of it."""
    return view.judged[view.model_id.item(candidate)]


def _on(view: View) -> str:
    language, bucket, task = view.cell
    if not bucket:
        return ""
    kind = f" {task}" if task not in ("", "generic") else ""
    length = _tokens(float(view.tokens.max()))
    return f" on {length} tokens of{kind} {_LANGUAGES.get(language, language)}"


def _largest_difference(view: View, terms: Terms, winner: int, rival: int, alike: bool) -> str:
    """Return, in words, the term that contributes most to the difference in latency."""
    uncached = view.tokens[rival] - view.cached_tokens[rival]
    reasons = (
        (terms.queue_s, f"{_tokens(view.queued_tokens[rival])} tokens are queued there"),
        (terms.prefill_s, f"{_tokens(uncached)} tokens to prefill"),
        (terms.rtt_s, f"{_seconds(terms.rtt_s[rival])} on the network"),
        (terms.base_s, f"{'this endpoint' if alike else 'its model'} takes longer to answer"),
    )
    extra = [float(term[rival] - term[winner]) for term, _ in reasons]
    largest = int(np.argmax(extra))
    return f"; {reasons[largest][1]}" if extra[largest] > 0.0 else ""


def _tokens(count: float) -> str:
    return f"{count / 1000:.0f}k" if count >= 10_000 else f"{count:.0f}"


def _compared(one_s: float, other_s: float) -> str:
    """Format two times with enough decimals, up to three, to show which is longer."""
    one, other = _seconds(one_s), _seconds(other_s)
    for digits in (2, 3):
        if one != other or one_s < 0.1:
            break
        one, other = f"{one_s:.{digits}f} s", f"{other_s:.{digits}f} s"
    return f"{one} against {other}"


def _seconds(seconds: float) -> str:
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 0.1:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def why_not(record: DecisionRecord, at: int) -> tuple[Cause | None, str]:
    """Return the cause that excluded a candidate, and its text; None and "" if none did."""
    decision = record.decision
    cause = next((cause for cause, mask in decision.eligible.items() if not mask[at]), None)
    if cause == "window":
        assert decision.view is not None
        limit = record.specs[int(decision.view.slots[at])].max_model_len
        if limit is None:
            return cause, "refused a request of this length"
        return cause, f"takes no more than {_tokens(limit)} tokens"
    words = {"room": "has no room", "tried": "was tried already"}
    words["refuses"] = "refuses requests of this kind, which others accept"
    words["share"] = "has had its fair share, and nothing explains yet that it is so fast"
    words["policy"] = f"was left out by a filter of {decision.policy}"
    return cause, words.get(cause or "", "")


def ranking(decision: Decision) -> list[int]:
    """Return the positions of the candidates by rank, the picked candidate first."""
    first, scores = decision.position, decision.scores
    assert scores is not None
    order: list[int] = by_score(scores, tuple(decision.eligible.values())).tolist()
    return [first, *(i for i in order if i != first)]
