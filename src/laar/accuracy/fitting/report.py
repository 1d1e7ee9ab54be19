"""The page that `laar fit` writes: one HTML file, no script, nothing fetched from anywhere.

It shows how far the artifact can be trusted before it routes a request: reliability, accuracy by
cell for each model with the evidence behind it, scores on held-out queries, the gain of the retry
terms, and the regret of routing by it. Model, language and task names come from outcome files, so
every text is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from laar.accuracy.artifact import MIN_CELL_OUTCOMES, Capability, HeldOut, ModelCapability
from laar.accuracy.capability import CapabilityModel
from laar.accuracy.fitting.evaluate import Bin, Evaluation
from laar.accuracy.fitting.fit import Fit

_STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem;
  color: #1c2733; background: #fff }
table { border-collapse: collapse; margin: 0.5rem 0 1.5rem }
th, td { padding: 0.25rem 0.7rem; text-align: right; border-bottom: 1px solid #d7dde3 }
th:first-child, td:first-child { text-align: left }
td.cell { color: #111; min-width: 5rem; text-align: center; border: 2px solid #fff }
td.thin { outline: 2px dashed #8a4b00; outline-offset: -4px }
small { opacity: 0.8 } svg { max-width: 24rem } caption { text-align: left; font-weight: 600 }
svg text { fill: currentColor }
@media (prefers-color-scheme: dark) {
  body { color: #e3e8ee; background: #15181d }
  th, td { border-bottom-color: #39424d } td.cell { border-color: #15181d }
}
"""


_TICKS = "".join(
    f'<text x="{40 + 240 * at:.0f}" y="274" text-anchor="middle" font-size="10">{at:g}</text>'
    f'<text x="35" y="{264 - 240 * at:.0f}" text-anchor="end" font-size="10">{at:g}</text>'
    for at in (0.0, 0.25, 0.5, 0.75, 1.0)
)
"""Ticks of the reliability diagram's axes."""


