"""The KV cache: keys and values of past positions, per layer.

Global layers keep everything and grow by doubling; sliding layers keep at least the window and
move it to the front of their buffer when that is full. Heads are outermost, so that attention reads
contiguous rows. Nothing is committed before a whole forward pass has succeeded (``Cache.length``):
a pass that was interrupted can be repeated.
"""

from __future__ import annotations

import numpy as np

from npu.errors import ArgumentError

_FIRST_ROWS = 128


class LayerCache:
    """Keys and values of one layer, shape (kv_heads, rows, head_dim), from position ``start``."""

    def __init__(self, kv_heads: int, head_dim: int, window: int | None) -> None:
        self._window = window
        self.start = 0
        self.end = 0  # the position after the last one stored
        self._keys = np.empty((kv_heads, 0, head_dim), np.float32)
        self._values = np.empty((kv_heads, 0, head_dim), np.float32)

    def put(self, position: int, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Stores k, v (T, kv_heads, head_dim) at ``position``; returns views of all kept."""
        count = k.shape[0]
        if position + count - self.start > self._keys.shape[1]:
            self._make_room(position, count)
        begin = position - self.start
        end = begin + count
        self._keys[:, begin:end] = k.transpose(1, 0, 2)
        self._values[:, begin:end] = v.transpose(1, 0, 2)
        self.end = position + count
        return self._keys[:, :end], self._values[:, :end]

    def _make_room(self, position: int, count: int) -> None:
        first = self.start
        if self._window is not None:
            first = max(first, position - self._window + 1)
        kept = slice(first - self.start, position - self.start)
        needed = position + count - first
        rows = self._keys.shape[1]
        # A sliding layer's buffer grows to twice its window, so that it moves once per window.
        if rows < needed or (self._window is not None and rows < 2 * self._window):
            rows = max(needed, min(2 * rows, 2 * self._window if self._window else 2 * rows))
            rows = max(rows, _FIRST_ROWS)
        self._keys = _moved(self._keys, kept, rows)
        self._values = _moved(self._values, kept, rows)
        self.start = first


def _moved(buffer: np.ndarray, kept: slice, rows: int) -> np.ndarray:
    heads, _, head_dim = buffer.shape
    moved = np.empty((heads, rows, head_dim), np.float32)
    moved[:, : kept.stop - kept.start] = buffer[:, kept]
    return moved


class Cache:
    """The caches of all layers and the number of positions in them."""

    def __init__(
        self, windows: tuple[int | None, ...], kv_heads: int, head_dim: int, context: int
    ) -> None:
        self.context = context
        self.length = 0
        self.layers = [LayerCache(kv_heads, head_dim, window) for window in windows]

    @property
    def progress(self) -> float:
        """Positions that have been run, those of a pass in progress by the share of its layers."""
        return sum(layer.end for layer in self.layers) / max(1, len(self.layers))

    def check_room(self, count: int) -> None:
        if self.length + count > self.context:
            raise ArgumentError(
                f"[gemma3] {count} more tokens after {self.length} do not fit the context of "
                f"{self.context}; shorten the prompt or raise the context length"
            )
