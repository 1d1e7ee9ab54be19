"""`laar measure`: ask every model every question, and record the outcomes.

Outcomes are appended to a JSONL file as they arrive, one line at a time, and a new run continues
where the last one stopped, so an interruption loses only the requests in flight. `laar fit` skips
an incomplete line (full disk, power cut). Requests without an answer are recorded too; the next run
repeats them.

By default each endpoint gets one question at a time, whatever it serves, so that latencies are
those of the model, without a queue. Prompts longer than the endpoint's window are not sent.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

import aiohttp
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from laar.accuracy.features import language_of, task_of
from laar.accuracy.fitting.outcomes import MeasuredOutcome, dump_outcome
from laar.accuracy.fitting.records import texts_of
from laar.client.transport import HttpReply, completions_url, post
from laar.client.until import RETRYABLE, Message, pause_s
from laar.datalayer.fetching import fault_of, read_capped
from laar.datalayer.served_names import read_list
from laar.errors import SettingError
from laar.measuring import Asking
from laar.measuring.checks import decide
from laar.measuring.questions import Question
from laar.plugins.modes import NO_MODES, ByModel, Members
from laar.telemetry.problems import PASSWORD

_LEAST_CHARS = 400  # minimum for learning characters per token; templates distort shorter prompts
_TRIES = 3  # attempts at a request that the endpoint refuses; the next run repeats it
_BEGINS = b'{"query_id":'  # start of each line that `dump_outcome` writes
_DISCOVER_S = 10.0
_MAX_MODELS_BYTES = 4 * 2**20

_COLUMNS = (
    TextColumn("{task.description}"),
    BarColumn(),
    MofNCompleteColumn(),
    TextColumn("{task.fields[note]}"),
    TimeElapsedColumn(),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A model, or a mode of it, behind a base URL.

    Args:
        base: the base model of an adapter, or the model of a mode; None for others.
        window_tokens: maximum tokens of prompt plus answer; infinite if unknown.
        members: what a mode adds to bodies; None for others.
    """

    base_url: str
    model: str
    base: str | None = None
    window_tokens: float = math.inf
    members: Members | None = None


@dataclass(slots=True, kw_only=True)
class Counts:
    """The counts of a run, so far or at its end.

    Args:
        asked: requests recorded in this run.
        too_long: questions not sent because they exceed the endpoint's window.
        correct: correct answers in this run.
        failed: requests without an answer; run again to repeat them.
    """

    total: int = 0
    asked: int = 0
    resumed: int = 0
    too_long: int = 0
    correct: int = 0
    failed: int = 0


def ask(
    endpoints: Sequence[str],
    models: Sequence[str],
    questions: Sequence[Question],
    out: Path,
    asking: Asking,
    *,
    console: Console,
    seconds: float | None = None,
    modes: ByModel = NO_MODES,
) -> Counts:
    """Measure with a progress bar; return the counts.

    Raise `SettingError` if an endpoint, model or file does not exist or can't be used.

    Args:
        endpoints: base URLs.
        models: models to ask; empty for all that the endpoints serve.
        questions: the questions; with a time limit, they should be balanced however few are asked.
        out: JSONL file of the outcomes, as in `measure`.
        asking: how to ask.
        console: where to show the bar.
        seconds: time limit; None for no limit.
        modes: modes in which to ask models as well.
    """
    counts = Counts()

    async def run(bar: Bar) -> None:
        targets = await discover(endpoints, headers=asking.headers)
        known = {target.model for target in targets}
        if missing := ", ".join(sorted(set(models) - known)):
            served = ", ".join(sorted(known))
            raise SettingError(f"no endpoint serves {missing}; they serve {served}")
        targets = [target for target in targets if not models or target.model in models]
        targets += [
            replace(target, model=f"{target.model}:{name}", base=target.model, members=mode.chat)
            for target in targets
            for name, mode in modes.get(target.model, {}).items()
            if mode.chat  # questions are chat completions
        ]
        task = bar.add_task("asking", total=None, note="")

        def show() -> None:
            note = f"{counts.correct} correct, {counts.failed} without an answer"
            total = counts.total if seconds is None else None
            bar.update(task, completed=counts.resumed + counts.asked, total=total, note=note)

        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await measure(targets, questions, out, asking, counts, progress=show)

    with Bar(*_COLUMNS, console=console) as bar:
        asyncio.run(run(bar))
    return counts


