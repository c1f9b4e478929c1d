"""Session: a model on one cache. Forwards run as they are, or are captured once and replayed (CUDA graphs).

A captured forward has fixed shapes: the number of its tokens is rounded up to one of ``WIDTHS``, that of the slots it
reads to a multiple of ``BUCKET``. What differs from call to call (the tokens, the tree, the length) lies in buffers on
the device, and the mask is made from them inside the graph.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol

import torch
from torch import Tensor

from joulewise.engines.native.cache import KV
from joulewise.engines.native.model import DecoderModel, Hidden
from joulewise.engines.native.tree import Tree, chain

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 11, 16, 21, 32, 48, 64, 96, 128, 192, 257)
"""Tokens of a captured forward; more run as they are. 6, 11 and 21 are a root with 5, 10 and 20 drafted tokens."""

BUCKET = 256
"""Slots that a captured forward reads come in multiples of this."""

ROOM = 2048
"""A captured session has room for so many tokens at least; a longer text makes a larger one, and captures anew."""

_WARM_UPS = 2


class Session(Protocol):
    """A model's forwards on one cache."""

    cache: KV

    def prefill(self, tokens: Tensor) -> Hidden:
        """Read a prompt, shape ``(P,)``, from slot 0 on."""
        ...

    def forward(self, nodes: Tensor, length: int, tree: Tree) -> tuple[Hidden, Tensor]:
        """Read the nodes of a tree, shape ``(W,)``, behind ``length`` tokens.

        Returns:
            Hidden states and logits at the nodes, shape ``(W, rows)``. They are valid until anything captured runs.
        """
        ...


class Eager:
    """Forwards as they are. See ``Session``."""

    def __init__(self, model: DecoderModel, capacity: int) -> None:
        self._model = model
        self.cache = model.new_cache(capacity)

    def prefill(self, tokens: Tensor) -> Hidden:
        """Read a prompt."""
        return self._model.forward(self.cache, tokens, 0, None)

    def forward(self, nodes: Tensor, length: int, tree: Tree) -> tuple[Hidden, Tensor]:
        """Read the nodes of a tree."""
        mask = None if tree.chain else tree.mask(length)
        hidden = self._model.forward(self.cache, nodes, length, mask, length + tree.depths)
        return hidden, self._model.logits(hidden)


class _Forward:
    """One forward of fixed shapes.

    Args:
        model, cache: what it runs on.
        width: its tokens.
        span: the slots that it reads.
    """

    def __init__(self, model: DecoderModel, cache: KV, width: int, span: int) -> None:
        self._model, self._cache, self._span = model, cache, span
        self._tokens = torch.zeros(width, dtype=torch.long, device=model.device)
        self._length = torch.zeros(1, dtype=torch.long, device=model.device)
        # A node that only fills the width sees itself and the prefix.
        self._alone = torch.eye(width, dtype=torch.bool, device=model.device)
        self._ancestors = self._alone.clone()
        self._depths = torch.zeros(width, dtype=torch.long, device=model.device)
        self._count = 0  # nodes of the last run
        self._made: tuple[Hidden, Tensor] | None = None

    def set(self, nodes: Tensor, length: int, tree: Tree) -> None:
        """Fill in what the next run reads."""
        count = len(nodes)
        if count < self._count:
            # An int8 forward depends on every token in it, so what fills the width may not depend on earlier calls.
            self._tokens[count:].zero_()
            self._depths[count:].zero_()
            self._ancestors[count:].copy_(self._alone[count:])
        self._count = count
        self._tokens[:count].copy_(nodes)
        self._length.fill_(length)
        self._ancestors[:count, :count].copy_(tree.ancestors)
        self._depths[:count].copy_(tree.depths)

    def run(self) -> None:
        """The work itself, all of it on the device."""
        width = len(self._tokens)
        behind = torch.arange(self._span, device=self._model.device) - self._length
        drafted = (behind >= 0) & (behind < width)
        mask = (behind < 0) | (drafted & self._ancestors[:, behind.clamp(0, width - 1)])
        slots = self._length + torch.arange(width, device=self._model.device)
        positions = self._length + self._depths
        hidden = self._model.forward_at(self._cache, self._tokens, slots, self._span, mask, positions)
        self._made = hidden, self._model.logits(hidden)

    def result(self, count: int) -> tuple[Hidden, Tensor]:
        """What the last run made of the first ``count`` nodes."""
        assert self._made is not None
        hidden, logits = self._made
        return hidden[:count], logits[:count]


def open_session(model: DecoderModel, capacity: int) -> Session:
    """A session with room for ``capacity`` tokens. On a GPU the model's one is taken again, with what it captured."""
    if model.device.type != "cuda":
        return Eager(model, capacity)
    kept = model.session
    if isinstance(kept, Captured) and kept.capacity >= capacity:
        return kept
    model.session = larger = Captured(model, max(capacity, ROOM))
    if isinstance(kept, Captured):
        larger.prepare(kept.prepared)
    return larger


