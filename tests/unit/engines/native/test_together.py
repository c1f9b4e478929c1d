"""Several texts side by side are what each would be alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import tiny_models
from joulewise.decoding import CoGA, DyGA, Medusa, PromptLookup, Vanilla
from joulewise.decoding.spec import Decoding
from joulewise.engines.engine import Message, Request, Sampling
from joulewise.engines.native import NativeEngine
from joulewise.engines.native.accept import Chooser, Lot, match
from joulewise.engines.native.ahead import Ahead
from joulewise.engines.native.drafters import Parts, make_drafter
from joulewise.engines.native.drafters.chains import LookupChains, ModelChains, NoChains
from joulewise.engines.native.drafters.draft_model import Constant, Heuristic
from joulewise.engines.native.loop import decode
from joulewise.engines.native.model import DecoderModel
from joulewise.engines.native.session import uncaptured
from joulewise.engines.native.together import Chains, decode_together
from joulewise.engines.spec import NativeSpec
from joulewise.engines.transformers.loading import make_neutral
from joulewise.errors import UserError
from no_wait import NoWait

CPU = torch.device("cpu")
GREEDY = Chooser(Sampling())


class Pair:
    def __init__(self, family: str) -> None:
        made = tiny_models.build(family)
        draft = tiny_models.noisy(made, 0.02)
        self.target = DecoderModel(make_neutral("target", made, tiny_models.tokenizer()))
        self.draft = DecoderModel(make_neutral("draft", draft, tiny_models.tokenizer()))

    def alone(self, decoding: Decoding, prompt: Tensor, limit: int, ends: tuple[int, ...]) -> tuple[object, ...]:
        parts = Parts(self.target, self.draft, None, GREEDY, ends)
        with torch.inference_mode():
            made = decode(self.target, make_drafter(decoding, parts), prompt, limit, ends, match, GREEDY)
        return made.tokens, made.rounds, made.wasted_tokens, made.finish_reason

    def chains(self, decoding: Decoding, ends: tuple[int, ...], capture: Callable[..., object] | None) -> Chains:
        rows = self.target.loaded.vocabulary_rows
        if isinstance(decoding, CoGA):
            return ModelChains(self.draft, lambda: Constant(decoding.tokens), rows, capture)  # type: ignore[arg-type]
        if isinstance(decoding, DyGA):
            return ModelChains(self.draft, lambda: Heuristic(decoding.tokens), rows, capture)  # type: ignore[arg-type]
        if isinstance(decoding, PromptLookup):
            return LookupChains(decoding.tokens, decoding.max_ngram, ends)
        return NoChains()


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def pair(request: pytest.FixtureRequest) -> Pair:
    return Pair(request.param)


DECODINGS: list[Decoding] = [Vanilla(), CoGA(tokens=1), CoGA(tokens=4), DyGA(tokens=3), PromptLookup(tokens=5)]


@settings(max_examples=25, deadline=None)
@given(
    decoding=st.sampled_from(DECODINGS),
    sizes=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 20)), min_size=1, max_size=8),
    seed=st.integers(0, 99),
    end=st.booleans(),
    captured=st.booleans(),
)
def test_each_text_is_what_it_would_be_alone(
    pair: Pair, decoding: Decoding, sizes: list[tuple[int, int]], seed: int, end: bool, captured: bool
) -> None:
    """Tokens, rounds, waste and finish, whatever lengths, limits and ends meet in a batch."""
    dice = torch.Generator().manual_seed(seed)
    prompts = [torch.randint(3, 40, (size,), generator=dice) for size, _ in sizes]
    limits = [limit for _, limit in sizes]
    ends: tuple[int, ...] = ()
    if end:  # a token that the first text comes to
        ends = (pair.alone(Vanilla(), prompts[0], 12, ())[0][-1],)  # type: ignore[index]
    capture = uncaptured if captured else None
    with torch.inference_mode():
        together = decode_together(
            pair.target, pair.chains(decoding, ends, capture), prompts, limits, ends, capture=capture
        )
    for found, prompt, limit in zip(together, prompts, limits, strict=True):
        told = (found.tokens, found.rounds, found.wasted_tokens, found.finish_reason)
        assert told == pair.alone(decoding, prompt, limit, ends)


def test_what_is_captured_never_waits(pair: Pair) -> None:
    def waiting(run: Callable[[], None]) -> Callable[[], None]:
        def replay() -> None:
            with NoWait():
                run()

        replay()
        return replay

    with torch.inference_mode():
        for decoding in (Vanilla(), CoGA(tokens=3)):
            chains = pair.chains(decoding, (), waiting)
            decode_together(pair.target, chains, [torch.arange(3, 9)] * 2, [6, 4], (), capture=waiting)


def test_past_a_bucket(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("joulewise.engines.native.together.BUCKET", 8)
    prompts = [torch.arange(3, 3 + size) for size in (2, 13)]
    chains = pair.chains(CoGA(tokens=3), (), uncaptured)
    with torch.inference_mode():
        together = decode_together(pair.target, chains, prompts, [20, 9], (), capture=uncaptured)
    for found, prompt, limit in zip(together, prompts, (20, 9), strict=True):
        assert found.tokens == pair.alone(Vanilla(), prompt, limit, ())[0]


def test_by_lot_each_text_keeps_its_share(pair: Pair) -> None:
    chains = pair.chains(CoGA(tokens=4), (), None)
    with torch.inference_mode():
        together = decode_together(
            pair.target, chains, [torch.arange(3, 9)] * 4, [200] * 4, (), Lot((0.9, 0.5, 0.5, 0.0), 0, CPU)
        )
    rounds = [r for one in together for r in one.rounds[:-1]]
    assert max(r.accepted for r in rounds) == 3
    assert sum(r.accepted >= 1 for r in rounds) / len(rounds) == pytest.approx(0.9, abs=0.07)
    assert sum(r.accepted >= 3 for r in rounds) / len(rounds) == pytest.approx(0.5, abs=0.1)
    assert all(len(one.tokens) == 200 for one in together)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NativeEngine]:
    folder: Path = tmp_path_factory.mktemp("together")
    name = tiny_models.save(folder / "model", tiny_models.build("llama"))
    made = NativeEngine(NativeSpec(model=name, draft=name, heads={"medusa": "random"}))
    made.load([Vanilla(), CoGA(tokens=3)])
    yield made
    made.close()


def ask(text: str, **how: object) -> Request:
    return Request((Message("user", text),), 12, **how)  # type: ignore[arg-type]


def test_the_engine_gives_each_request_its_own(engine: NativeEngine) -> None:
    requests = [ask("one"), ask("a longer question"), ask("x")]
    for decoding in (Vanilla(), CoGA(tokens=3)):
        together = engine.generate_together(requests, decoding)
        for found, request in zip(together, requests, strict=True):
            alone = engine.generate(request, decoding)
            assert (found.token_ids, found.text, found.rounds) == (alone.token_ids, alone.text, alone.rounds)
            assert found.prompt_tokens == alone.prompt_tokens
            assert found.start_s < found.first_token_s < found.end_s
    assert engine.generate_together([], Vanilla()) == ()


@pytest.mark.parametrize(
    ("decoding", "requests", "message"),
    [
        (Medusa(synthetic_acceptance=0.5), [ask("a")], "medusa.* cannot be decoded for several texts"),
        (DyGA(rule="confidence"), [ask("a")], "cannot be decoded for several texts at once: vanilla, CoGA"),
        (Vanilla(), [ask("a"), ask("b", sampling=Sampling(1.0))], "sampled by one rule"),
        (Vanilla(), [ask("a"), ask("b", ignore_eos=True)], "end by one rule"),
    ],
)
def test_what_cannot_be_done_together_is_refused(
    engine: NativeEngine, decoding: Decoding, requests: list[Request], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        engine.generate_together(requests, decoding)


@settings(max_examples=25, deadline=None)
@given(
    decoding=st.sampled_from([Vanilla(), CoGA(tokens=1), CoGA(tokens=4)]),
    sizes=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 40)), min_size=1, max_size=4),
    seed=st.integers(0, 99),
    end=st.booleans(),
)
def test_rounds_ahead_of_the_host_give_the_same(
    pair: Pair, decoding: Decoding, sizes: list[tuple[int, int]], seed: int, end: bool
) -> None:
    """And what they read of the last round is what the host would have told them."""
    dice = torch.Generator().manual_seed(seed)
    prompts = [torch.randint(3, 40, (size,), generator=dice) for size, _ in sizes]
    ends: tuple[int, ...] = ()
    if end:
        ends = (pair.alone(Vanilla(), prompts[0], 12, ())[0][-1],)  # type: ignore[index]
    real, unread = Ahead.run, []

    def spied(ahead: Ahead, *args: Any) -> Any:
        told = real(ahead, *args)
        unread.append(told)
        read = told.read

        def reading() -> list[list[int]]:
            unread.remove(told)
            return read()

        told.read = reading
        assert len(unread) <= 2
        most.append(len(unread))
        return told

    most: list[int] = []
    with torch.inference_mode(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ahead, "run", spied)
        chains, limits = pair.chains(decoding, ends, uncaptured), [limit for _, limit in sizes]
        together = decode_together(pair.target, chains, prompts, limits, ends, capture=uncaptured)
    for found, prompt, limit in zip(together, prompts, limits, strict=True):
        told = (found.tokens, found.rounds, found.wasted_tokens, found.finish_reason)
        assert told == pair.alone(decoding, prompt, limit, ends)
    assert not unread
    if not ends and min(limits) > 3 * (chains.most + 1):
        assert max(most) == 2
