"""When a difference from vanilla is a tie, and when it is a failure."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tiny_models
from joulewise.decoding import PromptLookup, Vanilla
from joulewise.decoding.spec import Decoding
from joulewise.engines.engine import LosslessCheck, Message, Request, Sampling
from joulewise.engines.spec import TransformersSpec
from joulewise.engines.transformers import TransformersEngine, check
from joulewise.engines.transformers.check import Step, judge, next_logits
from joulewise.engines.transformers.prompts import encode

REQUEST = Request((Message("user", "The cat sat."),), 12, True)
LOOKUP = PromptLookup(tokens=3)


class Lossy(Decoding):
    """A decoding that promises nothing."""

    lossless: ClassVar[bool] = False
    kind: Literal["lossy"] = "lossy"


def engine_for(folder: Path, family: str = "llama", dtype: Any = "float32") -> TransformersEngine:
    model = tiny_models.save(folder, tiny_models.build(family))
    engine = TransformersEngine(TransformersSpec(model=model, device="cpu", dtype=dtype))
    engine.load([])
    return engine


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_every_width_sees_the_same_logits(tmp_path: Path, family: str) -> None:
    """In float32 all widths agree, at every position: so each asks for the token it should ask for."""
    engine = engine_for(tmp_path, family)
    target, _ = engine._ready(Vanilla())
    prompt = encode(target, REQUEST.messages)
    tokens = engine.generate(REQUEST, Vanilla()).token_ids
    with torch.inference_mode():
        for index in range(len(tokens)):
            ways: list[Iterable[Step]] = [
                repeat(Step(0, 0)),
                repeat(Step(1, 1)),
                repeat(Step(2, 0)),
                repeat(Step(4, 2)),
                [Step(3, 0), Step(0, 0), Step(5, 5), Step(1, 0), Step(9, 9)],
                [Step(20, 20)],
                [Step(index, index)],
            ]
            logits = [next_logits(target, prompt, tokens, index, way) for way in ways]
            assert int(logits[0].argmax()) == tokens[index]
            for other in logits[1:]:
                torch.testing.assert_close(other, logits[0], rtol=1e-3, atol=1e-3)


def test_identical_sampled_and_lossy(tmp_path: Path) -> None:
    engine = TransformersEngine(TransformersSpec(model=str(tmp_path)))  # none of these needs the model
    assert engine.check_lossless(REQUEST, LOOKUP, [1, 2], (1, 2)).status == "identical"
    hot = Request(REQUEST.messages, 12, sampling=Sampling(temperature=1.0))
    assert engine.check_lossless(hot, LOOKUP, [1], [2]).note == "sampled output"
    assert engine.check_lossless(hot, LOOKUP, [1], [2]).status == "not_checked"
    assert engine.check_lossless(REQUEST, Lossy(), [1], [1]).status == "not_checked"


def test_in_float32_every_difference_is_a_failure(tmp_path: Path) -> None:
    engine = engine_for(tmp_path)
    tokens = list(engine.generate(REQUEST, Vanilla()).token_ids)
    wrong = [*tokens[:5], (tokens[5] + 1) % tiny_models.ROWS, *tokens[6:]]
    verdict = engine.check_lossless(REQUEST, LOOKUP, tokens, wrong)
    assert (verdict.status, verdict.first_difference) == ("different", 5)
    assert verdict.gap is not None
    assert verdict.gap > 0
    assert verdict.control is not None
    assert verdict.control < 1e-3


@pytest.mark.parametrize("cut", [0, 4])
def test_an_output_that_ends_too_early_or_too_late(tmp_path: Path, cut: int) -> None:
    engine = engine_for(tmp_path)
    tokens = engine.generate(REQUEST, Vanilla()).token_ids
    for pair in ((tokens, tokens[:cut]), (tokens[:cut], tokens)):
        verdict = engine.check_lossless(REQUEST, LOOKUP, *pair)
        assert (verdict.status, verdict.first_difference, verdict.gap) == ("different", cut, None)


def test_rounds_that_end_too_early(tmp_path: Path) -> None:
    engine = engine_for(tmp_path)
    target, _ = engine._ready(Vanilla())
    with pytest.raises(ValueError, match="end before output token 5"):
        next_logits(target, torch.tensor([[5, 6]]), [7] * 9, 5, [Step(2, 2), Step(0, 0)])


def test_a_near_tie_in_low_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_for(tmp_path, dtype="bfloat16")
    seen = {"one": [0.0, 5.0, 5.25, 1.0], "wide": [0.0, 5.5, 5.25, 1.0], "other": [0.0, 5.0, 5.125, 1.0]}

    def logits(target: Any, prompt: Any, tokens: Any, index: int, rounds: Iterable[Step]) -> torch.Tensor:
        names = {Step(0, 0): "one", Step(LOOKUP.tokens, LOOKUP.tokens): "wide"}
        return torch.tensor(seen[names.get(next(iter(rounds)), "other")])

    monkeypatch.setattr(check, "next_logits", logits)
    tie = engine.check_lossless(REQUEST, LOOKUP, [7, 2, 9], [7, 1, 9])
    assert (tie.status, tie.first_difference, tie.gap, tie.control, tie.note) == ("tie", 1, 0.25, 0.5, None)
    third = engine.check_lossless(REQUEST, LOOKUP, [7, 2, 9], [7, 3, 9])
    assert (third.status, third.gap, third.note) == ("different", 4.25, "1 more token(s) lie between the two")
    seen["wide"] = seen["other"]
    far = engine.check_lossless(REQUEST, LOOKUP, [7, 2, 9], [7, 1, 9])
    assert (far.status, far.gap, far.control) == ("different", 0.25, 0.125)


def test_the_rounds_widths_count_where_the_output_comes_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And only there: other rounds say nothing about this output."""
    engine = engine_for(tmp_path, dtype="bfloat16")
    true = engine.generate(REQUEST, LOOKUP)
    seen: list[list[Step]] = []

    def remember(*arguments: Any) -> LosslessCheck:
        seen.append(arguments[-1])
        return LosslessCheck("tie")

    monkeypatch.setattr(check, "explain_difference", remember)
    other = ((true.token_ids[0] + 1) % tiny_models.ROWS, *true.token_ids[1:])
    engine.check_lossless(REQUEST, LOOKUP, other, true.token_ids)
    engine.check_lossless(REQUEST, LOOKUP, true.token_ids, other)
    rounds, unknown = seen
    assert [(len(s.draft), s.accepted) for s in rounds] == [(r.drafted, r.accepted) for r in true.rounds]
    assert unknown == []


@given(gap=st.floats(0, 10), control=st.floats(0, 10), better=st.integers(0, 3), low=st.booleans())
def test_a_tie_needs_low_precision_and_a_small_gap(gap: float, control: float, better: int, low: bool) -> None:
    verdict = judge(3, gap, control, better=better, low_precision=low)
    assert (verdict.status == "tie") == (low and gap <= control)
    assert (verdict.first_difference, verdict.gap, verdict.control) == (3, gap, control)