def prepare_session(model: DecoderModel, most: int) -> None:
    """On a GPU, capture a model's forwards over up to ``most`` tokens now: not in a window that is measured."""
    session = open_session(model, ROOM)
    if isinstance(session, Captured):
        session.prepare(most)


Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""Takes what is to be captured, runs it once at least, and gives what replays it."""


class Captured:
    """Forwards captured at their first use. See ``Session``.

    Args:
        model: the model.
        capacity: tokens of prompt, output and one draft.
        capture: how; None captures CUDA graphs.
    """

    def __init__(self, model: DecoderModel, capacity: int, capture: Capture | None = None) -> None:
        self._model = model
        self.capacity = capacity
        # Room for the nodes that only fill a width, up to the end of a bucket.
        self.cache = model.new_cache(-(-(capacity + WIDTHS[-1]) // BUCKET) * BUCKET)
        self._capture = capture or cuda_graph
        self._forwards: dict[tuple[int, int], tuple[_Forward, Callable[[], None]] | None] = {}
        self.prepared = 0
        """Forwards over so many tokens, and fewer, are captured at every length."""

    def prepare(self, most: int) -> None:
        """Capture the forwards over up to ``most`` tokens, at every length: before anything is measured.

        The cache must hold no text yet.
        """
        self.prepared = max(self.prepared, min(most, WIDTHS[-1]))
        enough = next(w for w in WIDTHS if w >= self.prepared)
        for width in [w for w in WIDTHS if w <= enough]:
            tree = chain(width - 1, self._model.device)
            nodes = torch.zeros(width, dtype=torch.long, device=self._model.device)
            for span in range(-(-width // BUCKET) * BUCKET, self.cache.capacity + 1, BUCKET):
                self._have(width, span, nodes, 0, tree)

    def prefill(self, tokens: Tensor) -> Hidden:
        """Read a prompt; not captured, since every prompt has another length."""
        return self._model.forward(self.cache, tokens, 0, None)

    def forward(self, nodes: Tensor, length: int, tree: Tree) -> tuple[Hidden, Tensor]:
        """Read the nodes of a tree by a captured forward."""
        count = len(nodes)
        width = next((w for w in WIDTHS if w >= count), count)
        span = -(-(length + width) // BUCKET) * BUCKET
        captured = self._have(width, span, nodes, length, tree) if width in WIDTHS else None
        if captured is None:
            hidden = self._model.forward(self.cache, nodes, length, tree.mask(length), length + tree.depths)
            return hidden, self._model.logits(hidden)
        forward, replay = captured
        forward.set(nodes, length, tree)
        replay()
        return forward.result(count)

    def _have(
        self, width: int, span: int, nodes: Tensor, length: int, tree: Tree
    ) -> tuple[_Forward, Callable[[], None]] | None:
        """The captured forward of a shape, captured now if it was not; None if there is no memory for it."""
        if (width, span) not in self._forwards:
            forward = _Forward(self._model, self.cache, width, span)
            # Capturing runs the forward, which writes to the cache: it must be about the right tokens already.
            forward.set(nodes, length, tree)
            self._forwards[width, span] = self._try_to_capture(forward, width)
        return self._forwards[width, span]

    def _try_to_capture(self, forward: _Forward, width: int) -> tuple[_Forward, Callable[[], None]] | None:
        try:
            return forward, self._capture(forward.run)
        except torch.OutOfMemoryError:
            warnings.warn(
                f"No memory is left to capture a forward of {self._model.loaded.name} over {width} tokens: it runs "
                "uncaptured, which is slower; use a smaller model or draft, or fewer tokens.",
                RuntimeWarning,
                stacklevel=2,
            )
            return None


@lru_cache
def _anchor(device: int) -> torch.cuda.CUDAGraph:
    """A graph that is never let go of: a device's pool ends with its last graph, and its handle is then refused."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.zeros(1, device=f"cuda:{device}")
    return graph


def cuda_graph(run: Callable[[], None]) -> Callable[[], None]:
    """Captures a CUDA graph on the memory that all of these share. What it gives is valid until another one runs."""
    return _cuda_graph(run, _anchor(torch.cuda.current_device()).pool())


def lasting_cuda_graph(run: Callable[[], None]) -> Callable[[], None]:
    """Captures a CUDA graph on memory of its own. What it gives is valid until it runs again."""
    return _cuda_graph(run, None)


def _cuda_graph(run: Callable[[], None], pool: Any) -> Callable[[], None]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_WARM_UPS):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        run()
    replay: Callable[[], None] = graph.replay
    return replay


def uncaptured(run: Callable[[], None]) -> Callable[[], None]:
    """Runs what would be captured each time: the same shapes and buffers where there are no graphs (for tests)."""
    run()
    return run
