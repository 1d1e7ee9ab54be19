from laar.prefix.blocks import GROWING, Chain, Grid, PromptHasher
from laar.prefix.index import IndexStats, PrefixIndex, Receipt

__all__ = [
    "GROWING",
    "Chain",
    "Grid",
    "IndexStats",
    "PrefixIndex",
    "PromptHasher",
    "Receipt",
]
