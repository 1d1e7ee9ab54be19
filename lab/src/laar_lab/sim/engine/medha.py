"""Medha's scheduler: slack order, adaptive chunks, space sharing.

All decodes are in every iteration. Prefills follow in the chosen order (LARS, or another one for
comparison), each with the largest chunk that keeps the iteration within its target. The orders are
those of `laar.flow.slack`, the packing is that of the vLLM scheduler (`laar_vllm.packing`); here,
the predictor is the engine's cost model, so predictions are exact unless the settings add jitter.

A decode waits for a pass through all pipeline stages, so the pass must fit the target; meanwhile
the stages work on consecutive chunks.

Admission follows the order strictly: if the most urgent waiting prompt finds no slot or blocks, the
prompts behind it must wait; otherwise a stream of short prompts would starve a long one. The cached
part of a waiting prompt affects its chunk but not its place in the order, because looking up every
prompt's blocks in each iteration would cost more than the iteration.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from heapq import merge

from laar.errors import SettingError, unknown
from laar.flow import slack
from laar.flow.slack import MIN_WORK_S, Line, Order
from laar_lab.sim.engine.cost import CostModel, Work
from laar_lab.sim.engine.prefill_time import PrefillTable
from laar_lab.sim.engine.schedule import Desk, Fcfs, Plan
from laar_lab.sim.engine.sequence import Seq
from laar_lab.sim.engine.settings import EngineSettings
from laar_vllm.packing import Prefill, pack

MAX_CANDIDATES = 8
"""Maximum number of prefills offered to an iteration, only one of them long; few fit in 20 ms."""

_Ranked = tuple[float, int, bool, Seq]
"""Rank (lowest first), number, whether it is waiting for admission, and the sequence itself."""


def slack_s(arrival_s: float, objective_s: float, remaining_s: float, now: float) -> float:
    """Return how many seconds a request can lose and still meet its objective; negative if late."""
    return arrival_s + objective_s - now - remaining_s


def relative_slack(
    arrival_s: float, objective_s: float, total_s: float, remaining_s: float, now: float
) -> float:
    """Return rho: slack relative to the total work."""
    return slack_s(arrival_s, objective_s, remaining_s, now) / max(total_s, MIN_WORK_S)


@lru_cache(maxsize=16)  # one per kind of engine in an experiment, 8 KiB each
def _table(cost: CostModel, target_s: float) -> PrefillTable:
    def chunk_s(chunk: int, context: int) -> float:
        work = Work()
        work.add_chunk(chunk, context, cost.kv_groups(context + chunk))
        return cost.stage_s(work)

    return PrefillTable.build(chunk_s, target_s=target_s / cost.stages)


def _lrs(arrival_s: float, objective_s: float, total_s: float, remaining_s: float) -> Line:
    return Line(arrival_s + objective_s - remaining_s, 1.0)


def _edf(arrival_s: float, objective_s: float, total_s: float, remaining_s: float) -> Line:
    return Line(arrival_s + objective_s, 1.0)


def _srpt(arrival_s: float, objective_s: float, total_s: float, remaining_s: float) -> Line:
    return Line(remaining_s, 1.0)


ORDERS: Mapping[str, Order] = {**slack.ORDERS, "edf": _edf, "lrs": _lrs, "srpt": _srpt}
"""The paper's five: relative slack, arrival, earliest deadline, least slack, shortest
remaining."""


class _Batch:
    """The batch under construction, priced by the engine's cost model."""

    __slots__ = ("_cost", "_work")

    def __init__(self, cost: CostModel, decodes: Work) -> None:
        self._cost, self._work = cost, decodes

    def seconds_with(self, chunk_tokens: int, context_tokens: int) -> float:
        # Called about ten thousand times per simulated minute, so it changes and restores its
        # sums.
        work, cost = self._work, self._cost
        before = work.prefill_tokens, work.pairs, work.kv_tokens, work.kv_groups
        work.add_chunk(chunk_tokens, context_tokens, cost.kv_groups(context_tokens + chunk_tokens))
        seconds = cost.stage_s(work) * cost.stages
        work.prefill_tokens, work.pairs, work.kv_tokens, work.kv_groups = before
        return seconds

    def add(self, chunk_tokens: int, context_tokens: int) -> None:
        groups = self._cost.kv_groups(context_tokens + chunk_tokens)
        self._work.add_chunk(chunk_tokens, context_tokens, groups)


