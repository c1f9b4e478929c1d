"""Session: a model on one cache. Forwards run as they are, or are captured once and replayed (CUDA graphs).

A captured forward has fixed shapes: the number of its tokens is rounded up to one of ``WIDTHS``, that of the slots it
reads to a multiple of ``BUCKET``; on our own kernels, which find that number on the device, one forward serves all
lengths. What differs from call to call (the tokens, the tree, the length) lies in buffers on the device, and the mask
is made from them inside the graph. So is the verdict on a draft: every small kernel that the host starts after a
forward costs as much as a layer.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from joulewise.engines.native.attention import Sight
from joulewise.engines.native.cache import KV
from joulewise.engines.native.given_up import give_up
from joulewise.engines.native.model import DecoderModel, Hidden
from joulewise.engines.native.tree import Tree, chain

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 11, 16, 21, 32, 48, 64, 96, 128, 192, 257)
"""Tokens of a captured forward; more run as they are. 6, 11 and 21 are a root with 5, 10 and 20 drafted tokens."""

BUCKET = 256
"""Slots that a captured forward reads come in multiples of this."""

PROMPT_STEP = 64
"""A prompt is filled up to a multiple of so many tokens. For a number of tokens that is new to it the library chooses
each product's kernel anew: on an H200 some 60 ms, in which the card idles. Its kernels work in tiles about as large."""

ROOM = 2048
"""A captured session has room for so many tokens at least; a longer text makes a larger one, and captures anew."""

_WARM_UPS = 2