async def discover(
    base_urls: Sequence[str], *, headers: Mapping[str, str] | None = None
) -> list[Target]:
    """Return the models that each endpoint serves, without aliases.

    Raise `SettingError` if an endpoint lists no model at ``/v1/models``.
    """
    targets: list[Target] = []
    timeout = aiohttp.ClientTimeout(total=_DISCOVER_S)
    async with aiohttp.ClientSession(timeout=timeout, headers=headers) as session:
        for base_url in base_urls:
            url = completions_url(base_url).removesuffix("chat/completions") + "models"
            try:
                async with session.get(url) as answer:
                    answer.raise_for_status()
                    listed = read_list(await read_capped(answer.content, _MAX_MODELS_BYTES))
            except (aiohttp.ClientError, OSError, ValueError) as fault:
                raise SettingError(
                    f"{url} lists no models ({fault_of(fault)}): is it running?"
                ) from None
            if not listed:
                raise SettingError(f"{url} lists no models with valid names: is one loaded?")
            # Several names with one root come from vLLM's --served-model-name; answers contain the
            # first. An adapter has its own root, and the window of its base.
            windows = {model.name: model.window_tokens for model in listed}
            roots: dict[str, Target] = {}
            for name, root, parent, window in listed:
                target = Target(
                    base_url=base_url,
                    model=name,
                    base=parent or None,
                    window_tokens=window or windows.get(parent) or math.inf,
                )
                roots.setdefault(root or name, target)
            targets.extend(roots.values())
    return targets


async def measure(
    targets: Sequence[Target],
    questions: Iterable[Question],
    out: Path,
    asking: Asking | None = None,
    counts: Counts | None = None,
    *,
    progress: Callable[[], None] = lambda: None,
) -> Counts:
    """Ask the questions that have no answer in `out` yet, and append the outcomes to it.

    Raise `SettingError` if two questions have the same id, or the file can't be written or is not a
    file of outcomes.

    Args:
        targets: endpoints to ask; targets of one model share its questions.
        questions: iterated once; ids must be unique.
        out: JSONL file of `MeasuredOutcome`; created if missing.
        asking: how to ask; None for the defaults.
        counts: the counts to update; None to start new counts.
        progress: called after each outcome.
    """
    asking = asking or Asking()
    asked = list(questions)
    if twice := [name for name, n in Counter(one.id for one in asked).items() if n > 1]:
        raise SettingError(f"two questions have the same id {twice[0]!r}: make ids unique")
    counts = counts or Counts()
    done = answered_in(out)
    async with _open(out) as file:
        # No connection limit, so that no request waits for another target's.
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            run = _Run(file, session, asking, progress, counts)
            left: dict[str, Iterator[Question]] = {}
            places = {target.base_url: asyncio.Semaphore(asking.concurrency) for target in targets}
            for model in {target.model for target in targets}:
                unanswered = [q for q in asked if (q.id, model) not in done]
                counts.total += len(asked)
                counts.resumed += len(asked) - len(unanswered)
                left[model] = iter(unanswered)
            try:
                async with asyncio.TaskGroup() as group:
                    for target in targets:
                        for _ in range(asking.concurrency):
                            place = places[target.base_url]
                            group.create_task(run.work(target, left[target.model], place))
            except ExceptionGroup as faults:
                raise faults.exceptions[0] from faults
    return counts


