"""Chains of prompts that are given in parts."""

from __future__ import annotations

from collections.abc import Sequence

from laar.prefix.blocks import Chain, PromptHasher


class Hasher(PromptHasher):
    """Hashes prompts given in parts."""

    def chain(self, spans: Sequence[str], salt: str = "") -> Chain:
        return self.chain_of("".join(spans).encode("utf-8", "surrogatepass"), salt)
