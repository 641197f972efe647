"""The Gemma 3 text decoder: its weights and the forward pass over a KV cache.

A token runs on the array as a whole (``npu.models.gemma3.decoder``), from the embedding row to the
logits: one submission, or one per layer on emulated devices, beside those of the other tokens where
a prompt has few. So do the layers of a prompt (``npu.models.gemma3.prefill``), chunk by chunk,
whose output head follows for the tokens whose logits are wanted, and the next tokens of up to eight
sequences, head included, with one pass over the weights, unless decode steps in turn take less
time. Of models of other sizes than these run, the projections and the head are products on the
array (bfloat16 operands, float32 accumulation), and what lies between them are operations of
``npu.ops.host``. Structure: Gemma 3 technical report
(arXiv 2503.19786); tensor names: llama.cpp's GGUF naming, whose norms store 1 + w.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from npu import _npu
from npu.devices import Device, current_device
from npu.errors import ArgumentError
from npu.formats.gguf_file import GgufFile
from npu.models import identity
from npu.models.gemma3 import names
from npu.models.gemma3.array_model import spread_heads
from npu.models.gemma3.config import Config, read_config
from npu.models.gemma3.decoder import MAX_TOP, Decoder
from npu.models.gemma3.names import check_tensors
from npu.models.gemma3.prefill import Prefill, chunk_length
from npu.models.gemma3.weights import HEAD, Projection, matrices
from npu.models.interface import MOST_NEW, MOST_SEQUENCES, PREFILL_CHUNK
from npu.models.kv_cache import Cache, Layout, Pool, running_together
from npu.models.prepare import WeightsReport, check_choice, plan, prepare
from npu.models.sampling import check_finite, largest
from npu.models.sources.gguf import GgufSource
from npu.models.sources.interface import Source
from npu.ops import host
from npu.ops.attention import array_head_dim

_FIRST_PAGES = 8  # of KV per layer, before the pool grows
# Tokens of a prompt that an emulated device runs as decode steps beside each other. Many more take
# longer than a prompt on the array, which expands all weights once: from some 35 on (Zen 4, 1B).
MOST_STEPS = 24


@dataclass(frozen=True)
class Layer:
    """Weights of one decoder layer; projections that share their input are one matrix."""

    window: int | None
    attention_norm: np.ndarray
    qkv: Projection
    q_norm: np.ndarray
    k_norm: np.ndarray
    output: Projection
    post_attention_norm: np.ndarray
    ffn_norm: np.ndarray
    gate_up: Projection
    down: Projection
    post_ffn_norm: np.ndarray


class Model:
    """A loaded model. ``weights_report`` says in which block formats its matrices are.

    ``progress(done, total)`` is called while weights are prepared, with bytes of blocks;
    ``weights``, ``cache`` and ``note`` are those of ``npu.gemma3.load``.
    """

    def __init__(
        self,
        source: Source | GgufFile,
        progress: Callable[[int, int], None] | None = None,
        weights: str = "auto",
        cache: bool = True,
        note: Callable[[str], None] | None = None,
    ) -> None:
        if isinstance(source, GgufFile):
            source = GgufSource(source)
        check_choice(weights)
        self.config = config = read_config(source)
        self.source = source
        # Of the head, and of prompts that run product by product.
        self.bf16 = current_device().bf16_chosen or "native"
        check_tensors(source, config)
        self._embedding_scale = 1.0 if source.embedding_scaled else config.embedding_scale
        segments = plan(source, matrices(source, config), weights)
        prepared = prepare(source, segments, weights, cache=cache, progress=progress, note=note)
        self.weights_report: WeightsReport = prepared.report
        projections = {
            key: Projection(tensors, self.bf16) for key, tensors in prepared.blocks.items()
        }
        self._layers = [
            _load_layer(source, config, index, projections) for index in range(config.layers)
        ]
        self._output_norm = source.float32(names.OUTPUT_NORM)
        # The most that the elements of a row sum to which was normalised with these weights: none
        # exceeds sqrt(width) times its weight.
        weights_sum = np.abs(self._output_norm, dtype=np.float64).sum()
        self._normed_sum = float(np.sqrt(config.width) * weights_sum)
        self._head = projections[HEAD]
        self._head_dim = array_head_dim(config.head_dim)
        self._layout = Layout(config.windows, config.kv_heads, self._head_dim)
        self._pool = Pool(self._layout.page_bytes, _FIRST_PAGES * config.layers)
        self._files, self._weights = identity.files_identity(source.paths), weights
        self._blocks = prepared.blocks
        self._decoders: dict[Device, Decoder | None] = {}  # devices are never closed
        self._prefills: dict[Device, Prefill | None] = {}
        self._decoder()

    def _decoder(self) -> Decoder | None:
        """Of the current device: made at load, on another device by the first token there."""
        device = current_device()
        if device not in self._decoders:
            self._decoders[device] = Decoder.of(
                self.config, self.source, self._blocks, self._embedding_scale
            )
        return self._decoders[device]

    def _prefill(self) -> Prefill | None:
        """Of the current device, made by its first prompt there. npu2 multiplies prompts in block
        floating point: who asked for native products gets those."""
        device = current_device()
        if device.generation == "npu2" and device.bf16_chosen == "native":
            return None
        if device not in self._prefills:
            self._prefills[device] = Prefill.of(self.config, self.source, self._blocks)
        return self._prefills[device]

    @property
    def weight_blocks(self) -> list[np.ndarray]:
        """What every token reads: the blocks of all matrices, the head's included, as bytes
        (uint8)."""
        return [tensor.blocks for tensors in self._blocks.values() for tensor in tensors]

    @property
    def decodes_on_array(self) -> bool:
        """Whether a token runs as a whole. Models of sizes that the decode configuration does
        not run (docs/decoder.md) compute between the products on the CPU."""
        return self._decoder() is not None

    @property
    def identity(self) -> str:
        """What keys and values depend on: the model's files, configuration and arithmetic, that of
        the current device included (npu.models.identity)."""
        prompts = "products" if self._prefill() is None else "array"
        return identity.identity(
            self._files, self.config, self._weights, current_device(), self.bf16, prompts
        )

    def new_cache(self, context: int | None = None) -> Cache:
        """An empty cache for up to ``context`` positions (default: the model's context)."""
        config = self.config
        context = config.context if context is None else context
        if not 1 <= context <= config.context:
            raise ArgumentError(
                f"[gemma3] a context of {context} was asked for, the model allows 1 to "
                f"{config.context}"
            )
        return Cache(self._layout, self._pool, context, self.identity)

    def forward(
        self, tokens: Sequence[int], cache: Cache, *, all_logits: bool = False
    ) -> np.ndarray:
        """Runs the tokens at the cache's next positions and adds them to it.

        Returns float32 logits (1, vocabulary) of the last token, or (T, vocabulary) of all, for
        which short prompts are no decode steps.
        """
        with cache.running(tokens):
            return self._passed(tokens, cache, all_logits)

    def _passed(
        self, tokens: Sequence[int] | np.ndarray, cache: Cache, all_logits: bool = False
    ) -> np.ndarray:
        """Logits of tokens of the cache's pass."""
        decoder = self._decoder_of(tokens)
        if decoder is not None and (len(tokens) == 1 or not all_logits):
            return self._capped(decoder.last_logits(self._checked(tokens).tolist(), cache))
        x = self._hidden(tokens, cache)
        return self._logits(x if all_logits else x[-1:])

    @property
    def batches_on_array(self) -> bool:
        """Whether the array can run a step of several sequences with one pass over the weights: on
        devices and for sizes with which prompts run on it (docs/prefill.md)."""
        return self._prefill() is not None

    @property
    def _steps_alone(self) -> bool:
        """Whether a token of each of several sequences is a decode step of each. An emulated device
        expands all weights for a batch on the array, which takes it longer than eight steps."""
        return current_device().prefers == "host" and self.decodes_on_array

    @property
    def joined_tokens(self) -> int:
        """How many of a prompt's last tokens are best left to the next ``decode_batch``: as many as
        a batch on the array takes, or 1 where it runs a decode step of each sequence."""
        return 1 if self._steps_alone else MOST_NEW

    def decode_batch(
        self, tokens: Sequence[int | Sequence[int]], caches: Sequence[Cache]
    ) -> np.ndarray:
        """Runs the next 1 to 8 tokens of each of 1 to 8 sequences and adds them to their caches.

        tokens: per sequence an id, or several; caches: of this model, each once. Returns float32
        logits (sequences, vocabulary) of each one's last token, which do not depend on the other
        sequences. Raises ArgumentError for other counts, ids or caches, and where a context is
        full; if the step fails or is interrupted, all caches stay as they were. Where not
        ``batches_on_array``, sequences run one after the other. Those with one new token run by
        decode steps there and on a device that prefers what is fastest on the host
        (``npu.device``, ``designs``), beside each other on emulated devices.
        """
        if not 1 <= len(tokens) <= MOST_SEQUENCES or len(caches) != len(tokens):
            raise ArgumentError(
                f"[decode_batch] tokens of {len(tokens)} sequences and {len(caches)} caches were "
                f"given; give 1 to {MOST_SEQUENCES} sequences, each with its cache"
            )
        ids = [self._batch_ids(own) for own in tokens]
        for index, cache in enumerate(caches):
            self._check_batch_cache(index, cache, caches)
        with running_together(caches, ids):
            prefill = self._prefill()
            least = 2 if self._steps_alone else 1  # new tokens of a sequence in a batch
            joined = [i for i, own in enumerate(ids) if prefill is not None and len(own) >= least]
            alone = [i for i in range(len(ids)) if i not in joined]
            out = np.empty((len(ids), self.config.vocabulary), np.float32)
            decoder = self._decoder()
            steps = [i for i in alone if decoder is not None and len(ids[i]) == 1]
            if decoder is not None and steps:
                last = [int(ids[i][0]) for i in steps]
                logits = decoder.logits(last, [caches[i] for i in steps])
                if len(steps) == len(ids):  # 8 MB that need not be copied
                    return self._capped(logits)
                out[steps] = self._capped(logits)
            for i in alone:
                if i not in steps:
                    out[i] = self._passed(ids[i], caches[i])[0]
            if prefill is not None and joined:
                rows = self.source.float32(
                    names.EMBEDDING, np.concatenate([ids[i] for i in joined])
                )
                x = host.embed(rows, self._embedding_scale)
                counts = [len(ids[i]) for i in joined]
                out[joined] = self._capped(
                    prefill.run_batch(x, counts, [caches[i] for i in joined])
                )
            return out

    def _batch_ids(self, tokens: int | Sequence[int]) -> np.ndarray:
        ids = self._checked(np.atleast_1d(tokens))
        if len(ids) > MOST_NEW:
            raise ArgumentError(
                f"[decode_batch] {len(ids)} tokens of a sequence were given, a step runs up to "
                f"{MOST_NEW}; run those before with extend"
            )
        return ids

    def _check_batch_cache(self, index: int, cache: Cache, caches: Sequence[Cache]) -> None:
        if any(cache is other for other in caches[:index]):
            raise ArgumentError(
                f"[decode_batch] cache {index} is among those before it; a sequence needs a cache "
                "of its own, use fork"
            )
        if not cache.lies_in(self._pool) or cache.identity != self.identity:
            raise ArgumentError(
                f"[decode_batch] cache {index} is of another model, device or arithmetic "
                f"({cache.identity}, this is {self.identity}); use new_cache of this model"
            )

    def extend(self, tokens: Sequence[int], cache: Cache, chunk: int = PREFILL_CHUNK) -> None:
        """Runs tokens in chunks at the cache's next positions, without logits."""
        cache.check_room(len(tokens))
        while len(tokens):
            count = chunk_length(cache.length, chunk)
            with cache.running(tokens[:count]):
                self._run(tokens[:count], cache)
            tokens = tokens[count:]

    def prefill(
        self, tokens: Sequence[int], cache: Cache, chunk: int = PREFILL_CHUNK
    ) -> np.ndarray:
        """Runs a prompt in chunks; returns the logits (1, vocabulary) of its last token."""
        return self.forward(self._without_last(tokens, cache, chunk), cache)

    def top(
        self,
        tokens: Sequence[int],
        cache: Cache,
        k: int,
        size: int,
        chunk: int = PREFILL_CHUNK,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Like ``prefill``, for the k largest of the first ``size`` logits and their ids.

        Largest first, equal ones by id. The head finds up to 64 on the device, so that its
        other logits do not leave the array. Raises FormatError if a logit is not finite.
        """
        last = self._without_last(tokens, cache, chunk)
        with cache.running(last):
            decoder = self._decoder_of(last)
            if decoder is not None:
                return self._top_of_few(decoder, self._checked(last).tolist(), cache, k, size)
            x = host.rms_norm(self._hidden(last, cache)[-1], self._output_norm, self.config.eps)
            found = None
            if self.config.logit_softcap is None:  # which makes equal what is not
                found = self._head.top(x, k, size)
            return found or _largest_of(self._projected(x[None])[0, :size], k)

    def _are_steps(self, tokens: Sequence[int] | np.ndarray) -> bool:
        """Whether they are few enough to run as decode steps beside each other. So they do, one
        after the other, on emulated devices that do not repeat runs: with the same results."""
        return len(tokens) <= MOST_STEPS and current_device().emulated and self._steps_alone

    def _decoder_of(self, tokens: Sequence[int] | np.ndarray) -> Decoder | None:
        """Where these tokens run as decode steps."""
        return self._decoder() if len(tokens) == 1 or self._are_steps(tokens) else None

    def _run(self, tokens: Sequence[int] | np.ndarray, cache: Cache) -> None:
        """Tokens of the cache's pass, without logits."""
        decoder = self._decoder() if self._are_steps(tokens) else None
        if decoder is not None:
            decoder.extend(self._checked(tokens).tolist(), cache)
        else:
            self._hidden(tokens, cache)

    def _top_of_few(
        self, decoder: Decoder, tokens: list[int], cache: Cache, k: int, size: int
    ) -> tuple[np.ndarray, np.ndarray]:
        # The cap makes equal what is not; a list from the device does not show all that is NaN.
        safe = self.config.logit_softcap is None and self._head.finite_for(self._normed_sum)
        # Nor does the array run fewer rows than two row-blocks have.
        if not safe or not 1 <= k <= min(MAX_TOP, size) or size <= _npu.facts.BLOCK_ROWS:
            return _largest_of(self._capped(decoder.last_logits(tokens, cache)[0, :size]), k)
        values, ids = decoder.top(tokens, cache, k, size)
        check_finite(values)
        return values, ids

    def _without_last(self, tokens: Sequence[int], cache: Cache, chunk: int) -> Sequence[int]:
        """Runs all chunks of a prompt but the last, which is returned."""
        cache.check_room(len(tokens))
        left = tokens
        while len(left) > (count := chunk_length(cache.length, chunk)):
            with cache.running(left[:count]):
                self._run(left[:count], cache)
            left = left[count:]
        return left

    def _hidden(self, tokens: Sequence[int] | np.ndarray, cache: Cache) -> np.ndarray:
        """The last layer's output for the tokens of the cache's pass."""
        ids = self._checked(tokens)
        prefill = self._prefill()
        if prefill is not None:
            x = host.embed(self.source.float32(names.EMBEDDING, ids), self._embedding_scale)
            return prefill.run(x, cache)
        tables = self._rope_tables(cache.length, len(ids))
        # Overflow is legitimate in GELU; bad weights show in the logits, which the sampler checks.
        with np.errstate(over="ignore", invalid="ignore"):
            x = host.embed(self.source.float32(names.EMBEDDING, ids), self._embedding_scale)
            for index, layer in enumerate(self._layers):
                x = x + self._attention(layer, x, cache, index, tables[layer.window is not None])
                x = x + self._feed_forward(layer, x)
        return x

    def _checked(self, tokens: Sequence[int] | np.ndarray) -> np.ndarray:
        ids = np.asarray(tokens)
        if ids.ndim != 1 or ids.size == 0 or not np.issubdtype(ids.dtype, np.integer):
            raise ArgumentError("[gemma3] expected a non-empty list of token ids")
        if ids.min() < 0 or ids.max() >= self.config.vocabulary:
            raise ArgumentError(
                f"[gemma3] token ids span {ids.min()} to {ids.max()}, the vocabulary has "
                f"{self.config.vocabulary}"
            )
        return ids

    def _rope_tables(self, start: int, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Rotation tables of the global (0) and of the sliding (1) layers."""
        c = self.config
        return [
            host.rope_table(start, count, c.head_dim, c.rope_base, c.rope_factor),
            host.rope_table(start, count, c.head_dim, c.rope_base_sliding),
        ]

    def _attention(
        self,
        layer: Layer,
        x: np.ndarray,
        cache: Cache,
        index: int,
        table: tuple[np.ndarray, np.ndarray],
    ) -> np.ndarray:
        c = self.config
        count, q_size, kv_size = x.shape[0], c.heads * c.head_dim, c.kv_heads * c.head_dim
        qkv = layer.qkv.multiply(host.rms_norm(x, layer.attention_norm, c.eps))
        q = qkv[:, :q_size].reshape(count, c.heads, c.head_dim)
        k = qkv[:, q_size : q_size + kv_size].reshape(count, c.kv_heads, c.head_dim)
        v = qkv[:, q_size + kv_size :].reshape(count, c.kv_heads, c.head_dim)
        q = host.rope(host.rms_norm(q, layer.q_norm, c.eps), table)
        k = host.rope(host.rms_norm(k, layer.k_norm, c.eps), table)
        wide = self._head_dim
        cache.put(index, cache.length, spread_heads(k, wide), _padded(v, wide))
        mixed = host.paged_attention(
            spread_heads(q, self._head_dim),
            cache.pool,
            cache.page_table(index),
            kv_heads=c.kv_heads,
            start=cache.length,
            scale=c.attention_scale,
            window=layer.window,
        )
        if wide != c.head_dim:
            heads = mixed.reshape(count, c.heads, wide)[..., : c.head_dim]
            mixed = np.ascontiguousarray(heads).reshape(count, -1)
        return host.rms_norm(layer.output.multiply(mixed), layer.post_attention_norm, c.eps)

    def _feed_forward(self, layer: Layer, x: np.ndarray) -> np.ndarray:
        c = self.config
        gate_up = layer.gate_up.multiply(host.rms_norm(x, layer.ffn_norm, c.eps))
        hidden = host.geglu(gate_up[:, : c.ffn_width], gate_up[:, c.ffn_width :])
        return host.rms_norm(layer.down.multiply(hidden), layer.post_ffn_norm, c.eps)

    def _logits(self, x: np.ndarray) -> np.ndarray:
        return self._projected(host.rms_norm(x, self._output_norm, self.config.eps))

    def _projected(self, x: np.ndarray) -> np.ndarray:
        return self._capped(self._head.multiply(x))

    def _capped(self, logits: np.ndarray) -> np.ndarray:
        cap = self.config.logit_softcap
        if cap is not None:
            # Bad weights show in the result, which the sampler checks.
            with np.errstate(over="ignore", invalid="ignore"):
                logits = cap * np.tanh(logits / np.float32(cap))
        return logits


def _largest_of(logits: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    check_finite(logits)
    ids = largest(logits, min(k, logits.size))
    return logits[ids], ids


def _padded(v: np.ndarray, head_dim: int) -> np.ndarray:
    """(..., d) with zeros up to head_dim."""
    if v.shape[-1] == head_dim:
        return v
    return np.pad(v, [(0, 0)] * (v.ndim - 1) + [(0, head_dim - v.shape[-1])])


def _load_layer(
    source: Source, config: Config, index: int, projections: dict[str, Projection]
) -> Layer:
    def norm(name: str) -> np.ndarray:
        return source.float32(f"blk.{index}.{name}.weight")

    return Layer(
        window=config.windows[index],
        attention_norm=norm("attn_norm"),
        qkv=projections[f"{index}.qkv"],
        q_norm=norm("attn_q_norm"),
        k_norm=norm("attn_k_norm"),
        output=projections[f"{index}.output"],
        post_attention_norm=norm("post_attention_norm"),
        ffn_norm=norm("ffn_norm"),
        gate_up=projections[f"{index}.gate_up"],
        down=projections[f"{index}.down"],
        post_ffn_norm=norm("post_ffw_norm"),
    )