class Slack(Fcfs):
    """Medha's scheduler: prefills ordered by slack, chunks sized by time.

    Args:
        settings: settings of the engine.
        cost: cost model of its iterations.

    Raises:
        SettingError: `slack.order` is not a known order.
    """

    def __init__(self, settings: EngineSettings, cost: CostModel) -> None:
        super().__init__(settings)
        if settings.slack.order not in ORDERS:
            fault = unknown("slack.order", settings.slack.order, sorted(ORDERS))
            raise SettingError(f"engine settings: {fault}")
        self._slack, self._cost = settings.slack, cost
        self._order = ORDERS[settings.slack.order]
        self._moves = settings.slack.order == "lars"  # the other orders don't change with time
        self._times = _table(cost, settings.slack.target_s)

    def key(self, seq: Seq) -> tuple[float, ...]:
        """Return the rank if the order does not change with time, else the order of submission."""
        return (seq.number,) if self._moves else (self._line(seq).offset_s, seq.number)

    def objective_s(self, seq: Seq) -> float:
        """Return the job's TTFT objective, by default the one from the settings."""
        given = seq.job.ttft_objective_s
        if given is not None:
            return given
        alone_s = self._times.total_s(seq.job.prompt_tokens)
        return self._slack.objective_base_s + self._slack.objective_factor * alone_s

    def plan(self, now: float, desk: Desk) -> Plan:
        """Plan all decodes, and prefills in order until the target is used up."""
        if not desk.prefilling and not desk.waiting:
            return Plan(True, [])
        work = desk.decode_work()
        budget_tokens = self._budget_tokens - work.decodes
        chosen, prefills = self._candidates(now, desk)
        chunks = pack(
            prefills,
            _Batch(self._cost, work),
            target_s=self._slack.target_s,
            budget_tokens=budget_tokens,
            rho_max=self._slack.rho_max if self._slack.multi_prefill else 0.0,
            late_share=self._slack.late_share,
        )
        plan = [
            (seq, chunk)
            for seq, chunk in zip(chosen, chunks, strict=True)
            # Any candidate can be admitted alone; one may have to wait for those before it.
            if chunk and (seq in desk.prefilling or desk.admit(seq))
        ]
        for seq, _ in plan:
            seq.line = None
        return Plan(True, plan, steady=False)  # slack changes with time

    def victim(self, running: list[Seq]) -> Seq:
        """Return the newest prefilling sequence, or else the newest of all."""
        return max(running, key=lambda seq: (seq.remaining > 0, seq.admitted))

    def _line(self, seq: Seq) -> Line:
        """Return the sequence's urgency, which changes only when its context does."""
        if seq.line is None:
            total_s = self._times.total_s(seq.target)
            left_s = self._times.remaining_s(seq.target, seq.context)
            seq.line = self._order(seq.job.arrival_s, self.objective_s(seq), total_s, left_s)
        return seq.line

    def _ranked(self, now: float, desk: Desk) -> Iterator[_Ranked]:
        """Yield the prefills, most urgent first."""

        def rank(seq: Seq, *, waits: bool) -> _Ranked:
            line = self._line(seq)
            return (line.offset_s - now) * line.rate, seq.number, waits, seq

        running = sorted([rank(seq, waits=False) for seq in desk.prefilling])
        waiting: Iterable[_Ranked] = (rank(seq, waits=True) for seq in desk.waiting)
        return merge(running, sorted(waiting) if self._moves else waiting)

    def _candidates(self, now: float, desk: Desk) -> tuple[list[Seq], list[Prefill]]:
        """Return the prefills to pack, most urgent first; those that wait can be admitted."""
        chosen: list[Seq] = []
        prefills: list[Prefill] = []
        blocked = has_long = False
        most = MAX_CANDIDATES if self._slack.multi_prefill else 1
        for _, _, waits, seq in self._ranked(now, desk):
            context = seq.context
            if waits:
                if blocked:
                    continue
                fits, context = desk.admissible(seq)
                if not fits:
                    blocked = True
                    continue
            is_long = seq.target > self._slack.long_tokens
            if is_long and has_long:
                continue
            has_long = has_long or is_long
            chosen.append(seq)
            prefills.append(self._prefill(seq, context, now, is_long=is_long))
            if len(chosen) >= most:
                break
        return chosen, prefills

    def _prefill(self, seq: Seq, context: int, now: float, *, is_long: bool) -> Prefill:
        rho = 0.0
        if is_long:  # unused for a short prompt
            total_s = self._times.total_s(seq.target)
            left_s = self._times.remaining_s(seq.target, context)
            rho = relative_slack(seq.job.arrival_s, self.objective_s(seq), total_s, left_s, now)
        return Prefill(seq.target - context, context, rho, is_long)