def answered_in(out: Path) -> set[tuple[str, str]]:
    """Return the (query, model) pairs that have an answer, and end an incomplete last line.

    Unreadable lines are kept; `laar fit` reports them. Raise `SettingError` if the file does not
    contain outcomes; it is left unchanged.
    """
    answered: set[tuple[str, str]] = set()
    if not out.exists():
        return answered
    with out.open("r+b") as file:
        is_ours, line = False, b""
        for line in file:
            is_ours = is_ours or line[: len(_BEGINS)] == _BEGINS[: len(line)]
            with suppress(ValueError):
                outcome = MeasuredOutcome.model_validate_json(line)
                is_ours = True
                if outcome.status == 200:
                    answered.add((outcome.query_id, outcome.model))
        if file.tell() and not is_ours:
            raise SettingError(f"{out} is not a file of outcomes: name a different one")
        if line and not line.endswith(b"\n"):
            file.write(b"\n")
    return answered


@asynccontextmanager
async def _open(out: Path) -> AsyncIterator[BinaryIO]:
    """Open the file for appending; sync it to disk at the end, even after an error."""
    try:
        with out.open("ab") as file:
            try:
                yield file
            finally:
                os.fsync(file.fileno())
    except OSError as fault:
        raise SettingError(f"{out}: {fault.strerror or fault}") from fault


@dataclass(slots=True)
class _Run:
    """One run."""

    file: BinaryIO
    session: aiohttp.ClientSession
    asking: Asking
    progress: Callable[[], None]
    counts: Counts
    densities: dict[tuple[str, str | None], float] = field(default_factory=dict)
    """Maximum observed characters per prompt token, by model and task."""

    async def work(
        self, target: Target, left: Iterator[Question], place: asyncio.Semaphore
    ) -> None:
        """Ask a target the remaining questions, limited by its endpoint's concurrency."""
        for question in left:
            async with place:
                messages = question.ask()
                chars = sum(len(text) for message in messages for text in texts_of(message))
                kind = target.model, question.task
                least_tokens = chars / self.densities.get(kind, math.inf)
                if least_tokens + (self.asking.max_tokens or 1) > target.window_tokens:
                    self.counts.too_long += 1
                    continue
                outcome = await self._outcome(target, question, messages, chars)
                if outcome.prompt_tokens and chars >= _LEAST_CHARS:
                    known = self.densities.get(kind, 0.0)
                    self.densities[kind] = max(known, chars / outcome.prompt_tokens)
                self._note(outcome)

    async def _outcome(
        self, target: Target, question: Question, messages: Sequence[Message], chars: int
    ) -> MeasuredOutcome:
        asked_as: dict[str, object] = {"model": target.model}
        if target.members is not None:
            asked_as = {"model": target.base, **target.members}
        body = {"messages": list(messages), **self.asking.params, **asked_as}
        reply = await self._reply(target, body)
        # The user's last text, as in serving, even if other messages follow.
        users = [message for message in messages if message.get("role") in ("user", None)]
        asked = ([text for message in users for text in texts_of(message)] or [""])[-1]
        completion = reply.completion
        correct = None if completion is None else decide(question.check, completion.text)
        return MeasuredOutcome(
            query_id=question.id,
            model=target.model,
            correct=correct,
            language=language_of(asked),
            task=question.task or task_of(asked),
            prompt_chars=chars,
            prompt_tokens=completion.prompt_tokens if completion else None,
            cached_tokens=completion.cached_tokens if completion else None,
            completion_tokens=completion.completion_tokens if completion else None,
            latency_s=reply.latency_s,
            ttft_s=reply.ttft_s,
            status=reply.status,
            endpoint=PASSWORD.sub("", target.base_url),
            error=reply.error,
            base=target.base,
        )

    async def _reply(self, target: Target, body: Mapping[str, object]) -> HttpReply:
        url, asking = completions_url(target.base_url), self.asking
        for number in range(_TRIES):
            reply = await post(self.session, url, body, asking.headers, asking.timeout_s)
            if reply.completion is not None or reply.status not in RETRYABLE:
                break
            if number + 1 < _TRIES:
                await asyncio.sleep(pause_s(reply, number + 1))
        return reply

    def _note(self, outcome: MeasuredOutcome) -> None:
        self.file.write(dump_outcome(outcome))
        self.file.flush()  # write the line before the next request starts
        self.counts.asked += 1
        self.counts.correct += outcome.correct is True
        self.counts.failed += outcome.status != 200
        self.progress()
