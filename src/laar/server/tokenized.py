"""Token ids of the prompts that pass, so that engines' events can be matched with them.

A request is noted at its decision and tokenized beside it, by the model's tokenizer on one thread.
Once it is answered, and that endpoint's events show that it holds the blocks, the prompt is known
(`laar.prefix.tokens`), and the next turn is matched by it. Only models whose endpoints publish
events take part.

Nothing waits for this. What does not fit in the queue is left to the text index.

Each model's tokenizer, or one of its engines, is also asked once where its chat template puts a
prompt's parts (`laar.prefix.probing`).
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from laar.core.decision import Completion, Decision
from laar.core.endpoints import EndpointTable
from laar.core.membership import EndpointSpec
from laar.core.request import Api
from laar.datalayer.fetching import visiting_session
from laar.datalayer.tokenizing import LocalTokenizer, ask_engine, ids_given
from laar.errors import SettingError
from laar.prefix.beliefs import PrefixBeliefs
from laar.prefix.blocks import Chain
from laar.prefix.probing import PROBES, template_of
from laar.prefix.tokens import TokenIds, hash_blocks, root
from laar.telemetry.problems import Problems

MAX_WAITING = 256
"""Prompts before the thread: a burst. It takes about 4 MB of text a second."""
MAX_WAITING_BYTES = 64 << 20
MAX_OPEN = 8192
"""Tokenized prompts whose answer is not complete; about 6 kB each for 12,000 tokens."""
MAX_BODY_BYTES = 8 << 20
"""A longer one would keep the thread for seconds."""
CHECK_S = 0.5
"""After an answer, before its endpoint is looked at: its last events are on the way."""
ASK_TIMEOUT_S = 10.0
MISTAKES = 20
"""Prompts of a model in a row that no endpoint holds, before that is reported."""

PROBE_EVERY_S = 10.0
"""Until models that are new, or whose engines did not answer, are asked for their template."""

_LOG = logging.getLogger(__name__)
_READ = frozenset({Api.CHAT, Api.COMPLETIONS})


@dataclass(slots=True, eq=False)
class _Prompt:
    """One prompt on its way: `body` is dropped once `blocks` are there."""

    id: str
    api: Api
    chain: Chain
    model: str
    adapter: str
    body: bytes
    tokens: int = 0
    blocks: dict[int, array[int]] = field(default_factory=dict)
    slot: int = -1
    due: float = 0.0


class TokenizedPrompts:
    """Tokenizes the prompts that pass.

    Args:
        prefixes: learn token ids by text.
        table: the endpoints.
        tokenizers: local tokenizers by model.
        clock: monotonic seconds.
        problems: gets tokenizers that fail or are not the engines'.
    """

    def __init__(
        self,
        prefixes: PrefixBeliefs,
        table: EndpointTable,
        tokenizers: Mapping[str, LocalTokenizer],
        *,
        clock: Callable[[], float],
        problems: Problems,
    ) -> None:
        self._blocks = prefixes.blocks_held
        self._table = table
        self.tokenizers = tokenizers
        self._clock = clock
        self._problems = problems
        self._open: OrderedDict[str, _Prompt] = OrderedDict()
        self._waiting: deque[_Prompt] = deque()
        self._waiting_bytes = 0
        self._answered: deque[_Prompt] = deque(maxlen=MAX_OPEN)
        self._came = asyncio.Event()
        self._mistakes: Counter[str] = Counter()
        self.counts = Counter(known=0, unlike=0, failed=0, skipped=0)
        """Prompts by outcome: `known`, `unlike`, `failed`, `skipped`."""

    # -- of requests ---------------------------------------------------------------------------

    def decided(self, decision: Decision) -> None:
        """Note a request at its decision."""
        request, chain, model = decision.request, decision.chain, decision.model
        body = request.body
        if not body or chain is None or not len(chain) or request.shadow:
            return
        if request.api not in _READ or model not in self.tokenizers:
            return
        if not self._blocks.sizes(model):
            return
        size = len(body)
        if (
            len(self._waiting) >= MAX_WAITING
            or size > MAX_BODY_BYTES
            or self._waiting_bytes + size > MAX_WAITING_BYTES
        ):
            self.counts["skipped"] += 1
            return
        prompt = _Prompt(
            id=decision.id,
            api=request.api,
            chain=chain,
            model=model,
            adapter=self._table.weights(decision.rewrite or request.model or model),
            body=body,
        )
        self._open[prompt.id] = prompt
        if len(self._open) > MAX_OPEN:
            self._open.popitem(last=False)
        self._waiting.append(prompt)
        self._waiting_bytes += size
        self._came.set()

    def settled(self, decision: Decision, end: Completion) -> None:
        """Note a request's end: only the prompt of an answered request is in a cache."""
        prompt = self._open.pop(decision.id, None)
        flight = decision.flight
        if prompt is None or not end.ok or end.cause != "complete" or flight.model != prompt.model:
            return
        prompt.slot, prompt.due = flight.slot, self._clock() + CHECK_S
        self._answered.append(prompt)
        self._came.set()

    # -- beside them ---------------------------------------------------------------------------

    async def run(self) -> None:
        """Tokenize and check until cancelled."""
        with ThreadPoolExecutor(1, thread_name_prefix="tokenizer") as thread:
            while True:
                self._came.clear()
                while self._waiting:
                    prompt = self._waiting.popleft()
                    self._waiting_bytes -= len(prompt.body)
                    await self._tokenize(prompt, thread)
                    self._check()
                self._check()
                wait_s = CHECK_S if self._answered else None
                try:
                    async with asyncio.timeout(wait_s):
                        await self._came.wait()
                except TimeoutError:
                    continue

    async def _tokenize(self, prompt: _Prompt, thread: ThreadPoolExecutor) -> None:
        source = f"tokens {prompt.model}"
        sizes, tokenizer = self._blocks.sizes(prompt.model), self.tokenizers[prompt.model]
        run = asyncio.get_running_loop().run_in_executor
        try:
            document = await run(thread, _read, prompt.body)
            ids = await run(thread, ids_given, prompt.api, document)
            if ids is None:
                ids = await run(thread, tokenizer.ids, prompt.api, document)
            if ids is not None:
                prompt.blocks = await run(thread, _blocks, ids, sizes, prompt.adapter, document)
                prompt.tokens = len(ids)
            self.counts["failed"] += ids is None
        except Exception as error:  # noqa: BLE001 - another's tokenizer: the next prompt may work
            self.counts["failed"] += 1
            what = str(error) if isinstance(error, ValueError) else type(error).__name__
            self._problems.report(source, f"no token ids: {what}")
        else:
            if not self._mistakes[prompt.model]:
                self._problems.report(source, None)
        finally:
            prompt.body = b""

    def _check(self) -> None:
        """Learn the prompts whose endpoints hold them."""
        now = self._clock()
        while self._answered and self._answered[0].due <= now:
            if self._answered[0].body:  # its turn at the tokenizer comes
                return
            prompt = self._answered.popleft()
            holds = self._blocks.holds(prompt.slot, prompt.blocks)
            if holds is None:
                continue
            model = prompt.model
            self.counts["known" if holds else "unlike"] += 1
            if holds:
                self._blocks.learn(model, prompt.chain, prompt.tokens, prompt.blocks)
                self._mistakes[model] = 0
            else:
                self._mistakes[model] += 1
                if self._mistakes[model] == MISTAKES:
                    self._problems.report(
                        f"tokens {model}",
                        "its endpoints publish other token ids than are computed here; give the "
                        "engines' own tokenizer and chat template (prefix.tokenizers)",
                    )

    @property
    def known_blocks(self) -> int:
        """Return the number of KV blocks that endpoints hold, by their KV events."""
        return self._blocks.blocks


