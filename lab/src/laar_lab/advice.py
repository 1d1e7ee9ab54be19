"""Advice on what keeps prompts from sharing a prefix, and how much prefill fixing it would save.

One prompt per second is split into lines, in the order of its model's chat template; all tools are
one line. A line that most prompts of an agent contain belongs to the agent's frame. Text that
differs between prompts (a date, a working directory) breaks the prefix if more of the frame
follows. Every prompt passes through a simulated cache twice: unchanged, and with this text moved to
the end and the tools sorted. The difference is the potential saving. No text is kept, only hashes,
except the names of models and tools.
"""

from __future__ import annotations

import calendar
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise, takewhile
from operator import itemgetter
from typing import Any, NamedTuple

import orjson

from laar.latest import Latest
from laar.prefix.lengths import DIGEST, MESSAGE
from laar.prefix.templates import Template

ENOUGH = 5
"""Number of prompts needed for advice on an agent, after those that its frame is learned from."""

MAX_AGENTS = 32
MAX_LINES = 1_000
"""Maximum number of lines and sentences of a prompt; after that, each text is a single line, up to
four times as many. As many tools, or kilobytes of them, are compared regardless of their order."""

MAX_HOMES, MAX_COUNTED, MAX_CACHED = 20_000, 6_000, 40_000
"""Limits on lines that identify agents, lines counted per agent, and cached prompt offsets."""

_MEMORY = 64  # prompts after which an agent's counts are halved
_STEP = 256  # characters between two offsets in the simulated cache
_HEAD = 2_000  # characters at the beginning of prompts by which an agent is recognized
_ALIKE = 0.06  # minimum share of these characters that an agent's prompts have in common
_FRAME = 0.6  # minimum share of an agent's prompts that contain a line of its frame
_USUAL = 0.3  # share of prompts in which a finding must occur
_WORTH = 0.02  # minimum share of the prompt for a finding to be reported

_FIXED = ("system", "developer", "tools")
_SHORT, _LONG = 500, 4_000  # characters that may differ at a system prompt's end, and before it
_LEARNT = 4  # prompts until an agent's frame is known
_FEW = 0.1  # minimum share, to be reported, of text after the user's or in another order
_ASKED = ("user", "")
_WHERE = {
    "user": "the user's text",
    "system": "the system prompt",
    "developer": "the system prompt",
    "assistant": "an earlier answer",
    "tool": "a tool's result",
    "": "the prompt",
}
_BILLING = b"x-anthropic-billing-header:"
_DATES = frozenset(
    name.lower()
    for names in (calendar.month_name, calendar.month_abbr, calendar.day_name, calendar.day_abbr)
    for name in names
    if name
)
_CAUSES = (
    ("a date", re.compile(r"\d{4}-\d\d-\d\d.*|\d{1,4}[./]\d{1,2}[./]\d{1,4}")),
    ("a time", re.compile(r"\d{1,2}:\d\d.*")),
    ("an id", re.compile(r"(?=.*\d)(?:[\w-]+[=:_])?[0-9a-fA-F-]{7,}|(?=.*\d)[\w=-]{16,}")),
    ("a path", re.compile(r".*[/\\].*")),
    ("a number", re.compile(r"\d[\d.,%]*\w{0,2}")),
    ("other words", re.compile(r"(?s).*")),
)
"""Kinds of differing words, the most informative first."""
_WORD = re.compile(r"[^\s\"'(),;<>\[\]{}]+")
_MAX_WORDS, _MAX_NAMED = 64, 8  # words kept where prompts differ, and words classified


class _Line(NamedTuple):
    """A line, an image or all tools.

    Args:
        key: hash of the line and its role.
        role: role of its message.
        at: its offset in its message, in characters.
        text: the text.
        unordered: like `key`, but independent of the order of the tools.
    """

    key: int
    role: str
    at: int
    text: str
    unordered: int


@dataclass(slots=True)
class _Break:
    """What differs after a line of the frame or at the beginning, and from which offset."""

    at: int = 1 << 30
    causes: Counter[str] = field(default_factory=Counter)
    words: frozenset[int] = frozenset()


