"""The target writes: greedy answers to a person's prompts, and to user turns that it makes up itself.

A made-up turn is what the model samples behind its own chat prefix, up to the end of the turn (as in Magpie, arXiv
2406.08464): no data set is needed, and the texts are those that the model meets.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from joulewise.engines.engine import Message, Sampling
from joulewise.engines.native.accept import Chooser
from joulewise.engines.native.model import DecoderModel
from joulewise.engines.native.training.batch import write_batch
from joulewise.engines.native.training.data import Writer
from joulewise.engines.transformers.loading import Loaded, out_of_memory
from joulewise.engines.transformers.prompts import encode
from joulewise.errors import UserError

GREEDY = Sampling()

TURN_TOKENS = 128
"""A made-up user turn that has not ended after so many tokens is dropped."""

_OWN_TURNS = "user turns that the target made up"
_MARK = "joulewise-user-turn"
_BARREN = 5
_PROMPT_KEYS = ("prompt", "question", "messages", "turns", "text")


@dataclass(frozen=True, slots=True)
class Writing:
    """How texts are written.

    Args:
        tokens: of answers to have in the folder; it stops at the first batch that reaches them.
        max_new_tokens: of an answer.
        batch: texts at once.
        seed: of the made-up turns.
        deadline_s: when to stop in any case, monotonic seconds.
    """

    tokens: int
    max_new_tokens: int = 384
    batch: int = 16
    seed: int = 0
    deadline_s: float = float("inf")


def read_prompts(file: Path) -> list[tuple[Message, ...]]:
    """The prompts of a person's file: JSON Lines if its name says so (``.jsonl``, ``.jsonl.gz``), else a text a line.

    A row's prompt is its field ``prompt``, ``question`` or ``text``, the first of its ``turns``, or its ``messages``
    (``role`` and ``content``; an answer at the end is left out).

    Raises:
        UserError: no such file, or a row without a prompt, with its line.
    """
    from joulewise.tasks.rows import read_jsonl

    found: list[tuple[Message, ...]]
    if ".jsonl" not in file.suffixes:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{file} could not be read as text ({error}): name a file with a prompt a line.") from error
        found = [(Message("user", line.strip()),) for line in lines if line.strip()]
        if not found:
            raise UserError(f"{file} holds no prompts: it needs one a line.")
        return found
    found = []
    for place, row in read_jsonl(file):
        if isinstance(row, UserError):
            raise row
        found.append(_messages(place, row))
    return found


def _messages(place: str, row: Any) -> tuple[Message, ...]:
    key = next((key for key in _PROMPT_KEYS if row.get(key)), None)
    value = row[key] if key else None
    if isinstance(value, str):
        return (Message("user", value),)
    if key == "turns" and isinstance(value, list) and isinstance(value[0], str):
        return (Message("user", value[0]),)
    if key == "messages" and isinstance(value, list) and all(isinstance(m, dict) for m in value):
        told = [Message(str(m.get("role")), str(m.get("content"))) for m in value]  # type: ignore[arg-type]
        told = told[:-1] if told[-1].role == "assistant" else told
        if told:
            return tuple(told)
    raise UserError(f"{place}: no prompt in it: it needs one of the fields {', '.join(_PROMPT_KEYS)}.")


def write_texts(
    loaded: Loaded,
    folder: Path,
    how: Writing,
    prompts: Sequence[tuple[Message, ...]] = (),
    origin: str | None = None,
    exclude: Sequence[tuple[Message, ...]] = (),
    say: Callable[[str], None] = lambda _: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Writer:
    """Add texts to a folder, a person's prompts first, then turns that the target makes up, until there are enough.

    The same call goes on where a stop or a kill left it. What it writes then is what it would have written at once.

    Args:
        loaded: the target; its attention is replaced for good.
        folder: held alone by the caller.
        how: how much, and until when.
        prompts: a person's.
        origin: where these come from, for ``data.json``.
        exclude: prompts that must not be in the data, such as those of a benchmark.
        say: told of the progress.
        stopped: whether to stop after the batch in flight.

    Returns:
        What the folder holds now.

    Raises:
        UserError: a folder of another target, nothing to write from, or answers longer than the target's context.
        EnvironmentFault: no memory or no disk left.
    """
    if not prompts:
        _around_a_turn(loaded)  # refuses before anything is written
    longest = (loaded.context_length or 1 << 30) - how.max_new_tokens
    if longest < 1:
        raise UserError(
            f"--max-new-tokens {how.max_new_tokens} is not possible: {loaded.name} has {loaded.context_length} "
            "positions for a prompt and its answer; name fewer."
        )
    model = DecoderModel(loaded)
    writer = Writer(
        folder,
        loaded,
        {
            "prompts": origin or _OWN_TURNS,
            "then": _OWN_TURNS if origin and loaded.tokenizer.chat_template else None,
            "seed": how.seed,
            "max_new_tokens": how.max_new_tokens,
            "torch": torch.__version__,
        },
    )
    taboo = {tuple(encode(loaded, messages)[0].tolist()) for messages in exclude}
    progress = _Progress(writer, how, say, stopped)

    def usable(prompt: Sequence[int]) -> bool:
        return len(prompt) <= longest and tuple(prompt) not in taboo and not writer.knows(prompt)

    given = (encode(loaded, messages)[0].tolist() for messages in prompts)
    fresh = (prompt for prompt in given if usable(prompt))
    while not progress.over and (chosen := list(islice(fresh, how.batch))):
        writer.add(list(zip(chosen, _write(model, chosen, how.max_new_tokens), strict=True)))
        progress.tell()
    if progress.over:
        return writer
    if prompts and not loaded.tokenizer.chat_template:
        say(f"all prompts are answered, and {loaded.name}, without a chat template, cannot make up more")
        return writer

    prefix, suffix = _around_a_turn(loaded)
    barren = 0
    while not progress.over and barren < _BARREN:
        seed = _seed(how.seed, writer.texts, barren)
        made = [
            encode(loaded, (Message("user", turn),))[0].tolist() for turn in _turns(model, prefix, suffix, how, seed)
        ]
        chosen = [list(prompt) for prompt in dict.fromkeys(map(tuple, made)) if usable(prompt)]
        new = writer.add(list(zip(chosen, _write(model, chosen, how.max_new_tokens), strict=True))) if chosen else 0
        barren = 0 if new else barren + 1
        progress.tell()
    if barren == _BARREN:
        say(f"{loaded.name} makes up nothing new any more: give prompts of your own with --prompts")
    return writer


class _Progress:
    """Says how far it is, and when to stop."""

    def __init__(self, writer: Writer, how: Writing, say: Callable[[str], None], stopped: Callable[[], bool]) -> None:
        self._writer, self._how, self._say, self._stopped = writer, how, say, stopped
        self._start_s, self._had = time.monotonic(), writer.answer_tokens

    @property
    def over(self) -> bool:
        enough = self._writer.answer_tokens >= self._how.tokens
        return enough or self._stopped() or time.monotonic() >= self._how.deadline_s

    def tell(self) -> None:
        there, wanted = self._writer.answer_tokens, self._how.tokens
        pace = (there - self._had) / (time.monotonic() - self._start_s)
        left = f", about {max(wanted - there, 0) / pace / 60:.1f} min left" if pace else ""
        self._say(f"{self._writer.texts:,} texts, {there:,} of {wanted:,} answer tokens, {pace:,.0f} a second{left}")


def _seed(*parts: int) -> int:
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=7).digest(), "big")


def _around_a_turn(loaded: Loaded) -> tuple[str, str]:
    """What the chat template puts before a user turn, and behind it."""
    if not loaded.tokenizer.chat_template or loaded.encoder_decoder:
        raise UserError(
            f"{loaded.name} has no chat template, so it cannot make up user turns: give prompts with --prompts."
        )
    text = loaded.tokenizer.apply_chat_template([{"role": "user", "content": _MARK}], tokenize=False)
    prefix, mark, suffix = text.partition(_MARK)
    if not mark or not prefix:
        raise UserError(f"The chat template of {loaded.name} shows no user turn as it is: give prompts with --prompts.")
    return prefix, suffix


def _turns(model: DecoderModel, prefix: str, suffix: str, how: Writing, seed: int) -> Iterator[str]:
    """User turns that the target makes up."""
    tokenizer, ends = model.loaded.tokenizer, model.loaded.eos_token_ids
    start = tokenizer(prefix, add_special_tokens=False)["input_ids"]
    closing = suffix.strip()
    for tokens in _write(model, [start] * how.batch, TURN_TOKENS, Sampling(1.0, 0.95), seed):
        text = tokenizer.decode(tokens, skip_special_tokens=True)
        before, closed, _ = text.partition(closing) if closing else (text, "", "")
        if (tokens[-1] in ends or closed) and before.strip():
            yield before.strip()


def _write(
    model: DecoderModel, prompts: Sequence[list[int]], limit: int, sampling: Sampling = GREEDY, seed: int = 0
) -> list[list[int]]:
    loaded = model.loaded
    try:
        with torch.inference_mode():
            return write_batch(model, prompts, limit, loaded.eos_token_ids, Chooser.of(sampling, seed, model.device))
    except torch.OutOfMemoryError as error:
        what = f"{len(prompts)} texts of {loaded.name} at once (see --batch)"
        raise out_of_memory(what, str(model.device)) from error