class TemplateProbes:
    """Asks for the chat template of each model.

    Args:
        prefixes: gets the templates.
        table: the endpoints.
        tokenizers: local tokenizers by model; these are asked first.
    """

    def __init__(
        self,
        prefixes: PrefixBeliefs,
        table: EndpointTable,
        tokenizers: Mapping[str, LocalTokenizer],
    ) -> None:
        self._known = prefixes.templates.known
        self._table = table
        self._tokenizers = tokenizers
        self._refused: set[str] = set()

    async def run(self) -> None:
        """Ask until cancelled."""
        headers = {"content-type": "application/json", "user-agent": "laar-templates"}
        timeout = aiohttp.ClientTimeout(total=ASK_TIMEOUT_S)
        async with visiting_session(timeout, headers=headers) as session:
            while True:
                specs = [spec for spec in self._table.specs() if spec.models and spec.generates]
                self._refused &= {spec.address for spec in specs}
                for spec in specs:
                    if spec.models[0] not in self._known and spec.address not in self._refused:
                        await self._ask(spec, session)
                await asyncio.sleep(PROBE_EVERY_S)

    async def _ask(self, spec: EndpointSpec, session: aiohttp.ClientSession) -> None:
        model = spec.models[0]
        tokenizer = self._tokenizers.get(model)
        found: list[TokenIds | None] = []
        try:
            for probe in PROBES:
                if tokenizer is not None:
                    ids = await asyncio.to_thread(tokenizer.ids, Api.CHAT, probe)
                else:
                    ids = await ask_engine(session, spec, probe, model)
                found.append(ids)
        except (aiohttp.ClientError, OSError):  # it may start, or be restarted
            return
        except ValueError:  # it has no such path, or the template takes no such chat
            pass
        known = [ids for ids in found if ids is not None and len(ids)]
        if len(known) < len(PROBES):
            self._refused.add(spec.address)
            return
        template = template_of(known)
        self._known.update(dict.fromkeys(spec.models, template))
        _LOG.info("%s: chat template %s", model, template)


def read_tokenizers(paths: Mapping[str, Path]) -> dict[str, LocalTokenizer]:
    """Return the tokenizers that the settings name.

    Raises:
        SettingError: one can't be used.
    """
    found = {}
    for model, path in paths.items():
        try:
            found[model] = LocalTokenizer(path)
        except SettingError as error:
            raise SettingError(str(error), setting="prefix.tokenizers") from None
    return found


def _read(body: bytes) -> dict[str, Any]:
    document = orjson.loads(body)
    if not isinstance(document, dict):
        raise ValueError("the body is no object")
    return document


def _blocks(
    ids: TokenIds, sizes: list[int], adapter: str, document: Mapping[str, Any]
) -> dict[int, array[int]]:
    salt = document.get("cache_salt")
    seed = root(adapter, salt if isinstance(salt, str) else "")
    return {size: hash_blocks(ids, size, seed) for size in sizes}