@dataclass(slots=True)
class _Agent:
    """Prompts that begin alike, and the counts of their lines, findings and characters."""

    name: str
    counts: Counter[object] = field(default_factory=Counter)
    breaks: Latest[tuple[int, str], _Break] = field(default_factory=lambda: Latest(_MEMORY))
    """The breaks, by the hash of the line before and the role of the differing text."""
    tools: Latest[tuple[int, int], None] = field(default_factory=lambda: Latest(_MEMORY // 2))


class Advisor:
    """Samples prompts and reports what breaks their prefixes."""

    def __init__(self) -> None:
        self._agents: Latest[int, _Agent] = Latest(MAX_AGENTS)
        self._homes: Latest[int, int] = Latest(MAX_HOMES)
        self._cached: Latest[int, None] = Latest(MAX_CACHED)

    def look(self, model: str, spans: Sequence[str], template: Template, body: bytes) -> None:
        """Record a prompt.

        Args:
            model: the model's name.
            spans: the prompt's texts in the order of most templates.
            template: the model's template.
            body: the body as received.
        """
        names: list[str] = []
        lines = list(islice(_lines(template.arranged(spans), names), 4 * MAX_LINES))
        if not lines:
            return
        agent = self._agent(model, names, lines)
        counts = agent.counts
        moved = _breaks(agent, lines)
        kept = [line for n, line in enumerate(lines) if n not in moved]
        behind = [lines[n] for n in sorted(moved)]
        now = self._pass(hash("now"), ((line.key, line.text) for line in lines))
        could = self._pass(hash("could"), ((line.unordered, line.text) for line in kept + behind))
        if counts["prompts"] >= _LEARNT + 2:  # the cache has seen prompts with moved lines
            _judge(agent, lines, kept, now, could)
            counts["billing"] += _BILLING in body
            counts["thoughts"] += 0 if template.keeps_thoughts else _thoughts(spans)
        counts["prompts"] += 1
        counts.update({line.unordered for line in lines})
        if (is_full := counts["prompts"] >= _MEMORY) or len(counts) > MAX_COUNTED:
            agent.counts = Counter({key: n >> is_full for key, n in counts.items() if n > 1})

    def _agent(self, model: str, names: Sequence[str], lines: Sequence[_Line]) -> _Agent:
        """Return the agent whose prompts begin most like this one."""
        keys, votes, seen, total = list[int](), Counter[int](), 0, 0
        for line in sorted(lines, key=lambda line: line.role == "tools"):
            key, size = hash((model, line.unordered)), len(line.text)
            keys.append(key)
            total += min(size, _HEAD)
            if (home := self._homes.get(key, 0)) in self._agents:
                votes[home] += size
            if (seen := seen + size) >= _HEAD:
                break
        best, alike = max(votes.items(), key=itemgetter(1), default=(0, 0))
        agent = self._agents.get(best)
        if agent is None or alike < _ALIKE * total:
            best = keys[0]
            shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
            agent = _Agent(f"{model}, tools {shown}" if names else model)
        for key in keys:
            self._homes[key] = best
        self._agents[best] = agent
        return agent

    def _pass(self, chain: int, parts: Iterable[tuple[int, str]]) -> int:
        """Pass a prompt through the simulated cache; return how much of it was cached."""
        found = done = last = 0
        for key, text in parts:
            chain = hash((chain, key))
            done += len(text)
            if done - last >= _STEP:
                if found == last and chain in self._cached:
                    found = done
                last = done
                self._cached[chain] = None
        return found

    def advice(self) -> list[dict[str, Any]]:
        """Return the advice on each agent, the latest first.

        It has the agent's model and tools (`agent`), the number of sampled prompts, where older
        ones have less weight (`prompts`), the share of their text that the simulated cache held
        (`found`), the same share if the advice had been followed (`could`), and what breaks the
        prefixes, or where they diverge (`sentences`).
        """
        return [
            _advice(agent)
            for agent in reversed(self._agents.values())
            if agent.counts["judged"] >= ENOUGH
        ]


def api_of(body: dict[str, object]) -> str | None:
    """Return the API of a body, detected by its fields; None if unknown."""
    if "messages" in body:
        return "messages" if "system" in body else "chat"
    return "completions" if "prompt" in body else "responses" if "input" in body else None


def _lines(spans: Sequence[str], names: list[str]) -> Iterator[_Line]:
    """Yield the lines of a prompt; append the names of its tools to `names`."""
    role, at, left = "", 0, MAX_LINES
    for text in spans:
        if text[:1] == MESSAGE:
            role, at = text[1:-1][:32], 0  # clients may make up roles
        elif role == "tools":
            yield _Line(hash(text), role, 0, text, _unordered(text, names))
        else:
            # Split at sentences too: some prompts have no line breaks.
            said = text.replace(". ", ".\n")
            pieces = said.split("\n", max(0, left)) if text[:1] != DIGEST else [text]
            left -= len(pieces)
            for piece in pieces:
                if piece:
                    key = hash((role, piece))
                    yield _Line(key, role, at, piece, key)
                at += len(piece) + 1


def _unordered(text: str, names: list[str]) -> int:
    """Return a hash of tools that is independent of their order."""
    try:
        # Longer texts are cut, and so are not JSON.
        tools = list(islice(orjson.loads(text[: MAX_LINES << 10]), MAX_LINES))
        each = frozenset(map(orjson.dumps, tools))
    except (orjson.JSONDecodeError, orjson.JSONEncodeError, TypeError):
        return hash(text)
    for tool in tools:
        own = tool.get("function", tool) if isinstance(tool, dict) else None
        name = own.get("name") if isinstance(own, dict) else None
        names.append(name[:32] if isinstance(name, str) else "?")
    return hash(each)


def _breaks(agent: _Agent, lines: Sequence[_Line]) -> set[int]:
    """Record lines that differ between prompts and precede a part of the frame; return them."""
    counts, moved = agent.counts, set[int]()
    prompts = counts["prompts"]
    if prompts < _LEARNT:
        return moved
    frame = [n for n, line in enumerate(lines) if counts[line.unordered] >= _FRAME * prompts]
    sizes = {lines[n].unordered: len(lines[n].text) for n in frame}
    rest = sum(sizes.values())
    for before, n in pairwise([-1, *frame, len(lines)]):
        rest -= sizes.pop(lines[before].unordered, 0) if before >= 0 else 0
        if before + 1 == n:
            continue
        role = lines[before + 1].role
        gap = [*takewhile(lambda i: lines[i].role == role, range(before + 1, n))]  # noqa: B023
        size = sum(len(lines[i].text) for i in gap)
        if rest < _STEP:  # only the conversation follows; the context hook handles documents
            is_break = role in _FIXED and size <= _SHORT
        else:
            is_break = role == "tools" or (
                size <= _LONG and (role in _FIXED or lines[n].role == role)
            )
        if is_break:
            moved.update(gap)
            key = (lines[before].unordered if before >= 0 else 0, role)
            found = agent.breaks[key] = agent.breaks.get(key) or _Break()
            _note(found, [lines[i] for i in gap])
            counts[key] += 1
    return moved


def _note(found: _Break, lines: Sequence[_Line]) -> None:
    """Record what differs from the previous prompt, and where."""
    every = (
        (line.at + match.start(), match[0])
        for line in lines
        for match in _WORD.finditer(line.text[:_HEAD])
    )
    words = list(islice(every, _MAX_WORDS))
    fresh = [(at, word) for at, word in words if hash(word) not in found.words]
    if fresh and found.words:
        found.at = min(found.at, fresh[0][0])
        found.causes[_CAUSES[min(_rank(word) for _, word in fresh[:_MAX_NAMED])][0]] += 1
    found.words = frozenset([hash(word) for _, word in words])


def _rank(word: str) -> int:
    """Return the index in `_CAUSES` of a word's kind."""
    if word[:1].isupper() and word.rstrip(".,:").lower() in _DATES:
        return 0
    bare = word[:64].strip(".,:;!?*`")
    return next(rank for rank, (_, pattern) in enumerate(_CAUSES) if pattern.fullmatch(bare))


def _judge(
    agent: _Agent, lines: Sequence[_Line], kept: Sequence[_Line], now: int, could: int
) -> None:
    """Count how much of a prompt was, and could have been, cached; record where it diverges."""
    counts, total, found = agent.counts, sum(len(line.text) for line in lines), max(now, could)
    counts["judged"] += 1
    counts["total"] += total
    counts["now"] += now
    counts["could"] += found
    above = [*takewhile(lambda line: counts[line.unordered], kept)]
    if len(above) < len(kept):
        fresh = kept[len(above)]
        counts["parts", "image" if fresh.text[:1] == DIGEST else fresh.role] += 1
        known = sum(len(n.text) for n in kept if counts[n.unordered] and n.role != "tools")
        if known - found > _USUAL * total:
            passed = sum(len(line.text) for line in above)
            is_asked = fresh.role in _ASKED and passed - could < 2 * _STEP
            counts["question" if is_asked else "order"] += known - found
    for line in lines:
        if line.role == "tools":
            agent.tools[line.unordered, line.key] = None


def _thoughts(spans: Sequence[str]) -> int:
    """Return the length in characters of the last answer that was generated after reasoning."""
    found = 0
    for role, text in pairwise(spans):
        if role == f"{MESSAGE}assistant\x1f" and "</think>" in text:
            found = len(text.rpartition("</think>")[2])
    return found


def _advice(agent: _Agent) -> dict[str, Any]:
    """Return the advice on an agent that has been judged."""
    counts, said = agent.counts, list[str]()
    usual, total = _USUAL * counts["judged"], counts["total"]
    now, could = counts["now"] / total, counts["could"] / total
    for key, found in agent.breaks.items():
        if counts[key] < usual:
            continue
        if key[1] == "tools":
            said.append("The tools differ between prompts and come before text that all share.")
        elif found.causes:
            where, cause = _WHERE.get(key[1], _WHERE[""]), found.causes.most_common(1)[0][0]
            said.append(f"Prompts differ after character {found.at} of {where}: {cause}.")
    sets = Counter([unordered for unordered, _ in agent.tools])
    orders = max(sets.values(), default=0)
    if orders > 1:
        said.append(f"The same tools come in {orders} orders: sort them.")
    if said and could - now >= _WORTH:
        saved = (could - now) / max(1.0 - now, _WORTH)
        said.append(
            f"Moving these lines to the last message and sorting tools would save {saved:.0%} "
            "of the prefill."
        )
    if counts["parts", "tools"] >= usual:
        said.append(f"Tools differ between prompts ({len(sets)} lists): no prefix is shared.")
    part = max((*_ASKED, *_FIXED, "image"), key=lambda role: counts["parts", role])
    if part == "image":
        said.append("Prompts diverge at an image: conversations share nothing after it.")
    question, order, thoughts = (counts[of] / total for of in ("question", "order", "thoughts"))
    if question >= _FEW:
        said.append(
            f"{question:.0%} of the prompt was seen before but comes after the user's text: "
            "documents and tool results are shared only if they come before the question."
        )
    if order >= _FEW:
        said.append(
            f"{order:.0%} of the prompt was seen in another order; if these are documents, "
            "the context hook can order them (`context.routes`)."
        )
    if counts["billing"] >= usual:
        said.append(
            "The line x-anthropic-billing-header changes with each request: laar and vLLM ignore "
            "it; other engines cannot reuse anything cached after it."
        )
    if thoughts >= _WORTH:
        said.append(
            "The chat template leaves reasoning out of earlier answers, so each answer is "
            f"prefilled again: {thoughts:.0%} of the prompt."
        )
    if not said:
        said.append(f"Nothing breaks the prefixes; they diverge where {_WHERE[part]} begins.")
    return {
        "agent": agent.name,
        "prompts": counts["prompts"],
        "found": now,
        "could": could,
        "sentences": said,
    }
