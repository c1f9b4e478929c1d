"""Recorded: a function of tensors that is captured at its first call and replayed afterwards (CUDA graphs)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

from joulewise.engines.native.given_up import give_up
from joulewise.engines.native.session import Capture

T = TypeVar("T")


class Recorded(Generic[T]):
    """Calls ``work`` on buffers of its own. Of one shape, so that what differs must lie in the values.

    Args:
        work: all on the device, without a wait; to run it twice must not change what it gives.
        examples: as large as its inputs will ever be.
        capture: how it is captured. On a GPU ``lasting_cuda_graph``: a draft must outlast the target's forward.
        what: it is, for a message.
    """

    def __init__(self, work: Callable[..., T], examples: Sequence[Tensor], capture: Capture, what: str) -> None:
        self._work, self._capture, self._what = work, capture, what
        self._buffers = [torch.zeros_like(example) for example in examples]
        self._replay: Callable[[], None] | None = None
        self._made: list[T] = []

    def __call__(self, *inputs: Tensor | int) -> T:
        """The result for these inputs; it is valid until the next call.

        Args:
            inputs: one for each buffer: a number for all of it, or a tensor with as many rows or fewer. Rows that are
                not given keep what they held.
        """
        for buffer, given in zip(self._buffers, inputs, strict=True):
            if isinstance(given, Tensor):
                buffer[: len(given)].copy_(given)
            else:
                buffer.fill_(given)
        if self._replay is None:
            self._replay = self._captured()
        self._replay()
        return self._made[-1]

    def _captured(self) -> Callable[[], None]:
        try:
            return self._capture(self._run)
        except torch.OutOfMemoryError:
            give_up(self._what)
            return self._run

    def _run(self) -> None:
        self._made = [self._work(*self._buffers)]