def render(fit: Fit, *, notes: Sequence[str] = ()) -> str:
    """Return the page as text.

    Args:
        fit: the fit to report on.
        notes: faults of the outcomes file, shown at the top.
    """
    artifact, evaluation = fit.artifact, fit.evaluation
    parts = [
        f"<p>Fitted {escape(artifact.created)} on {artifact.outcomes} outcomes of "
        f"{len(artifact.models)} models (data {escape(artifact.data_sha256[:12])}). Figures marked "
        f"held-out: fitted on one half of the queries, seen on the other "
        f"({evaluation.queries} queries).</p>",
        *(f"<p>⚠ {escape(note)}</p>" for note in notes),
        "<h2>Models</h2>",
        _models(artifact, evaluation),
        "<h2>Reliability, held-out</h2>",
        _reliability(evaluation.reliability),
        "<h2>Accuracy by language and length</h2>",
        f"<p>Large: what laar will use. Small: correct of measured. Dashed: fewer than "
        f"{MIN_CELL_OUTCOMES} outcomes, so the cell leans on its model's mean.</p>",
        *_heat_maps(artifact),
        "<h2>Cells with too few outcomes</h2>",
        _thin_cells(artifact),
        "<h2>Retries, held-out</h2>",
        _retries(artifact, evaluation),
        "<h2>Regret, held-out</h2>",
        _regret(evaluation),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>laar: capability report</title><style>{_STYLE}</style></head>\n"
        "<body><h1>What each model can do</h1>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def _models(artifact: Capability, evaluation: Evaluation) -> str:
    def row(name: str, model: ModelCapability) -> list[str]:
        timed = ["not measured", ""]
        if (speed := model.speed) is not None:
            per_token = (speed.seconds_per_token, speed.spread_s_per_token)
            timed = [f"{seconds * 1e6:.1f}" for seconds in per_token]
        return [
            name,
            str(model.outcomes),
            f"{model.mean:.3f}",
            *_scores(evaluation.models.get(name)),
            *timed,
        ]

    head = ["Model", "Outcomes", "Correct", "Brier", "AUC", "Calibration error", "µs/token", "±"]
    rows = [row(name, model) for name, model in artifact.models.items()]
    return _table(head, [*rows, ["all", str(artifact.outcomes), "", *_scores(evaluation.overall)]])


def _scores(held_out: HeldOut | None) -> list[str]:
    if held_out is None:
        return ["none held out", "", ""]
    auc = "one class" if held_out.auc is None else f"{held_out.auc:.3f}"
    return [f"{held_out.brier:.3f}", auc, f"{held_out.calibration_error:.3f}"]


def _reliability(bins: Sequence[Bin]) -> str:
    """Predicted against observed, a circle for each bin, its area by the outcomes in it."""
    most = max((b.outcomes for b in bins), default=1)
    circles = "".join(
        f'<circle cx="{40 + 240 * b.predicted:.1f}" cy="{260 - 240 * b.observed:.1f}" '
        f'r="{2 + 8 * (b.outcomes / most) ** 0.5:.1f}" fill="#2a6fb0" fill-opacity="0.75">'
        f"<title>predicted {b.predicted:.2f}, observed {b.observed:.2f}, {b.outcomes} outcomes"
        "</title></circle>"
        for b in bins
    )
    return (
        '<svg viewBox="0 0 300 300" role="img" aria-label="reliability diagram">'
        '<rect x="40" y="20" width="240" height="240" fill="none" stroke="#8a97a3"/>'
        '<line x1="40" y1="260" x2="280" y2="20" stroke="#8a97a3" stroke-dasharray="4"/>'
        f"{_TICKS}{circles}"
        '<text x="160" y="294" text-anchor="middle" font-size="12">predicted P(correct)</text>'
        '<text x="14" y="140" text-anchor="middle" font-size="12" '
        'transform="rotate(-90 14 140)">observed share</text></svg>'
    )


def _heat_maps(artifact: Capability) -> Iterable[str]:
    capability = CapabilityModel(artifact)
    for name, model in artifact.models.items():
        for task in sorted({cell.task for cell in model.cells}):
            cells = {(c.language, c.bucket): c for c in model.cells if c.task == task}
            buckets = sorted({bucket for _, bucket in cells})
            rows = []
            for language in sorted({language for language, _ in cells}):
                row = f"<tr><th>{escape(language)}</th>"
                for bucket in buckets:
                    cell = cells.get((language, bucket))
                    if cell is None:
                        row += "<td></td>"
                        continue
                    p = float(capability.probabilities((name,), cell.features)[0])
                    row += (
                        f'<td class="cell{" thin" if cell.thin else ""}" '
                        f'style="background:hsl({120 * p:.0f} 60% 72%)">{p:.2f}<br>'
                        f"<small>{cell.correct} of {cell.outcomes}</small></td>"
                    )
                rows.append(f"{row}</tr>")
            head = "".join(f"<th>{_length(bucket)}</th>" for bucket in buckets)
            caption = f"<caption>{escape(name)}, {escape(task)}</caption>"
            yield f"<table>{caption}<tr><th></th>{head}</tr>{''.join(rows)}</table>"


def _length(bucket: int) -> str:
    return f"{bucket // 1024}K" if bucket >= 1024 else str(bucket)


def _thin_cells(artifact: Capability) -> str:
    rows = [
        [name, cell.language, str(cell.bucket), cell.task, str(cell.outcomes)]
        for name, model in artifact.models.items()
        for cell in model.cells
        if cell.thin
    ]
    if not rows:
        return f"<p>None: every measured cell has at least {MIN_CELL_OUTCOMES} outcomes.</p>"
    return _table(["Model", "Language", "Length up to", "Task", "Outcomes"], rows)


def _retries(artifact: Capability, evaluation: Evaluation) -> str:
    scores, retry = evaluation.retries, artifact.retry
    if not scores.attempts:
        return "<p>No query was put to several models and failed by one: nothing to learn from.</p>"
    return (
        f"<p>Requests differ in difficulty for all models, by {retry.difficulty or 0.0:.2f} in log "
        f"odds. Brier score "
        f"at attempts 2 and later, {scores.attempts} of them: {scores.brier_unconditional:.4f} "
        f"without, {scores.brier:.4f} with.</p>"
    )


def _regret(evaluation: Evaluation) -> str:
    if not evaluation.replays:
        return "<p>No held-out query was put to every model: nothing to replay.</p>"
    head = ["Policy", "Success", "Time to correct answer", "Regret"]
    return _table(
        head,
        [
            [r.policy, f"{r.success_rate:.1%}", f"{r.ttca_s:.2f} s", f"{r.regret_s:.2f} s"]
            for r in evaluation.replays
        ],
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def line(tag: str, cells: Sequence[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    return f"<table>{line('th', head)}{''.join(line('td', row) for row in rows)}</table>"
