"""Learn where each model's chat template puts the parts of a prompt, by querying an engine once.

The engine returns the token ids of a few chats (`laar.prefix.probing`) through ``POST /tokenize``,
which vLLM and SGLang provide.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import aiohttp
import numpy as np
import orjson

from laar.datalayer.fetching import options_for, read_capped, visiting_session
from laar.fleet.endpoints import EndpointTable
from laar.fleet.membership import EndpointSpec
from laar.prefix.beliefs import PrefixBeliefs
from laar.prefix.probing import PROBES, template_of
from laar.prefix.templates import Template
from laar.prefix.tokens import TokenIds

MAX_ANSWER_BYTES = 1 << 20
"""Maximum size of a ``/tokenize`` response; a probe has about 2,000 ids. Decoding it blocks the
event loop."""
ASK_TIMEOUT_S = 10.0
PROBE_EVERY_S = 10.0
"""Seconds between searches for new models, and between retries if engines did not answer."""

_LOG = logging.getLogger(__name__)


class TemplateProbes:
    """A collector that learns the chat template of each model."""

    def __init__(self, prefixes: PrefixBeliefs, table: EndpointTable) -> None:
        self._known = prefixes.templates
        self._table = table
        self._refused: set[str] = set()

    async def run(self) -> None:
        """Probe until cancelled."""
        headers = {"content-type": "application/json", "user-agent": "laar-templates"}
        timeout = aiohttp.ClientTimeout(total=ASK_TIMEOUT_S)
        async with visiting_session(headers, timeout) as session:
            while True:
                specs = [spec for spec in self._table.specs() if spec.models and spec.generates]
                self._refused &= {spec.address for spec in specs}
                for spec in specs:
                    if spec.models[0] not in self._known and spec.address not in self._refused:
                        await self._ask(spec, session)
                await asyncio.sleep(PROBE_EVERY_S)

    async def _ask(self, spec: EndpointSpec, session: aiohttp.ClientSession) -> None:
        model = spec.models[0]
        try:
            ids = [await ask_engine(session, spec, probe, model) for probe in PROBES]
        except (aiohttp.ClientError, OSError):  # the engine may be restarting: try again later
            return
        except ValueError:  # no such path, or the template rejects a chat
            ids = []
        # If a different question gives the same ids, the engine did not read the chats.
        if not ids or not all(map(len, ids)) or np.array_equal(ids[0], ids[3]):
            self._refused.add(spec.address)
            return
        template = template_of(ids)
        self._known |= {  # a name shared by models with different templates gets the default one
            name: template if self._known.get(name, template)[:-1] == template[:-1] else Template()
            for name in spec.models
        }
        traits = [name.replace("_", " ") for name, on in template._asdict().items() if on is True]
        _LOG.info("%s: chat template learned (%s)", model, ", ".join(traits) or "messages in order")


async def ask_engine(
    session: aiohttp.ClientSession, spec: EndpointSpec, chat: Mapping[str, Any], model: str
) -> TokenIds:
    """Return the token ids of a chat's prompt, as computed by an engine.

    Raise `ValueError` if the response has no token ids, and `ClientError`, `OSError` or
    `TimeoutError` if the engine did not answer, or is not ready yet.
    """
    async with session.post(
        spec.url("/tokenize"),
        data=orjson.dumps({**chat, "model": model}),
        allow_redirects=False,
        **options_for(spec),
    ) as answer:
        body = await read_capped(answer.content, MAX_ANSWER_BYTES)
        if answer.status in (429, 502, 503, 504):  # the engine is starting or busy
            answer.raise_for_status()
        if answer.status != 200:
            raise ValueError(f"POST /tokenize answered {answer.status}")
    try:
        return np.array(orjson.loads(body)["tokens"], np.uint32).reshape(-1)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, OverflowError):
        raise ValueError("POST /tokenize: the answer has no token ids") from None
