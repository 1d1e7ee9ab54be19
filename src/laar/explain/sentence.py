"""Explain why an endpoint was picked, in one readable sentence."""

from __future__ import annotations

import numpy as np

from laar.core.cost import MIN_PROBABILITY, Terms
from laar.core.decision import Decision
from laar.core.eligible import Cause
from laar.core.interfaces import View
from laar.core.picker import NEAR_TIE
from laar.core.picker import ranking as by_score
from laar.core.plugin import gather
from laar.explain.decision_record import DecisionRecord
from laar.units import duration

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
    said = _who_won(record), *gather(record.decision, "sentence")
    return " ".join(filter(None, said))


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
    for why in filter(None, gather(decision, "why")):
        return f"{winner} {why}.{degraded}"
    if len(view.slots) == 1:
        return f"{winner} was the only candidate.{degraded}"
    rival = ranking(decision)[1]
    name = _name(record, view, rival)
    cause, why = why_not(record, rival)
    if cause in ("plugin", "refuses", "tried", "share", "policy"):
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
    return f"{winner} won by {duration(margin_s)}: {name} {why}.{remarks}"


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
    """Return what adds most to the rival's cost, and its speed; `alike` if of the same model."""
    if view.times_repeated[rival] > view.times_repeated[winner]:
        return "was tried already"
    took = _compared(float(terms.latency_s[rival]), float(terms.latency_s[winner]))
    mine, other = float(view.probability[winner]), float(view.probability[rival])
    speed = "faster" if terms.latency_s[rival] < terms.latency_s[winner] else "slower"
    slower = f"slower ({took}{_largest_difference(view, terms, winner, rival, alike)})"
    extra_s = _extra_s(view, terms, winner, rival)
    decides = max(extra_s, key=extra_s.__getitem__)
    if extra_s["right"] > 2 / 3 * sum(extra_s.values()):  # the others about cancel out
        decides = "right"
    if decides == "time" and speed == "slower":
        better = round(other, 2) > round(mine, 2)
        return f"is more often right ({_p(other, mine)}) but {slower}" if better else f"is {slower}"
    said = {
        "answers": f"is less likely to answer ({_p(*_answers(terms, rival, winner))})",
        "right": f"right with {_p(other, mine)}{_on(view)}"
        + ("" if view.wrong_s is None else f", and a wrong answer costs {view.wrong_s:.0f} s"),
        "others": f"costs other requests {duration(extra_s['others'])} more",
        "time": "its first token comes later "
        f"({_compared(float(terms.all_ttft_s[rival]), float(terms.all_ttft_s[winner]))})"
        if terms.all_ttft_s[rival] > terms.all_ttft_s[winner]
        else "costs more in sum",
    }[decides]
    if decides == "answers":
        return said
    if speed == "faster":
        return f"is faster ({took}) but {said}"
    return f"is {slower}, and {said}"


def _extra_s(view: View, terms: Terms, winner: int, rival: int) -> dict[str, float]:
    """Return the seconds by which each part makes the rival's cost higher than the winner's."""
    (a_rival, a_winner), others_s = _answers(terms, rival, winner), terms.each(terms.others_s)
    cost_s = terms.cost_s / terms.penalty
    mine, other = (max(float(view.probability[at]), MIN_PROBABILITY) for at in (winner, rival))
    if view.wrong_s is None:  # `cost` is a quotient: what the rival's would be with the winner's P
        right_s = float(cost_s[rival]) * (1.0 - other / mine)
        whole_s = float(cost_s[rival]) - right_s
        scale = a_winner * mine
    else:
        right_s = view.wrong_s * (mine - other)
        whole_s = float(cost_s[rival]) - view.wrong_s * (float(view.probability.max()) - other)
        scale = a_winner
    found = {
        "right": right_s,
        "answers": whole_s * (1.0 - a_rival / a_winner),
        "others": float(others_s[rival] - others_s[winner]) / scale,
    }
    return found | {"time": float(cost_s[rival] - cost_s[winner]) - sum(found.values())}


def _answers(terms: Terms, *at: int) -> tuple[float, float]:
    one, other = (max(float(terms.each(terms.answers, 1.0)[i]), MIN_PROBABILITY) for i in at)
    return one, other


def _p(one: float, other: float) -> str:
    """Format two probabilities with enough decimals to show which is higher."""
    digits = next((d for d in (2, 3, 4) if f"{one:.{d}f}" != f"{other:.{d}f}"), 2)
    return f"P={one:.{digits}f} against {other:.{digits}f}"


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
    waits = "it waits longer there"
    if view.queued_tokens[rival] > view.queued_tokens[winner]:
        waits = f"{_tokens(view.queued_tokens[rival])} tokens are queued there"
    reasons = (
        (terms.queue_s, waits),
        (terms.prefill_s, f"{_tokens(uncached)} tokens to prefill"),
        (terms.rtt_s, f"{duration(terms.rtt_s[rival])} on the network"),
        (terms.base_s, f"{'this endpoint' if alike else 'its model'} takes longer to answer"),
    )
    extra = [float(term[rival] - term[winner]) for term, _ in reasons]
    largest = int(np.argmax(extra))
    return f"; {reasons[largest][1]}" if extra[largest] > 0.0 else ""


def _tokens(count: float) -> str:
    return f"{count / 1000:.0f}k" if count >= 10_000 else f"{count:.0f}"


def _compared(one_s: float, other_s: float) -> str:
    """Format two times with enough decimals, up to three, to show which is longer."""
    one, other = duration(one_s), duration(other_s)
    for digits in (2, 3):
        if one != other or one_s < 0.1:
            break
        one, other = f"{one_s:.{digits}f} s", f"{other_s:.{digits}f} s"
    return f"{one} against {other}"


def why_not(record: DecisionRecord, at: int) -> tuple[Cause | None, str]:
    """Return the cause that excluded a candidate, and its text; None and "" if none did."""
    decision = record.decision
    cause = next((cause for cause, mask in decision.eligible.items() if not mask[at]), None)
    if cause == "window":
        assert decision.view is not None
        spec = record.specs[int(decision.view.slots[at])]
        limit = spec.windows.get(decision.rewrite or decision.request.model, spec.max_model_len)
        if limit is None:
            return cause, "refused a request of this length"
        return cause, f"takes no more than {_tokens(limit)} tokens"
    words = {"room": "has no room", "tried": "was tried already"}
    words["plugin"] = "was left out by a plug-in"
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
