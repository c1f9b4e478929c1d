"""The training loop: batches in an order that the seed decides, checkpoints that a kill cannot break, a recipe.

All that a step depends on is the recipe, the data and the step's number, so a training that was stopped goes on as if
it had not been (to the bit on a CPU).
"""

from __future__ import annotations

import json
import math
import platform
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from joulewise import __version__
from joulewise.engines.native.training.data import Texts
from joulewise.engines.native.training.files import write_json, write_whole
from joulewise.engines.native.training.losses import Outcome
from joulewise.engines.native.training.students import VARIANTS, Recipe, Student, new_student, open_target
from joulewise.engines.transformers.loading import Loaded, out_of_memory
from joulewise.errors import UserError

CHECKPOINT = "training/checkpoint.safetensors"
"""Weights and optimiser state, in float32: what a training goes on from. Not needed to use what was trained."""

_POINTS = 200
_HELD_OUT_BATCHES = 8
_MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True)
class Trained:
    """Where a training stands.

    Args:
        folder: with the published head or draft.
        step, steps: done, and in all.
        report: what ``recipe.json`` says.
    """

    folder: Path
    step: int
    steps: int
    report: Mapping[str, Any]

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        return self.step == self.steps


def train(
    recipe: Recipe,
    loaded: Loaded,
    texts: Texts,
    folder: Path,
    deadline_s: float = math.inf,
    checkpoint_every_s: float = 60.0,
    say: Callable[[str], None] = lambda _: None,
    after_step: Callable[[int], None] = lambda _: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Trained:
    """Train, or go on with a training, and publish what there is at the end, at the deadline or at a stop.

    Args:
        recipe: what and how.
        loaded: the target, as it is loaded; frozen, its attention replaced for good.
        texts: what it wrote. A training that goes on keeps to the texts that it began with.
        folder: of the result, held alone by the caller.
        deadline_s: when to stop, monotonic seconds.
        checkpoint_every_s: seconds of work that a kill may cost.
        say: told of the progress.
        after_step: told of each step that is done.
        stopped: whether to stop after the step in flight.

    Raises:
        UserError: too few texts, another recipe than the folder's, or a loss that is no number any more.
        EnvironmentFault: no memory or no disk left.
    """
    run = _Run(recipe, loaded, texts, folder, say)
    try:
        with warnings.catch_warnings():
            # A norm's float32 weights meet bfloat16 states: that is meant.
            warnings.filterwarnings("ignore", message="Mismatch dtype between input and weight")
            run.go_on(lambda: stopped() or time.monotonic() >= deadline_s, checkpoint_every_s, after_step)
            return run.publish()
    except torch.OutOfMemoryError as error:
        raise out_of_memory(
            f"training on {recipe.batch_tokens} tokens a step (see --batch-tokens)", str(loaded.model.device)
        ) from error


def learning_rate(recipe: Recipe, step: int, steps: int) -> float:
    """Of a step (from 0): linear warm-up, then a half cosine to 0."""
    warm = min(1.0, (step + 1) / max(recipe.warm_up * steps, 1.0))
    return recipe.lr * warm * 0.5 * (1 + math.cos(math.pi * step / steps))


class _Run:
    def __init__(self, recipe: Recipe, loaded: Loaded, texts: Texts, folder: Path, say: Callable[[str], None]) -> None:
        self._target, small = open_target(recipe, loaded)
        self._recipe, self._folder, self._say = recipe, folder, say
        about, tensors = _read_checkpoint(folder / CHECKPOINT)
        if about:
            _require_same(folder, about, self._identity(texts))
            if len(texts.index) < about["texts"]:
                raise UserError(
                    f"{texts.folder} holds {len(texts.index):,} texts, and the training in {folder} began with "
                    f"{about['texts']:,}: name the data that it began with, or another --out."
                )
            texts = texts.first(about["texts"])
        self._texts = texts
        self._batches = texts.batches(False, recipe.batch_tokens, self._longest)
        if not self._batches:
            raise UserError(f"{texts.folder} holds no text to train on: write more with `joulewise heads data`.")
        self.steps = recipe.epochs * len(self._batches)
        self._student: Student = new_student(recipe, self._target, small, texts)
        betas = (0.9, 0.95)
        self._optimiser = torch.optim.AdamW(
            self._student.trained.values(), lr=recipe.lr, betas=betas, weight_decay=recipe.weight_decay
        )
        self.step: int = about.get("step", 0)
        self._seconds: float = about.get("seconds", 0.0)
        self._tokens: int = about.get("tokens", 0)
        self._curve: list[dict[str, Any]] = about.get("curve", [])
        if tensors:
            self._restore(tensors)
            say(f"going on from step {self.step} of {self.steps}")

    @property
    def _longest(self) -> int:
        window = self._target.window or self._recipe.longest
        return min(self._recipe.longest, window, self._target.loaded.context_length or self._recipe.longest)

    def go_on(self, over: Callable[[], bool], every_s: float, after_step: Callable[[int], None]) -> None:
        """Train until the end or until it is over before, with a checkpoint now and then and one at the end."""
        start_s = saved_s = told_s = time.monotonic()
        began, seconds = self.step, self._seconds
        for step, chosen in self._order():
            if over():
                break
            outcome = self._learn(step, chosen)
            self.step = step + 1
            now_s = time.monotonic()
            self._seconds = seconds + now_s - start_s
            if step % max(self.steps // _POINTS, 1) == 0 or self.step == self.steps:
                self._note(step, outcome)
            if now_s - told_s >= 10.0 or self.step == self.steps:
                told_s = now_s
                left_s = (now_s - start_s) / (self.step - began) * (self.steps - self.step)
                self._say(
                    f"step {self.step} of {self.steps}, loss {float(outcome.loss):.3f}, "
                    f"{agreement(outcome.agreement.tolist())}, about {left_s / 60:.1f} min left"
                )
            after_step(self.step)
            if now_s - saved_s >= every_s:
                saved_s = now_s
                self._save()
        if self.step > began:
            self._save()

    def _order(self) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
        """The steps that are left, and each one's texts."""
        count = len(self._batches)
        for epoch in range(self.step // count, self._recipe.epochs):
            order = np.random.default_rng([self._recipe.seed, epoch]).permutation(count)
            for place in range(max(self.step - epoch * count, 0), count):
                yield epoch * count + place, self._batches[order[place]]

    def _learn(self, step: int, chosen: npt.NDArray[np.int64]) -> Outcome:
        batch = self._texts.batch(chosen, self._longest, self._target.device)
        for group in self._optimiser.param_groups:
            group["lr"] = learning_rate(self._recipe, step, self.steps)
        with self._precision():
            outcome = self._student.loss(batch, step)
        self._optimiser.zero_grad(set_to_none=True)
        outcome.loss.backward()
        norm = nn.utils.clip_grad_norm_(self._student.trained.values(), self._recipe.clip)
        if not torch.isfinite(norm):
            raise UserError(
                f"Training went astray at step {step}: the gradient is {float(norm)}. What was saved before stands; "
                f"begin anew in another folder with a lower --lr than {self._recipe.lr:g}."
            )
        self._optimiser.step()
        self._tokens += batch.tokens.numel()
        return Outcome(outcome.loss.detach(), outcome.agreement)

    def _precision(self) -> AbstractContextManager[Any]:
        """The target's precision for what is multiplied; the trained weights stay in float32."""
        dtype = self._target.model.dtype
        return nullcontext() if dtype == torch.float32 else torch.autocast(self._target.device.type, dtype)

    def _note(self, step: int, outcome: Outcome) -> None:
        agreement = [round(float(share), 4) for share in outcome.agreement]
        self._curve.append({"step": step, "loss": round(float(outcome.loss), 5), "agreement": agreement})

    def _identity(self, texts: Texts) -> dict[str, Any]:
        return {"recipe": self._recipe.model_dump(), "target": texts.about["tokenizer"], "vocabulary": len(self._words)}

    @property
    def _words(self) -> Mapping[str, int]:
        words: Mapping[str, int] = self._target.loaded.tokenizer.get_vocab()
        return words

    def _save(self) -> None:
        state = self._optimiser.state
        tensors = {f"weight.{name}": p.detach() for name, p in self._student.trained.items()}
        for moment in _MOMENTS:
            tensors |= {f"{moment}.{name}": state[p][moment] for name, p in self._student.trained.items()}
        about = self._identity(self._texts) | {
            "step": self.step,
            "seconds": self._seconds,
            "tokens": self._tokens,
            "texts": len(self._texts.index),
            "curve": self._curve,
        }
        held = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
        content = save(held, {"training": json.dumps(about)})

        def write(part: Path) -> None:
            part.parent.mkdir(exist_ok=True)
            part.write_bytes(content)

        write_whole(self._folder / CHECKPOINT, write)

    def _restore(self, tensors: Mapping[str, Tensor]) -> None:
        for name, parameter in self._student.trained.items():
            parameter.data.copy_(tensors[f"weight.{name}"])
            moments = {moment: tensors[f"{moment}.{name}"].to(parameter.device) for moment in _MOMENTS}
            self._optimiser.state[parameter] = {"step": torch.tensor(float(self.step)), **moments}

    def publish(self) -> Trained:
        """Write the head or draft as it is now, and its recipe."""
        self._student.publish(self._folder)
        texts, recipe = self._texts, self._recipe
        report = {
            "what": VARIANTS[recipe.kind],
            "target": self._target.loaded.name,
            "target_notes": list(self._target.loaded.notes),
            "recipe": recipe.model_dump(),
            "data": {
                "texts": len(texts.index),
                "held_out": len(texts.where(held_out=True)),
                "answer_tokens": texts.answer_tokens,
                "origins": texts.about["origins"],
            },
            "finished": self.step == self.steps,
            "step": self.step,
            "steps": self.steps,
            "tokens_seen": self._tokens,
            "parameters_trained": sum(p.numel() for p in self._student.trained.values()),
            "duration_s": round(self._seconds, 1),
            "held_out": self._held_out(),
            "curve": self._curve,
            "device": _device(self._target.device),
            "versions": {
                "joulewise": __version__,
                "torch": torch.__version__,
                "transformers": transformers.__version__,
                "python": platform.python_version(),
            },
        }
        write_json(self._folder / "recipe.json", report)
        return Trained(self._folder, self.step, self.steps, report)

    def _held_out(self) -> dict[str, Any] | None:
        """Loss and agreement on texts that nothing was trained on; None where none are held out."""
        batches = self._texts.batches(True, self._recipe.batch_tokens, self._longest)[-_HELD_OUT_BATCHES:]
        if not batches:
            return None
        outcomes = []
        with torch.no_grad(), self._precision():
            for chosen in batches:
                batch = self._texts.batch(chosen, self._longest, self._target.device)
                outcomes.append(self._student.loss(batch, 0))
        longest = max(len(outcome.agreement) for outcome in outcomes)
        whole = [outcome for outcome in outcomes if len(outcome.agreement) == longest]
        return {
            "texts": sum(map(len, batches)),
            "loss": round(float(torch.stack([outcome.loss for outcome in whole]).mean()), 5),
            "agreement": [round(x, 4) for x in torch.stack([outcome.agreement for outcome in whole]).mean(0).tolist()],
        }


def _read_checkpoint(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What a training left, and its tensors; both empty where there is none."""
    if not file.is_file():
        return {}, {}
    try:
        with safe_open(file, framework="pt") as opened:
            about = json.loads((opened.metadata() or {})["training"])
            return about, {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        raise UserError(
            f"{file} is no checkpoint of a training ({error}): remove it, or name another --out."
        ) from error


def _require_same(folder: Path, about: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to go on with another recipe, target or vocabulary than the training began with."""
    then: dict[str, Any] = {**about["recipe"], "target": about["target"], "vocabulary": about["vocabulary"]}
    asked: dict[str, Any] = {**now["recipe"], "target": now["target"], "vocabulary": now["vocabulary"]}
    other = [name for name in asked if then.get(name) != asked[name]]
    if other:
        changes = ", ".join(f"{name} {then.get(name)!r} instead of {asked[name]!r}" for name in other)
        raise UserError(
            f"{folder} holds a training that began otherwise ({changes}): repeat its command to go on, or name another "
            "--out."
        )


def agreement(shares: Sequence[float]) -> str:
    """Tell how often the best guess is the target's best token; a share for each drafted token."""
    told = f"best token agrees with the target's in {', '.join(f'{100 * share:.0f}' for share in shares)} %"
    return told if len(shares) == 1 else f"{told} for drafted tokens 1 to {len(shares)}"


def _device(device: torch.device) -> str:
    return str(torch.cuda.get_device_name(device)) if device.type == "cuda" else str(device)
