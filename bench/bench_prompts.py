"""Measure the context hook on prompts as frameworks send them, with chunks of real text.

Prints for each template and corpus: the share of documents found after `LEARNT` requests (0 for a
body in which more were found than it has), the share of bodies with all documents found, the number
of documents cut (chunks contiguous in the received body but not in the sent one), and the cached
share of the prompts with the hook off and on. Bodies whose order matters follow. Seeds are fixed,
but the salt of hashes is not, so shares vary by a few hundredths between runs.

    python -m bench prompts [NAME ...] [--chunks 300 --learnt 500]
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Iterator

import orjson

from bench.options import count, name_of, parser_for
from bench.prompts import corpora, orders
from bench.prompts.templates import TEMPLATES, TITLED, Body
from laar.context.hook import ContextHook
from laar.context.settings import ContextSettings
from laar.context.turn import TurnPlan

LEARNT = 100
SCORED = 40
CHUNKS = 60
"""Chunks of a corpus; each body has `DRAWN` of them, popular ones more often."""
DRAWN = 6
BLOCK_CHARS = 64
BODIES_OF_A_KIND = 27


def api_of(body: dict[str, object]) -> str:
    """Return the API of a body, by its fields."""
    if "messages" in body:
        return "messages" if "system" in body else "chat"
    return "completions" if "prompt" in body else "responses"


def texts(value: object) -> Iterator[str]:
    """Yield all strings of a body, in order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from texts(each)


def prompt(body: bytes) -> str:
    return "\x1f".join(texts(orjson.loads(body)))


class Blocks:
    """An unbounded prefix cache of text blocks."""

    def __init__(self) -> None:
        self._held: set[int] = set()
        self.found = self.asked = 0

    def put(self, text: str) -> None:
        """Cache a prompt, and count the blocks found."""
        chain, fresh = 0, False
        for at in range(0, len(text) - BLOCK_CHARS + 1, BLOCK_CHARS):
            chain = hash((chain, text[at : at + BLOCK_CHARS]))
            fresh = fresh or chain not in self._held
            self.found += not fresh
            self._held.add(chain)
        self.asked += len(text) // BLOCK_CHARS

    @property
    def share(self) -> float:
        """Return the share of blocks found, over all prompts."""
        return self.found / max(1, self.asked)


def sent(hook: ContextHook, body: Body, now: float) -> tuple[bytes, TurnPlan]:
    """Return a body as received, and the hook's result, which was committed to an endpoint."""
    raw = orjson.dumps(body)
    api = api_of(body)
    assert api is not None
    made = hook.apply(raw, api=api, tenant="", now=now, mode="on", restores=True)
    hook.commit(made, now, endpoint="e")
    return raw, made


def cut(chunks: list[str], before: str, after: str) -> int:
    """Return how many chunks were contiguous before but not after, plain or JSON-escaped."""
    lost = 0
    for chunk in chunks:
        quoted = orjson.dumps(chunk).decode()[1:-1]
        for form in {chunk, quoted, repr(chunk)[1:-1]}:
            lost += form in before and form not in after
    return lost


def cell(
    name: str, corpus: str, *, chunks: int = CHUNKS, learnt: int = LEARNT, seed: int = 7
) -> tuple[float, float, int, int, float, float]:
    """Measure one template and corpus; the module's docstring describes the figures."""
    rng = random.Random(f"{corpus}/{seed}")
    pool = corpora.chunks(corpus, chunks, rng)
    if name == TITLED:
        source = "Source: Employee handbook and travel policy {}.pdf\n\n{}"
        pool = [source.format(2015 + at % 9, text) for at, text in enumerate(pool)]
    weights = [(i + 1) ** -0.8 for i in range(len(pool))]
    rng.shuffle(weights)
    hook = ContextHook(ContextSettings(holdout_share=0.0))
    off, on = Blocks(), Blocks()
    seen = whole = moved = lost = 0
    for n in range(learnt + SCORED):
        drawn: dict[int, None] = {}
        while len(drawn) < DRAWN:
            drawn[rng.choices(range(len(pool)), weights)[0]] = None
        docs = [(at, pool[at]) for at in drawn]
        body = TEMPLATES[name](docs, f"What is said about {rng.choice(pool)[20:50]!r} ({n})?")
        raw, made = sent(hook, body, float(n))
        before, after = prompt(raw), prompt(made.body)
        off.put(before)
        on.put(after)
        if n >= learnt:
            found = made.documents
            seen += found if found <= DRAWN else 0
            whole += found == DRAWN
        if before != after:
            moved += DRAWN
            lost += cut([text for _, text in docs], before, after)
    return seen / SCORED / DRAWN, whole / SCORED, moved, lost, off.share, on.share


def kinds(corpus: str = "pages") -> tuple[int, int, int, list[str]]:
    """Count bodies whose order matters, those moved, and those moved wrongly; name their kinds."""
    rng = random.Random(11)
    many = [chunk for chunk in corpora.chunks(corpus, 200, rng) if "\n\n" not in chunk]
    items = [" ".join(chunk.split())[:300] for chunk in many][:10]
    asked = moved = 0
    wrong: list[str] = []
    for kind in (*orders.KEPT, *orders.RANKED):
        hook = ContextHook(ContextSettings(holdout_share=0.0))
        for n, body in enumerate(orders.bodies(kind, BODIES_OF_A_KIND, items, rng)):
            raw, made = sent(hook, body, float(n))
            asked += 1
            if made.body == raw:
                continue
            moved += 1
            if kind in orders.KEPT or "documents above" not in prompt(made.body):
                wrong.append(kind)
    return asked, moved, len(wrong), sorted(set(wrong))


def main(argv: list[str]) -> int:
    """Print the table for the templates in `argv`, or all; return 1 on a cut or wrong move."""
    parser = parser_for("prompts", __doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", type=name_of(TEMPLATES))
    parser.add_argument("--chunks", type=count, default=CHUNKS, help="chunks of a corpus")
    parser.add_argument("--learnt", type=count, default=LEARNT, help="requests before the counted")
    given = parser.parse_args(argv)
    wanted = given.names or list(TEMPLATES)
    print(
        f"  {'template':26}{'seen, by corpus':^32}{'bodies':>7}{'moved':>7}{'cut':>5}"
        f"{'off':>7}{'on':>7}"
    )
    moved = lost = 0
    for name in wanted:
        cells = [
            cell(name, corpus, chunks=given.chunks, learnt=given.learnt)
            for corpus in corpora.corpora()
        ]
        seen = "".join(f"{each[0]:8.0%}" for each in cells)
        bodies, off, on = (statistics.fmean(each[i] for each in cells) for i in (1, 4, 5))
        moved += sum(each[2] for each in cells)
        lost += sum(each[3] for each in cells)
        print(
            f"  {name:26}{seen}{bodies:7.0%}{sum(each[2] for each in cells):7}"
            f"{sum(each[3] for each in cells):5}{off:7.2f}{on:7.2f}",
            flush=True,
        )
    print(f"  documents moved or passed {moved:,}, cut {lost:,}")
    asked, shifted, wrong, which = kinds()
    print(f"  order matters: {asked:,} bodies, moved {shifted:,}, wrongly {wrong:,} {which}")
    return 1 if lost or wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
