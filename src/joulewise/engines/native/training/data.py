"""Texts that a target wrote: prompts and its own answers, in a folder that grows batch by batch.

``tokens.bin`` holds all texts end to end, ``index.bin`` three numbers a text (tokens of the prompt, of the answer, and
1 if it is held out), ``data.json`` where they come from and how many they are. Tokens are written before the index and
the index before the count, so whatever a kill leaves behind them is cut off when the folder is opened again. Fewer
tokens than the index tells, or fewer texts than were counted, are damage: to read them is refused, and a writer keeps
the texts that are whole.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from joulewise.engines.native.training.files import cannot_write, read_json, write_json
from joulewise.engines.transformers.loading import Loaded
from joulewise.errors import UserError

HELD_OUT_OF = 25
"""One prompt of so many is held out, told by its hash alone."""

SHORTEST = 4
"""Tokens of a text that can teach anything of a draft."""

_ROW = 3
_FILES = ("data.json", "index.bin", "tokens.bin")


@dataclass(frozen=True, slots=True)
class Batch:
    """Texts side by side.

    Args:
        tokens: filled up with zeros behind the end of shorter texts, shape ``(texts, W)``.
        answer: true where the target wrote a token, shape ``(texts, W)``.
    """

    tokens: Tensor
    answer: Tensor


@dataclass(frozen=True, slots=True)
class Texts:
    """An opened folder.

    Args:
        folder: where.
        about: of ``data.json``.
        tokens: of all texts, end to end.
        index: a row a text: tokens of the prompt, tokens of the answer, held out or not.
    """

    folder: Path
    about: dict[str, Any]
    tokens: npt.NDArray[Any]
    index: npt.NDArray[np.int32]

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each text."""
        lengths: npt.NDArray[np.int64] = self.index[:, :2].sum(axis=1, dtype=np.int64)
        return lengths

    @property
    def answer_tokens(self) -> int:
        """That the target wrote, in all texts."""
        return int(self.index[:, 1].sum(dtype=np.int64))

    def first(self, count: int) -> Texts:
        """The first so many texts: what a training began with, though the folder has grown since."""
        return Texts(self.folder, self.about, self.tokens, self.index[:count])

    def where(self, held_out: bool) -> npt.NDArray[np.int64]:
        """The numbers of the texts of one split."""
        return np.flatnonzero(self.index[:, 2] == held_out)

    def prompt(self, text: int) -> Tensor:
        """The tokens of a prompt, shape ``(P,)``."""
        start = int(self.lengths[:text].sum())
        return torch.from_numpy(self.tokens[start : start + int(self.index[text, 0])].astype(np.int64))

    def held_out_prompts(self, count: int) -> list[Tensor]:
        """Prompts that nothing is trained on, at most so many, spread evenly over all there are."""
        numbers = self.where(held_out=True)
        places = np.linspace(0, len(numbers), min(count, len(numbers)), endpoint=False).astype(np.int64)
        return [self.prompt(int(number)) for number in numbers[places]]

    def batches(self, held_out: bool, tokens: int, longest: int) -> list[npt.NDArray[np.int64]]:
        """Texts of similar length together.

        Args:
            held_out: of which split.
            tokens: a batch has at most so many, what fills it up included; a single longer text is one all the same.
            longest: tokens that a text is cut to.

        Returns:
            The numbers of each batch's texts, shortest texts first.
        """
        chosen = self.where(held_out)
        chosen = chosen[self.lengths[chosen] >= SHORTEST]
        sizes = np.minimum(self.lengths[chosen], longest)
        order = np.argsort(sizes, kind="stable")
        made: list[npt.NDArray[np.int64]] = []
        first = 0
        for last in range(1, len(order) + 1):
            if last == len(order) or (last + 1 - first) * sizes[order[last]] > tokens:
                made.append(chosen[order[first:last]])
                first = last
        return made

    def batch(self, texts: npt.NDArray[np.int64], longest: int, device: torch.device) -> Batch:
        """Read a batch.

        Args:
            texts: their numbers.
            longest: tokens that a text is cut to.
            device: where to.
        """
        ends = np.cumsum(self.lengths)
        sizes = np.minimum(self.lengths[texts], longest)
        tokens = np.zeros((len(texts), int(sizes.max())), dtype=np.int64)
        answer = np.zeros(tokens.shape, dtype=np.bool_)
        for row, (text, size) in enumerate(zip(texts, sizes, strict=True)):
            start = ends[text] - self.lengths[text]
            tokens[row, :size] = self.tokens[start : start + size]
            answer[row, self.index[text, 0] : size] = True
        return Batch(torch.from_numpy(tokens).to(device), torch.from_numpy(answer).to(device))

    def frequent(self, count: int) -> Tensor:
        """The ``count`` most frequent tokens of the training texts' answers, in the order of their ids.

        Of equally frequent ones those with the smaller id; fewer than ``count`` if no more ever occur.
        """
        counts = np.zeros(int(self.about["vocabulary_rows"]), dtype=np.int64)
        ends = np.cumsum(self.lengths)
        for text in self.where(held_out=False):
            np.add.at(counts, self.tokens[ends[text] - self.index[text, 1] : ends[text]].astype(np.int64), 1)
        best = np.argsort(-counts, kind="stable")[:count]
        return torch.from_numpy(np.sort(best[counts[best] > 0]))


