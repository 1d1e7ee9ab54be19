from laar.prefix.blocks import CHUNKS_32, GROWING, Chain, Grid, PromptHasher
from laar.prefix.index import IndexStats, PrefixIndex, Receipt

__all__ = [
    "CHUNKS_32",
    "GROWING",
    "Chain",
    "Grid",
    "IndexStats",
    "PrefixIndex",
    "PromptHasher",
    "Receipt",
]
