"""Answers compared by their likelihood, against forwards of the library over each text alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny_models
from joulewise.decoding import Vanilla
from joulewise.engines.engine import ComparingEngine, Generation, Message, Request
from joulewise.engines.native import NativeEngine
from joulewise.engines.spec import NativeSpec, TransformersSpec
from joulewise.engines.transformers import TransformersEngine
from joulewise.errors import ContextLengthError, UserError

TEMPLATE = "{% for m in messages %}{{ m.role[0] + m.content + '\n' }}{% endfor %}{{ 'a' if add_generation_prompt }}"
Open = Callable[[str], Any]


def native(folder: str) -> NativeEngine:
    engine = NativeEngine(NativeSpec(model=folder, device="cpu"))
    engine.load([Vanilla()])
    return engine


def library(folder: str) -> TransformersEngine:
    engine = TransformersEngine(TransformersSpec(model=folder, device="cpu"))
    engine.load([Vanilla()])
    return engine


def request(text: str = "What is it? ") -> Request:
    return Request((Message("user", text),), 16)


def expected(model: Any, prompt: list[int], tail: list[int]) -> float:
    """The sum of the log-probabilities of ``tail``, a token at a time."""
    total = 0.0
    for i, token in enumerate(tail):
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + tail[:i]])).logits[0, -1].float()
        total += float(torch.log_softmax(logits, -1)[token])
    return total


@pytest.mark.parametrize("start", [native, library])
@pytest.mark.parametrize("template", [None, TEMPLATE])
@pytest.mark.parametrize("continuations", [("A", "B", "C", "D"), ("yes", "no", "maybe so")])
def test_the_log_probabilities_are_the_models(
    tmp_path: Path, start: Open, template: str | None, continuations: tuple[str, ...]
) -> None:
    model, tokens = tiny_models.build("llama"), tiny_models.tokenizer(chat_template=template)
    engine = start(tiny_models.save(tmp_path, model, tokens))
    found: Generation = engine.compare(request(), continuations)
    asked = "What is it? " if template is None else "uWhat is it? \na"
    prompt = tokens(asked, add_special_tokens=False)["input_ids"]
    space = " " if template is None else ""
    tails = [tokens(space + text, add_special_tokens=False)["input_ids"] for text in continuations]
    wanted = [expected(model, prompt, tail) for tail in tails]
    assert found.log_probabilities == pytest.approx(wanted, abs=1e-4)
    assert found.text == continuations[max(range(len(wanted)), key=wanted.__getitem__)]
    assert (found.output_tokens, found.prompt_tokens) == (0, len(prompt))
    assert found.end_s >= found.start_s
    assert isinstance(engine, ComparingEngine)


@pytest.mark.parametrize("continuations", [("A", "B"), ("yes", "no")])
def test_an_encoder_decoder_begins_its_answer_with_them(tmp_path: Path, continuations: tuple[str, ...]) -> None:
    model, tokens = tiny_models.build("t5"), tiny_models.tokenizer()
    engine = library(tiny_models.save(tmp_path, model))
    found = engine.compare(request(), continuations)
    prompt = torch.tensor([tokens("What is it? ")["input_ids"]])
    for text, logarithm in zip(continuations, found.log_probabilities or (), strict=True):
        tail = tokens(text, add_special_tokens=False)["input_ids"]
        with torch.inference_mode():
            read = torch.tensor([[tiny_models.PAD, *tail[:-1]]])
            logits = model(input_ids=prompt, decoder_input_ids=read).logits[0].float()
        places = torch.log_softmax(logits, -1)
        assert logarithm == pytest.approx(sum(float(places[i, t]) for i, t in enumerate(tail)), rel=1e-4)


def test_one_token_answers_cost_one_row_and_several_are_read_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = library(
        tiny_models.save(tmp_path, tiny_models.build("llama"), tiny_models.tokenizer(chat_template=TEMPLATE))
    )
    assert engine._target is not None
    shapes: list[tuple[int, ...]] = []
    forward = engine._target.model.forward

    def watched(**arguments: Any) -> Any:
        shapes.append(tuple(arguments["input_ids"].shape))
        return forward(**arguments)

    monkeypatch.setattr(engine._target.model, "forward", watched)
    prompt = engine.compare(request(), ("A", "B", "C", "D")).prompt_tokens
    engine.compare(request(), ("A", "yes"))
    assert shapes == [(1, prompt), (2, prompt + 2)]


def test_of_equal_continuations_the_first_counts(tmp_path: Path) -> None:
    engine = native(tiny_models.save(tmp_path, tiny_models.build("llama")))
    found = engine.compare(request(), ("A", "A"))
    assert found.log_probabilities is not None
    assert math.isclose(*found.log_probabilities)


@pytest.mark.parametrize("start", [native, library])
def test_what_cannot_be_compared_is_refused(tmp_path: Path, start: Open) -> None:
    engine = start(
        tiny_models.save(tmp_path, tiny_models.build("llama"), tiny_models.tokenizer(chat_template=TEMPLATE))
    )
    with pytest.raises(UserError, match="The continuation '' has no tokens"):
        engine.compare(request(), ("A", ""))
    with pytest.raises(ContextLengthError, match="shorten the question"):
        engine.compare(request("a" * tiny_models.CONTEXT), ("A", "B"))
