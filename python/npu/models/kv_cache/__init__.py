"""The KV cache: keys and values of past positions in pages of one memory pool.

``cache.py`` has the cache and what a pass does with it, ``pool.py`` the memory, ``layout.py`` its
layout, ``file.py`` caches in files.
"""

from npu.models.kv_cache.cache import SLIDING_HISTORY, Cache, running_together
from npu.models.kv_cache.layout import PAGE, Layout
from npu.models.kv_cache.pool import Pool

__all__ = ["PAGE", "SLIDING_HISTORY", "Cache", "Layout", "Pool", "running_together"]
