"""Measure models, fit what they can do, and see what that is worth."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from laar.cli.terminal import JsonFile, report_errors

__all__ = ["evaluate", "fit", "measure", "ttca"]


class _Language(StrEnum):
    EN = "en"
    JA = "ja"
    ZH = "zh"


Languages = Annotated[
    list[_Language] | None,
    typer.Option("--language", help="Of the look-ups; repeatable. All of them."),
]
Lengths = Annotated[
    list[int] | None,
    typer.Option(
        "--length", help="Of the look-ups, in tokens; repeatable. The paper's five.", min=256
    ),
]


def measure(
    endpoint: Annotated[list[str], typer.Option(help="Base URL of an endpoint; repeatable.")],
    out: Annotated[Path, typer.Option(help="File of outcomes; an earlier run's is gone on with.")],
    task: Annotated[
        str, typer.Option(help="kv-lookup, or a JSONL file of questions with checks.")
    ] = "kv-lookup",
    model: Annotated[
        list[str] | None, typer.Option(help="Only this model; repeatable. All that are served.")
    ] = None,
    per_cell: Annotated[
        int, typer.Option(help="Look-ups for each language and length.", min=1)
    ] = 50,
    language: Languages = None,
    length: Lengths = None,
    seed: Annotated[int, typer.Option(help="Of the look-ups.")] = 0,
    concurrency: Annotated[
        int, typer.Option(help="Requests under way at each endpoint; 1 shows no queue.", min=1)
    ] = 1,
    rate: Annotated[
        float | None, typer.Option(help="Most requests started a second.", min=0.001)
    ] = None,
    stream: Annotated[
        bool, typer.Option(help="Ask for streams, which tell the time to first token.")
    ] = True,
    timeout: Annotated[float, typer.Option(help="Seconds for one request.", min=0.1)] = 600.0,
    check_timeout: Annotated[float, typer.Option(help="Seconds for one check.", min=0.1)] = 5.0,
    max_tokens: Annotated[int | None, typer.Option(help="Of an answer.", min=1)] = None,
    key_env: Annotated[
        str | None, typer.Option(help="Environment variable that holds the API key.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Put every question to every model and write down what came of it; resumable."""
    with report_errors():
        from laar.measuring.kv_lookup import LANGUAGES, LENGTHS_TOKENS
        from laar.measuring.run import questions_of, run_measure

        questions = questions_of(
            task,
            languages=language or LANGUAGES,
            lengths_tokens=length or LENGTHS_TOKENS,
            per_cell=per_cell,
            seed=seed,
        )
        raise typer.Exit(
            run_measure(
                endpoints=endpoint,
                models=model or (),
                questions=questions,
                out=out,
                concurrency=concurrency,
                rate_per_s=rate,
                stream=stream,
                timeout_s=timeout,
                check_timeout_s=check_timeout,
                max_tokens=max_tokens,
                key_variable=key_env,
                json_file=json_file,
            )
        )


def fit(
    outcomes: Annotated[
        list[Path],
        typer.Argument(help="Files of `laar measure`, or of graded answers; .gz as well."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The artifact.")] = Path(
        "capability.json"
    ),
    report: Annotated[
        Path | None, typer.Option(help="Directory for a page that says how far to trust it.")
    ] = None,
    hold_out: Annotated[
        float | None,
        typer.Option(
            help="Share of the questions that nothing is learned from, for `laar evaluate`. A "
            "fifth of graded answers; none of what `laar measure` wrote.",
            min=0.0,
            max=0.9,
        ),
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Learn from outcomes what each model can do, and how far that can be trusted."""
    with report_errors():
        from laar.accuracy.fitting.command import run_fit

        run_fit(outcomes, out=out, report=report, hold_out=hold_out, json_file=json_file)


def evaluate(
    artifact: Annotated[Path, typer.Argument(help="Of `laar fit`.")],
    records: Annotated[
        list[Path],
        typer.Argument(help="Graded answers; those that were fitted to are left out."),
    ],
    seed: Annotated[int, typer.Option(help="Of the intervals' resampling.")] = 0,
    json_file: JsonFile = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw calibration and accuracy against cost there; .svg, .png."),
    ] = None,
) -> None:
    """Judge an artifact on graded answers: best single model, laar, oracle, at the same cost."""
    with report_errors():
        from laar.client.judging import run_evaluate

        run_evaluate(artifact, records, seed=seed, json_file=json_file, plot_file=plot)


def ttca(
    url: Annotated[
        str | None, typer.Option(help="Of a gateway; without it the demo's fleet is started.")
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(help="Repeatable; the first is compared with the others."),
    ] = None,
    per_cell: Annotated[
        int, typer.Option(help="Held-out look-ups for each language and length.", min=1)
    ] = 10,
    language: Languages = None,
    length: Lengths = None,
    seed: Annotated[int, typer.Option(help="Of the look-ups.")] = 0,
    concurrency: Annotated[int, typer.Option(help="Questions under way at once.", min=1)] = 8,
    time_scale: Annotated[
        float, typer.Option(help="Of the fleet started: real seconds for a simulated one.")
    ] = 0.05,
    capability: Annotated[
        Path | None, typer.Option(help="Artifact for the fleet started; its own by default.")
    ] = None,
    keep_prompts: Annotated[
        bool,
        typer.Option(
            "--keep-prompts/--drop-prompts",
            help="Whether the endpoints started keep prompts: dropped, a retry pays for its own.",
        ),
    ] = True,
    against_lab: Annotated[
        int | None,
        typer.Option(
            help="Hold the figures against so many runs of the lab; exit 3 outside.", min=2
        ),
    ] = None,
    json_file: JsonFile = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the figures there; .svg, .png.")] = None,
) -> None:
    """Replay held-out questions with retries: time to correct answer, by policy."""
    with report_errors():
        from laar.lab.live.ttca import run_ttca
        from laar.measuring.kv_lookup import LANGUAGES, LENGTHS_TOKENS

        raise typer.Exit(
            run_ttca(
                url=url,
                policies=policy or ("laar", "laar-paper", "load-aware", "session-affinity"),
                per_cell=per_cell,
                languages=language or LANGUAGES,
                lengths_tokens=length or LENGTHS_TOKENS,
                seed=seed,
                concurrency=concurrency,
                time_scale=time_scale,
                capability=capability,
                keep_prompts=keep_prompts,
                lab_runs=against_lab,
                json_file=json_file,
                plot_file=plot,
            )
        )
