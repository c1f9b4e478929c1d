"""Given: batches of prompts of random tokens, for a sweep: how long they are is all that matters."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from joulewise.decoding import Vanilla
from joulewise.engines.engine import Generation, Sampling
from joulewise.engines.native.accept import Chooser, match
from joulewise.engines.native.drafters import CHAINS, Parts, make_drafter, runs_ahead
from joulewise.engines.native.given_up import note_of, noting
from joulewise.engines.native.loop import Decoded, decode
from joulewise.engines.native.model import DecoderModel
from joulewise.engines.native.session import BUCKET, Captured, Judging, open_session
from joulewise.engines.native.together import Rows, decode_together, prepare_rows
from joulewise.engines.native.tree import chain
from joulewise.engines.transformers.loading import out_of_memory


class Given:
    """Batches of one model. A batch of one is decoded by the loop for one text, more by that for several.

    Args:
        model: the model.
        capacity: prompt and output tokens of the longest request, so that nothing grows, and is captured anew.
    """

    def __init__(self, model: DecoderModel, capacity: int) -> None:
        self._model, self._capacity = model, capacity + 2
        self._rows: dict[int, Rows] = {}
        self._given_up: dict[int, list[str]] = {}  # by load, what could not be captured; it stays so
        self._parts = Parts(model, None, None, Chooser.of(Sampling(), 0, model.device), ())
        self._fewest = 1 if runs_ahead(Vanilla(), self._parts) else 2  # texts that go to the loop for several
        with torch.inference_mode():
            open_session(model, self._capacity)  # a larger one captures again what the last one had

    def batch(self, running: int, prompt_tokens: int, output_tokens: int) -> Callable[[], tuple[Generation, ...]]:
        """Requests that are ready to run side by side: what they need is captured, and all kernels ran once.

        Args:
            running: how many.
            prompt_tokens, output_tokens: of each, the end token counting for nothing.

        Returns:
            Runs them, at each call anew, and returns when the device is done.

        Raises:
            EnvironmentFault: no memory is left.
        """
        try:
            try:
                return self._ready(running, prompt_tokens, output_tokens)
            except torch.OutOfMemoryError:
                self._rows.clear()  # caches of other loads
                self._given_up = {n: what for n, what in self._given_up.items() if n < self._fewest}
                torch.cuda.empty_cache()
                return self._ready(running, prompt_tokens, output_tokens)
        except torch.OutOfMemoryError as error:
            what = (
                f"{running} texts of {prompt_tokens} prompt and {output_tokens} new tokens of {self._model.loaded.name}"
            )
            raise out_of_memory(what, str(self._model.device)) from error

    def _ready(self, running: int, prompt_tokens: int, output_tokens: int) -> Callable[[], tuple[Generation, ...]]:
        source = torch.Generator().manual_seed(prompt_tokens)
        shape = (running, prompt_tokens)
        rows = self._model.loaded.vocabulary_rows
        prompts = list(torch.randint(rows, shape, generator=source).to(self._model.device))
        with self._noting(running), torch.inference_mode():
            self._capture(running, prompt_tokens + 1, prompt_tokens + output_tokens)
        self._run(prompts, min(output_tokens, 2))
        return lambda: self._run(prompts, output_tokens)

    def _capture(self, running: int, first: int, last: int) -> None:
        """On a GPU, capture one-token forwards that reach from one length to another."""
        model = self._model
        if running >= self._fewest:
            if running not in self._rows:
                self._rows[running] = Rows(model, running, self._capacity, None)
            if model.device.type == "cuda":
                prepare_rows(self._rows[running], CHAINS[Vanilla](Vanilla(), self._parts), first, last)
            return
        session = open_session(model, self._capacity)
        if isinstance(session, Captured):
            token, alone = torch.zeros(1, dtype=torch.long, device=model.device), chain(0, model.device)
            for end in (*range(first, last, BUCKET), last):
                session.forward(token, end - 1, alone, Judging())

    @contextmanager
    def _noting(self, running: int) -> Iterator[None]:
        """Keep what is given up within the block, for a load: every later batch of it runs so."""
        with noting() as found:
            try:
                yield
            finally:
                if found:
                    self._given_up.setdefault(running, []).extend(found)

    def _run(self, prompts: list[Tensor], output_tokens: int) -> tuple[Generation, ...]:
        model = self._model
        start_s = time.monotonic()
        with self._noting(len(prompts)), torch.inference_mode():
            vanilla, parts = Vanilla(), self._parts
            made: tuple[Decoded, ...]
            if len(prompts) < self._fewest:
                made = (
                    decode(model, make_drafter(vanilla, parts), prompts[0], output_tokens, (), match, parts.chooser),
                )
            else:
                limits = [output_tokens] * len(prompts)
                chains = CHAINS[Vanilla](vanilla, parts)
                made = decode_together(model, chains, prompts, limits, (), rows=self._rows[len(prompts)])
            if model.device.type == "cuda":
                torch.cuda.synchronize(model.device)
        note = note_of(self._given_up.get(len(prompts), ()))
        whole = Generation("", (), 0, "length", start_s, time.monotonic(), note=note)
        return tuple(
            replace(whole, token_ids=one.tokens, prompt_tokens=len(prompt), first_token_s=one.first_token_s)
            for one, prompt in zip(made, prompts, strict=True)
        )
