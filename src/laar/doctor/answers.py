"""Check that endpoints answer: send each a tiny request, and compare a model's endpoints.

The /health and metrics pages may look fine at an endpoint with a different key or a broken engine.
Only a request reveals the problem.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from laar.datalayer.asking import ProbeResult
from laar.doctor.findings import Finding, Level
from laar.faults import Fault
from laar.fleet.membership import TASK_LABEL, EndpointSpec
from laar.health import GOOD, USELESS, Kind

_SHOWN_CHARS = 200
_WANTS_KEY = (401, 403)
_NO_CHAT = (404, 405)
_DOES_NOT_CHAT = (
    "if it generates text, put a name that it accepts first under `models`; if not, like engines "
    f"for embeddings, label it so that no alias includes it: labels: {{{TASK_LABEL}: embed}}"
)


def answer_findings(answers: Iterable[tuple[EndpointSpec, ProbeResult]]) -> list[Finding]:
    """Return findings on the endpoints' answers, comparing the endpoints of each model."""
    models: dict[str, list[tuple[EndpointSpec, ProbeResult]]] = defaultdict(list)
    for spec, asked in answers:
        models[spec.models[0]].append((spec, asked))
    return [finding for model, asked in models.items() for finding in _of_model(model, asked)]


def _of_model(model: str, asked: Sequence[tuple[EndpointSpec, ProbeResult]]) -> list[Finding]:
    asked = [(spec, a) for spec, a in asked if not a.problem.startswith("can't be reached")]
    if not asked:  # the doctor reports unreachable endpoints itself
        return []
    counts = Counter(_short(answer) for _, answer in asked)
    shown = ", ".join(f"{count} x {what}" for what, count in counts.most_common())
    some_answer = any(answer.verdict == GOOD for _, answer in asked)
    faults = []
    for spec, answer in asked:
        verdict, status = answer.verdict, answer.reply.status if answer.reply else 0
        does_not_chat = status in _NO_CHAT and not some_answer
        if (
            verdict == GOOD
            or (status in _WANTS_KEY and not some_answer)  # all require a key: nothing to compare
            or (does_not_chat and TASK_LABEL in spec.labels)
        ):
            continue
        excused = does_not_chat or (verdict is None and not some_answer)
        about = Fault.LATE if verdict is Kind.FULL else Fault.ENDPOINT
        faults.append(
            Finding(
                level=Level.WARNING if excused or verdict is Kind.FULL else Level.ERROR,
                where=f"endpoint {spec.address}",
                what=_long(answer) + ("; others with its model answer" if some_answer else ""),
                remedy=_DOES_NOT_CHAT if does_not_chat else about.fix,
            )
        )
    worst = min((fault.level for fault in faults), key=list(Level).index, default=Level.OK)
    level, remedy = Level.OK if some_answer else worst, "see its endpoints"
    denied = any(answer.reply and answer.reply.status in _WANTS_KEY for _, answer in asked)
    if level is Level.OK and not some_answer and denied:
        level, remedy = Level.WARNING, "nothing was tested: give a client's key with --key-env NAME"
    summary = Finding(
        level=level,
        where=f"model {model}",
        what=f"when asked for a few tokens, its endpoints answer: {shown}",
        remedy="" if level is Level.OK else remedy,
    )
    return [summary, *faults]


def _short(answer: ProbeResult) -> str:
    if answer.reply is None:
        return answer.problem
    inside = " with an error inside" if answer.reply.event else ""
    if answer.reply.found in USELESS:
        inside = f" and nothing usable ({answer.reply.detail or answer.reply.found})"
    return f"{answer.reply.status}{inside}"


def _long(answer: ProbeResult) -> str:
    if answer.reply is None:
        return answer.problem
    text = answer.reply.text.decode("utf-8", "replace").strip()[:_SHOWN_CHARS]
    return f"answers {_short(answer)} to a chat request: {text or '(no text)'}"