def is_there(folder: Path) -> bool:
    """Whether texts were written to a folder."""
    return all((folder / name).is_file() for name in _FILES)


def open_texts(folder: Path, target: Loaded | None = None) -> Texts:
    """Open a folder to read.

    Args:
        folder: that ``joulewise heads data`` wrote.
        target: the model that must have written it; None takes any.

    Raises:
        UserError: no such folder, an empty or damaged one, or one of another model.
    """
    texts = _open(folder, target)
    way_out = (
        f"run `joulewise heads data {texts.about['target']} --out {folder}` again, which keeps the whole texts and "
        "adds to them, or write the data anew in another folder."
    )
    if len(texts.index) < (counted := texts.about["texts"]):
        raise UserError(
            f"{folder / 'index.bin'} is damaged: it holds {len(texts.index):,} texts, and data.json tells of "
            f"{counted:,}; {way_out}"
        )
    file = folder / "tokens.bin"
    expected, found = int(texts.lengths.sum()) * texts.tokens.dtype.itemsize, file.stat().st_size
    if found < expected:
        raise UserError(f"{file} is damaged: it holds {found:,} bytes, and index.bin tells of {expected:,}; {way_out}")
    return texts


def _open(folder: Path, target: Loaded | None) -> Texts:
    """Open a folder whose tokens may be fewer than its index tells."""
    if not is_there(folder):
        raise UserError(f"{folder} holds no texts: write some with `joulewise heads data TARGET --out {folder}`.")
    about = read_json(folder / "data.json")
    try:
        dtype, rows, name = np.dtype(about["dtype"]), int(about["vocabulary_rows"]), str(about["target"])
        about["texts"] = int(about.get("texts", 0))  # earlier versions did not count
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{folder / 'data.json'} lacks or misstates {error}: write the data again.") from error
    if target is not None and about["tokenizer"] != fingerprint(target):
        raise UserError(
            f"The texts in {folder} were written by {name} ({rows} rows), and {target.name} has another vocabulary "
            "or another chat template: name the data's own target, or write data with this one."
        )
    index = np.fromfile(folder / "index.bin", dtype=np.int32)
    index = index[: len(index) // _ROW * _ROW].reshape(-1, _ROW)
    # The index first: a writer at work may add to both.
    held = (folder / "tokens.bin").stat().st_size // dtype.itemsize
    total = min(int(index[:, :2].sum(dtype=np.int64)), held)
    tokens = np.memmap(folder / "tokens.bin", dtype=dtype, mode="r", shape=(total,)) if total else np.zeros(0, dtype)
    return Texts(folder, about, tokens, index)


def fingerprint(target: Loaded) -> str:
    """Of what makes a target's texts its own as far as ids go: vocabulary and chat template."""
    vocabulary = sorted(target.tokenizer.get_vocab().items())
    content = repr((vocabulary, target.tokenizer.chat_template, target.vocabulary_rows))
    return hashlib.sha256(content.encode()).hexdigest()[:16]


class Writer:
    """Adds texts to a folder and refuses those that are there already.

    Args:
        folder: made by the caller, who holds it alone.
        target: that writes.
        origin: what the texts are made from this time; added to the origins in ``data.json``.

    Raises:
        UserError: a folder of another model.
    """

    def __init__(self, folder: Path, target: Loaded, origin: dict[str, Any]) -> None:
        self._folder = folder
        if not is_there(folder):
            dtype = "uint16" if target.vocabulary_rows <= 1 << 16 else "uint32"
            about = {"target": target.name, "tokenizer": fingerprint(target), "notes": list(target.notes)}
            for name in _FILES[1:]:
                (folder / name).touch()
            write_json(
                folder / "data.json",
                about | {"vocabulary_rows": target.vocabulary_rows, "dtype": dtype, "origins": [origin]},
            )
        texts = _open(folder, target)
        whole = int(np.searchsorted(texts.lengths.cumsum(), len(texts.tokens), side="right"))
        texts = texts.first(whole)
        self._about = texts.about
        if origin not in self._about["origins"]:
            self._about = self._about | {"origins": [*self._about["origins"], origin]}
        self._dtype = np.dtype(texts.about["dtype"])
        os.truncate(folder / "tokens.bin", int(texts.lengths.sum()) * self._dtype.itemsize)
        os.truncate(folder / "index.bin", texts.index.nbytes)
        self.texts, self.answer_tokens = len(texts.index), texts.answer_tokens
        self._count()
        self._seen = {_digest(part) for text in _parts(texts) for part in text}

    def knows(self, prompt: Sequence[int]) -> bool:
        """Whether a text with this prompt is there."""
        return _digest(np.asarray(prompt, self._dtype)) in self._seen

    def add(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> int:
        """Add prompts with their answers; whole once this returns.

        Returns:
            How many were new, in prompt and in answer: an answer that is there already, perhaps on the other side of
            the split, would not be held out.
        """
        tokens: list[npt.NDArray[Any]] = []
        rows: list[tuple[int, int, int]] = []
        for prompt, answer in pairs:
            parts = [np.asarray(part, self._dtype) for part in (prompt, answer)]
            digests = [_digest(part) for part in parts]
            if not len(answer) or self._seen.intersection(digests):
                continue
            self._seen.update(digests)
            tokens += parts
            rows.append((len(prompt), len(answer), int(int.from_bytes(digests[0], "big") % HELD_OUT_OF == 0)))
        if rows:
            self._append("tokens.bin", np.concatenate(tokens).tobytes())
            self._append("index.bin", np.asarray(rows, np.int32).tobytes())
            self.texts += len(rows)
            self.answer_tokens += sum(row[1] for row in rows)
            self._count()
        return len(rows)

    def _count(self) -> None:
        write_json(self._folder / "data.json", self._about | {"texts": self.texts})

    def _append(self, name: str, content: bytes) -> None:
        try:
            with (self._folder / name).open("ab") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise cannot_write(self._folder / name, error) from error


def _parts(texts: Texts) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
    start = 0
    for prompt, answer, _ in texts.index.tolist():
        middle, end = start + prompt, start + prompt + answer
        yield np.asarray(texts.tokens[start:middle]), np.asarray(texts.tokens[middle:end])
        start = end


def _digest(tokens: npt.NDArray[Any]) -> bytes:
    return hashlib.blake2b(tokens.tobytes(), digest_size=8).digest()
