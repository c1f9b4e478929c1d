"""A chat template's switch for a model's own thinking, as Qwen3's: set, left alone, and closed under a budget."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import tiny_models
from joulewise.decoding import Vanilla
from joulewise.engines.engine import Message, Request, Sampling
from joulewise.engines.native import NativeEngine
from joulewise.engines.spec import NativeSpec, TransformersSpec
from joulewise.engines.transformers import TransformersEngine
from joulewise.reasoning import Asked, Budget

ALPHABET = [*tiny_models.ALPHABET, *"<>/"]
TURNS = "{% for m in messages %}{{ m.role }} {{ m.content }}\n{% endfor %}"
OFF = "<think>\n\n</think>\n\n"
QWEN = (
    TURNS + "{% if add_generation_prompt %}assistant "
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
"""Thinks unless told not to; the model opens its block itself."""
OPENS = (
    TURNS + "{% if add_generation_prompt %}assistant "
    "{% if enable_thinking is defined and enable_thinking %}<think>\n{% endif %}{% endif %}"
)
"""Thinks when told to, in a block that the template opens."""
PLAIN = TURNS + "{% if add_generation_prompt %}assistant {% endif %}"

Opened = NativeEngine | TransformersEngine
ASK = Request((Message("user", "hi"),), 6)


def opened(kind: str, template: str, folder: Path) -> tuple[Opened, bool]:
    its = tiny_models.tokenizer(ALPHABET, template)
    name = tiny_models.save(folder, tiny_models.build("qwen3"), its)
    engine: Opened
    if kind == "native":
        engine = NativeEngine(NativeSpec(model=name, device="cpu"))
    else:
        engine = TransformersEngine(TransformersSpec(model=name, device="cpu"))
    return engine, engine.load([Vanilla()]).thinking_switch


def prompt_of(engine: Opened, request: Request) -> tuple[int, bool]:
    generation = engine.generate(request, Vanilla())
    together = engine.generate_together([replace(request, sampling=Sampling(1.0))] * 2, Vanilla())
    assert {(g.prompt_tokens, g.thinking_open) for g in together} == {
        (generation.prompt_tokens, generation.thinking_open)
    }
    return generation.prompt_tokens, generation.thinking_open


@pytest.mark.parametrize("kind", ["native", "transformers"])
def test_the_switch_is_set_where_there_is_one(kind: str, tmp_path: Path) -> None:
    plain = len("user hi\nassistant ")
    wanted = {
        QWEN: {None: (plain, False), True: (plain, False), False: (plain + len(OFF), False)},
        OPENS: {None: (plain, False), True: (plain + len("<think>\n"), True), False: (plain, False)},
        PLAIN: {None: (plain, False), True: (plain, False), False: (plain, False)},
    }
    for i, (template, told) in enumerate(wanted.items()):
        engine, switch = opened(kind, template, tmp_path / str(i))
        assert switch == (template != PLAIN)
        assert {thinking: prompt_of(engine, replace(ASK, thinking=thinking)) for thinking in told} == told


@pytest.mark.parametrize("kind", ["native", "transformers"])
def test_compared_answers_follow_the_switch_too(kind: str, tmp_path: Path) -> None:
    engine, _ = opened(kind, QWEN, tmp_path)
    tokens = {on: engine.compare(replace(ASK, thinking=on), ["A", "B"]).prompt_tokens for on in (True, False)}
    assert tokens[False] == tokens[True] + len(OFF)


@pytest.mark.parametrize("kind", ["native", "transformers"])
def test_a_budget_closes_the_block(kind: str, tmp_path: Path) -> None:
    engine, _ = opened(kind, OPENS, tmp_path)
    asked = Asked(((Message("user", "hi"),),), (Message("user", "hi"),), stated=lambda _: "")
    reasoning = Budget(tokens=5, answer_tokens=3)
    answer = reasoning.answer(
        asked, reasoning.settings(Request((), 6)), lambda request: engine.generate(request, Vanilla())
    )
    steps, closing = answer.generations
    assert (steps.thinking_open, closing.thinking_open) == (True, False)
    said = f"user hi\nassistant <think>\n{steps.text.rstrip()}\n</think>\n\nThe answer is"
    assert closing.prompt_tokens == len(said)


def test_a_model_without_a_template_takes_no_notice(tmp_path: Path) -> None:
    folder = tiny_models.save(tmp_path, tiny_models.build("llama"))
    engine = TransformersEngine(TransformersSpec(model=folder, device="cpu"))
    assert not engine.load([Vanilla()]).thinking_switch
    assert len({engine.generate(replace(ASK, thinking=on), Vanilla()).token_ids for on in (None, True, False)}) == 1