def prompt_width(tokens: int) -> int:
    """How many tokens a GPU reads for a prompt of so many: what fills it up lies behind its end, where none sees it."""
    return -(-tokens // PROMPT_STEP) * PROMPT_STEP


def prompt_widths() -> Sequence[int]:
    """All of them up to ``ROOM``."""
    return range(PROMPT_STEP, prompt_width(ROOM) + 1, PROMPT_STEP)


def fill_up(tokens: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Prompts of one length, shape ``(..., P)``, filled up to ``(..., width)``, and their tokens' positions.

    Positions have the shape ``(width,)``. What fills up has the last one: no table of positions is overrun.
    """
    count = tokens.shape[-1]
    filled = torch.nn.functional.pad(tokens, (0, width - count))
    return filled, torch.arange(width, device=tokens.device).clamp(max=count - 1)


class Judging(NamedTuple):
    """How a forward is to judge the draft that it reads.

    Args:
        match: what the model likes best is accepted, and the cache keeps the accepted path; False: whoever asks judges.
        depth: accept to this depth, shape ``(1,)``, whatever the model likes; None: no lot.
    """

    match: bool = True
    depth: Tensor | None = None


class Judged(NamedTuple):
    """The verdict of a forward on its draft. Valid until the same shape runs again.

    Args:
        told: how many tokens were accepted; the tokens of the path from the root's child on, of which so many count;
            the token that follows. What the host waits for.
        way: the nodes of the path, the root first.
        host: page-locked memory for what is told; None where there is no way to go.
    """

    told: Tensor
    way: Tensor
    host: Tensor | None = None


class Made(NamedTuple):
    """What a forward gives.

    Args:
        hidden: hidden states at the nodes.
        logits: shape ``(W, rows)``.
        judged: the verdict, where one was asked for and the session can; else None.
    """

    hidden: Hidden
    logits: Tensor
    judged: Judged | None


class Session(Protocol):
    """A model's forwards on one cache."""

    cache: KV
    judges: bool
    """Whether its forwards can judge."""

    def prefill(self, tokens: Tensor) -> Hidden:
        """Read a prompt, shape ``(P,)``, from slot 0 on."""
        ...

    def forward(self, nodes: Tensor, length: int, tree: Tree, judging: Judging | None = None) -> Made:
        """Read the nodes of a tree, shape ``(W,)``, behind ``length`` tokens.

        Returns:
            What is at the nodes, valid until anything captured runs.
        """
        ...


class Eager:
    """Forwards as they are. See ``Session``."""

    judges = False

    def __init__(self, model: DecoderModel, capacity: int) -> None:
        self._model = model
        self.cache = model.new_cache(capacity)

    def prefill(self, tokens: Tensor) -> Hidden:
        """Read a prompt."""
        return self._model.forward(self.cache, tokens, 0, None)

    def forward(self, nodes: Tensor, length: int, tree: Tree, judging: Judging | None = None) -> Made:
        """Read the nodes of a tree."""
        mask = None if tree.chain else tree.mask(length)
        hidden = self._model.forward(self.cache, nodes, length, mask, length + tree.depths)
        return Made(hidden, self._model.logits(hidden), None)


CHAIN = -1
"""In place of a tree's height: the draft is a chain."""

_HEIGHTS = (8, 16, 32, 64, 128, 256)
_NO_LIMIT = 1 << 30


def height_class(height: int) -> int:
    """The height for which a forward that judges trees is captured: their own, rounded up."""
    return next(most for most in _HEIGHTS if most >= height)


class _Verdict:
    """Judges inside a captured forward.

    Args:
        width: nodes, and what fills them up.
        height: the most that the trees have, or ``CHAIN``.
        device: the model's.
    """

    def __init__(self, width: int, height: int, device: torch.device) -> None:
        self._height = width - 1 if height == CHAIN else min(height, width - 1)
        self._chain = height == CHAIN
        self._nodes = torch.arange(width, device=device)
        self._steps = torch.arange(self._height + 1, device=device)
        self._parents = torch.zeros(width, dtype=torch.long, device=device)
        self._count = torch.ones(1, dtype=torch.long, device=device)
        self._limit = torch.full((1,), _NO_LIMIT, device=device)
        self._by_lot = torch.zeros(1, dtype=torch.bool, device=device)
        self._match = torch.ones(1, dtype=torch.bool, device=device)
        self._last: tuple[int, bool, bool] | None = None
        # Not in the memory that all graphs share: the next draft reads the token while others run.
        self.told = torch.zeros(self._height + 2, dtype=torch.long, device=device)
        self.way = torch.zeros(self._height + 1, dtype=torch.long, device=device)
        self.host = torch.zeros_like(self.told, device="cpu").pin_memory() if device.type == "cuda" else None

    @property
    def judged(self) -> Judged:
        """The verdict."""
        return Judged(self.told, self.way, self.host)

    def set(self, count: int, tree: Tree | None, judging: Judging) -> None:
        """Fill in what the next run reads; ``tree`` is None where it is the last one."""
        if tree is not None:
            self._parents[:count].copy_(tree.parents)
        now = count, judging.depth is not None, judging.match
        if now != self._last:
            self._last = now
            self._count.fill_(count)
            self._by_lot.fill_(judging.depth is not None)
            self._match.fill_(judging.match)
            self._limit.fill_(_NO_LIMIT)
        if judging.depth is not None:
            self._limit.copy_(judging.depth)

    def run(self, tokens: Tensor, ancestors: Tensor, depths: Tensor, drawn: Tensor, cache: KV, length: Tensor) -> None:
        """Find the end of the accepted path, and let the cache keep that path; ``drawn`` at every node."""
        agreed = (tokens[1:] == drawn[self._parents[1:]]) | self._by_lot
        agreed = torch.cat((self._by_lot.new_ones(1), agreed & (self._nodes[1:] < self._count)))
        open_ = ~(ancestors & ~agreed).any(dim=1) & (depths <= self._limit)
        last = torch.where(open_, depths, -1).argmax(dim=0, keepdim=True)
        if self._chain:
            way = self._steps
        else:
            on_it = ancestors[last][0]  # one number as an index would make the host wait
            way = (self._nodes + torch.where(on_it, 0, len(self._nodes))).sort().indices[: self._height + 1]
        self.way.copy_(way)
        self.told.copy_(torch.cat((depths[last], tokens[way[1:]], drawn[last])))
        if not self._chain:
            cache.move_at(length + torch.where(self._match, way, self._steps), length + self._steps)


class _Forward:
    """One forward of fixed shapes.

    Args:
        model, cache: what it runs on.
        width: its tokens.
        span: the slots that it reads.
    """

    def __init__(self, model: DecoderModel, cache: KV, width: int, span: int, height: int | None) -> None:
        self._model, self._cache, self._span = model, cache, span
        self._width = width
        self._verdict = None if height is None else _Verdict(width, height, model.device)
        self._tokens = torch.zeros(width, dtype=torch.long, device=model.device)
        self._length = torch.zeros(1, dtype=torch.long, device=model.device)
        # A node that only fills the width sees itself and the prefix.
        self._alone = torch.eye(width, dtype=torch.bool, device=model.device)
        self._ancestors = self._alone.clone()
        self._depths = torch.zeros(width, dtype=torch.long, device=model.device)
        self._count = 0  # nodes of the last run
        self._tree: Tree | None = None
        self._made: tuple[Hidden, Tensor] | None = None

    def set(self, nodes: Tensor, length: int | Tensor, tree: Tree, judging: Judging | None) -> None:
        """Fill in what the next run reads."""
        count = len(nodes)
        fresh = tree is not self._tree
        if count < self._count:
            # An int8 forward depends on every token in it, so what fills the width may not depend on earlier calls.
            self._tokens[count:].zero_()
            self._depths[count:].zero_()
            self._ancestors[count:].copy_(self._alone[count:])
        self._count = count
        self._tokens[:count].copy_(nodes)
        if isinstance(length, Tensor):
            self._length.copy_(length)
        else:
            self._length.fill_(length)
        if fresh:
            self._ancestors[:count, :count].copy_(tree.ancestors)
            self._depths[:count].copy_(tree.depths)
            # Only chains are the same object again with the same values; a captured draft's tree is written over.
            self._tree = tree if tree.chain else None
        if self._verdict is not None:
            self._verdict.set(count, tree if fresh else None, judging or Judging(match=False))

    def run(self) -> None:
        """The work itself, all of it on the device."""
        slots = self._length + torch.arange(self._width, device=self._model.device)
        positions = self._length + self._depths
        hidden = self._model.forward_at(self._cache, self._tokens, slots, self._span, self._mask(), positions)
        logits = self._model.logits(hidden)
        self._made = hidden, logits
        if self._verdict is not None:
            drawn = self._model.likeliest(logits)
            self._verdict.run(self._tokens, self._ancestors, self._depths, drawn, self._cache, self._length)

    def _mask(self) -> Tensor | Sight:
        if self._model.sights:
            return Sight(self._length, self._ancestors)
        behind = torch.arange(self._span, device=self._model.device) - self._length
        drafted = (behind >= 0) & (behind < self._width)
        return (behind < 0) | (drafted & self._ancestors[:, behind.clamp(0, self._width - 1)])

    def result(self, count: int, judged: bool) -> Made:
        """What the last run made of the first ``count`` nodes."""
        assert self._made is not None
        hidden, logits = self._made
        verdict = self._verdict if judged else None
        return Made(hidden[:count], logits[:count], None if verdict is None else verdict.judged)


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


def prepare_session(model: DecoderModel, most: Mapping[int | None, int]) -> None:
    """On a GPU, capture a model's forwards now: not in a window that is measured. See ``Captured``."""
    session = open_session(model, ROOM)
    if isinstance(session, Captured):
        session.prepare_prompts()
        session.prepare(most)


Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""Takes what is to be captured, runs it once at least, and gives what replays it."""


class Captured:
    """Forwards captured at their first use. See ``Session``.

    A shape is its tokens, the slots it reads and what it judges: nothing (None), chains (``CHAIN``), or trees up to a
    height.

    Args:
        model: the model.
        capacity: tokens of prompt, output and one draft.
        capture: how; None captures CUDA graphs.
    """

    judges = True

    def __init__(self, model: DecoderModel, capacity: int, capture: Capture | None = None) -> None:
        self._model = model
        self.capacity = capacity
        # Room for the nodes that only fill a width, up to the end of a bucket.
        self.cache = model.new_cache(-(-(capacity + WIDTHS[-1]) // BUCKET) * BUCKET)
        self._capture = capture or cuda_graph
        self._forwards: dict[tuple[int, int, int | None], tuple[_Forward, Callable[[], None]] | None] = {}
        self.prepared: dict[int | None, int] = {}
        """Forwards over so many tokens, and fewer, are captured at every length, by what they judge."""

    def prepare(self, most: Mapping[int | None, int]) -> None:
        """Capture the forwards over up to so many tokens, at every length: before anything is measured.

        The cache must hold no text yet.

        Args:
            most: tokens, by what the forwards judge.
        """
        for judged, tokens in most.items():
            self.prepared[judged] = max(self.prepared.get(judged, 0), min(tokens, WIDTHS[-1]))
            enough = next(w for w in WIDTHS if w >= self.prepared[judged])
            for width in [w for w in WIDTHS if w <= enough]:
                tree = chain(width - 1, self._model.device)
                nodes = torch.zeros(width, dtype=torch.long, device=self._model.device)
                for span in self._spans(width):
                    self._have((width, span, judged), nodes, 0, tree, None if judged is None else Judging())

    def _spans(self, width: int) -> Sequence[int]:
        """The slots that forwards over so many tokens read."""
        if self._model.sights:
            return (self.cache.capacity,)
        return range(-(-width // BUCKET) * BUCKET, self.cache.capacity + 1, BUCKET)

    def prefill(self, tokens: Tensor) -> Hidden:
        """Read a prompt; not captured, and of a length that others have too (``prompt_width``)."""
        count = len(tokens)
        filled, positions = fill_up(tokens, min(prompt_width(count), self.cache.capacity))
        return self._model.forward(self.cache, filled, 0, None, positions)[:count]

    def prepare_prompts(self) -> None:
        """Read prompts of every width up to ``ROOM`` once, so that the library has chosen its kernels."""
        for width in prompt_widths():
            try:
                self.prefill(torch.zeros(width, dtype=torch.long, device=self._model.device))
            except torch.OutOfMemoryError:  # a prompt of this length will say so, if one ever comes
                return

    def forward(self, nodes: Tensor, length: int, tree: Tree, judging: Judging | None = None) -> Made:
        """Read the nodes of a tree by a captured forward."""
        count = len(nodes)
        width = next((w for w in WIDTHS if w >= count), count)
        span = self.cache.capacity if self._model.sights else -(-(length + width) // BUCKET) * BUCKET
        judged = None if judging is None else CHAIN if tree.chain else height_class(tree.height)
        captured = self._have((width, span, judged), nodes, length, tree, judging) if width in WIDTHS else None
        if captured is None:
            hidden = self._model.forward(self.cache, nodes, length, tree.mask(length), length + tree.depths)
            return Made(hidden, self._model.logits(hidden), None)
        forward, replay = captured
        forward.set(nodes, length, tree, judging)
        replay()
        return forward.result(count, judging is not None and judging.match)

    def _have(
        self, shape: tuple[int, int, int | None], nodes: Tensor, length: int, tree: Tree, judging: Judging | None
    ) -> tuple[_Forward, Callable[[], None]] | None:
        """The captured forward of a shape, captured now if it was not; None if there is no memory for it."""
        if shape not in self._forwards:
            forward = _Forward(self._model, self.cache, *shape)
            # Capturing runs the forward, which writes to the cache: it must be about the right tokens already.
            forward.set(nodes, length, tree, judging)
            self._forwards[shape] = self._try_to_capture(forward, shape[0])
        return self._forwards[shape]

    def _try_to_capture(self, forward: _Forward, width: int) -> tuple[_Forward, Callable[[], None]] | None:
        try:
            return forward, self._capture(forward.run)
        except torch.OutOfMemoryError:
            give_up(f"a forward of {self._model.loaded.name} over {width} tokens")
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
    collects = gc.isenabled()
    gc.disable()  # to free what lies in another graph's memory would end the capture
    try:
        with torch.cuda.graph(graph, pool=pool):
            run()
    finally:
        if collects:
            gc.enable()
    replay: Callable[[], None] = graph.replay
    return replay


def uncaptured(run: Callable[[], None]) -> Callable[[], None]:
    """Runs what would be captured each time: the same shapes and buffers where there are no graphs (for tests)."""
    run()
    return run
