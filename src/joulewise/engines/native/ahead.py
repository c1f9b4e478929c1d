"""Ahead: rounds that follow each other on the device, while the host reads what earlier ones made.

A round whose draft always has as many tokens needs nothing from the host: which tokens come next, and behind how many,
is what the last round left on the device. So the host starts a round before it has read the one before, and the device
never waits for it. The price is the round that runs while the host finds an end token in the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from joulewise.engines.native.together import Rows


@dataclass(frozen=True, slots=True)
class Blind:
    """Drafts that always have as many tokens, and are made of what lies on the device.

    Args:
        draft: takes the last two tokens of each text, shape ``(texts, 2)``, the tokens before the last one, shape
            ``(texts,)``, and the slots that may be read. Gives drafts, shape ``(texts, K)``.
        rows: what a draft model reads and writes; None: nothing.
    """

    draft: Callable[[Tensor, Tensor, int], Tensor]
    rows: Rows | None = None


class Told:
    """What a round made, on its way to the host.

    Args:
        told: on the device.
        host: page-locked memory of its shape; None: it is fetched when it is read, behind all that was queued by then.
    """

    def __init__(self, told: Tensor, host: Tensor | None) -> None:
        self._told, self._event = told, None
        if host is not None:
            self._told = host.copy_(told, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    def read(self) -> Any:
        """Wait for it: lists of numbers, as many deep as it has dimensions."""
        if self._event is not None:
            self._event.synchronize()
        return self._told.tolist()


class Ahead:
    """Rounds of drafts of constant length for a batch of texts, captured.

    Args:
        rows: the target's; they capture.
        blind: the drafts.
        most: their tokens.
        judge: takes nodes, shape ``(texts, W)``, the tokens before them, how many drafted ones count, and how many are
            accepted by lot (-1: the target judges); gives what is told.
    """

    def __init__(
        self, rows: Rows, blind: Blind, most: int, judge: Callable[[int, Tensor, Tensor, Tensor, Tensor], Tensor]
    ) -> None:
        device, texts = rows.model.device, rows.texts
        self._rows, self._judge = rows, judge
        self.blind, self.most = blind, most
        # Not in the memory that captured work shares: here the rounds hand on to each other.
        self._tail = torch.zeros(texts, 2, dtype=torch.long, device=device)
        self._state = torch.tensor([[1], [0], [-1]], device=device).repeat(1, texts)
        self._before, self._counts, self._forced = self._state
        self._drafted = torch.zeros(texts, self.most, dtype=torch.long, device=device)
        self._told = torch.zeros(texts, self.most + 2, dtype=torch.long, device=device)
        self._hosts: list[Tensor | None] = [None, None]
        if device.type == "cuda":
            self._hosts = [torch.empty_like(self._told, device="cpu").pin_memory() for _ in self._hosts]
        self._replays: dict[int, tuple[Callable[[], None], Callable[[], None]]] = {}

    def start(self, texts: Sequence[Sequence[int]], counts: Sequence[int]) -> None:
        """Begin behind these texts, prompt and output so far, drafting so many tokens that count."""
        told = torch.tensor([(*text[-2:], len(text) - 1, count) for text, count in zip(texts, counts, strict=True)])
        told = told.to(self._tail.device)
        self._tail.copy_(told[:, :2])
        self._state[:2].copy_(told[:, 2:].T)
        self._forced.fill_(-1)

    def prepare(self, span: int) -> None:
        """Capture rounds that may read so many slots; the caches must hold no text yet, or the one that is decoded."""
        if span not in self._replays:
            self._replays[span] = self._captured(span)

    def run(self, span: int, forced: Tensor | None, mark: Callable[[str], None]) -> Told:
        """One round behind the last one.

        Args:
            span: slots that it may read.
            forced: how many drafted tokens are accepted by lot, shape ``(texts,)``; None: the target judges.
            mark: told the name of each phase as it ends.
        """
        self.prepare(span)
        draft, verify = self._replays[span]
        if forced is not None:
            self._forced.copy_(forced)
        if self.most:
            draft()
            mark("draft")
        verify()
        mark("verify")
        host, other = self._hosts
        self._hosts = [other, host]
        told = Told(self._told if host is not None else self._told.clone(), host)
        mark("accept")
        return told

    def _captured(self, span: int) -> tuple[Callable[[], None], Callable[[], None]]:
        """What replays a draft, and a verdict. Capturing runs both, so what they change is put back."""

        def draft() -> None:
            self._drafted.copy_(self.blind.draft(self._tail, self._before, span))

        def verify() -> None:
            nodes = torch.cat((self._tail[:, 1:], self._drafted), dim=1)
            told = self._judge(span, nodes, self._before, self._counts, self._forced)
            self._told.copy_(told)
            accepted = told[:, :1]
            # A text that is done goes on until the host sees it, but not beyond the cache.
            before = (self._before + accepted[:, 0] + 1).clamp(max=self._rows.cache.capacity - nodes.shape[1])
            self._tail.copy_(torch.cat((nodes.gather(1, accepted), told[:, -1:]), dim=1))
            self._before.copy_(before)

        tail, state = self._tail.clone(), self._state.clone()
        replays = (self._rows.capture(draft) if self.most else draft), self._rows.capture(verify)
        self._tail.copy_(tail)
        self._state.copy_(state)
        return replays
