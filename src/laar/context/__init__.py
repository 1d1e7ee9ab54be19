from laar.context.aligner import Alignment, OrderIndex
from laar.context.cache import DocCache
