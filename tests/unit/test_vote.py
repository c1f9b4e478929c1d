"""Votes: who wins, when it is settled, which samples are drawn."""

from __future__ import annotations

import itertools
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from joulewise.engines.engine import Generation, Message, Request, Sampling
from joulewise.reasoning import Answer, Asked, Budget, Cot, Direct, FewShot, Vote
from joulewise.reasoning.vote import settled, winner
from joulewise.tasks.scorers import SCORERS

VOTES = st.lists(st.none() | st.integers(0, 3), max_size=9)
TURN = (Message("user", "How many?"),)


def number(text: str) -> str | None:
    return text.rpartition(" ")[2] if text[-1:].isdigit() else None


ASKED = Asked((TURN,), (Message("user", "Step by step?"),), extract=number, stated=lambda text: text.upper())


class Scripted:
    """Answers with the texts it was given, one after another, and keeps what it was asked."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = iter(texts)
        self.asked: list[Request] = []
        self.batches: list[int] = []

    def __call__(self, request: Request) -> Generation:
        self.asked.append(request)
        return Generation(next(self.texts), (len(self.asked),), 1, "eos", 0.0, 1.0)

    def together(self, requests: Sequence[Request]) -> tuple[Generation, ...]:
        self.batches.append(len(requests))
        return tuple(self(request) for request in requests)


def vote(samples: int, texts: Iterable[str], asked: Asked = ASKED, **more: object) -> Answer:
    reasoning = Vote.model_validate({"samples": samples, **more})
    return reasoning.answer(asked, reasoning.settings(Request((), 16, seed=11)), Scripted(texts))


@pytest.mark.parametrize(
    ("votes", "wins"),
    [
        ([], None),
        ([None, None], None),
        ([1], 1),
        ([None, 2], 2),
        ([1, 2, 2], 2),
        ([1, 2], 1),  # level: 1 had one vote first
        ([1, 2, 2, 1], 2),  # level: 2 had two votes first
        ([1, 2, 3], 1),
        ([3, 1, 1, 3, 3], 3),
    ],
)
def test_the_winner(votes: list[int | None], wins: int | None) -> None:
    assert winner(votes) == wins


@given(VOTES)
def test_the_winner_by_its_definition(votes: list[int | None]) -> None:
    counts = Counter(v for v in votes if v is not None)
    most = max(counts.values(), default=0)

    def reached(name: int) -> int:
        return [i for i, v in enumerate(votes) if v == name][most - 1]

    level = [name for name, count in counts.items() if count == most]
    assert winner(votes) == min(level, key=reached, default=None)


@given(VOTES, st.integers(0, 3))
def test_a_vote_is_settled_exactly_when_no_continuation_changes_it(votes: list[int | None], left: int) -> None:
    names = [None, 0, 1, 2, 3, 4]  # 4 is an answer that has not been given yet
    ends = {winner([*votes, *more]) for more in itertools.product(names, repeat=left)}
    assert settled(votes, len(votes) + left) == (len(ends) == 1)


@given(st.lists(st.sampled_from(["is 1", "is 2", "is 3", "none"]), min_size=10, max_size=10), st.integers(1, 10))
def test_an_early_stop_never_changes_the_answer(texts: list[str], samples: int) -> None:
    early, late = vote(samples, texts), vote(samples, texts, early_stop=False)
    assert number(early.text) == number(late.text)
    assert len(late.generations) == samples
    assert early.requests == late.requests[: len(early.requests)]
    assert early.votes is not None
    assert late.votes is not None
    assert early.votes == late.votes[: len(early.votes)]


@given(st.lists(st.sampled_from(["is 1", "is 2", "none"]), min_size=10, max_size=10))
def test_smaller_votes_are_prefixes_of_the_same_ten_samples(texts: list[str]) -> None:
    ten = vote(10, texts, early_stop=False)
    for samples in (3, 5):
        fewer = vote(samples, texts, early_stop=False)
        assert fewer.requests == ten.requests[:samples]
        assert fewer.generations == ten.generations[:samples]


@given(st.lists(st.sampled_from(["is 1", "is 2", "is 3", "none"]), min_size=10, max_size=10), st.integers(1, 10))
def test_a_batched_vote_is_the_same_vote(texts: list[str], samples: int) -> None:
    reasoning = Vote(samples=samples, batched=True)
    ask = Scripted(texts)
    batched = reasoning.answer(ASKED, reasoning.settings(Request((), 16, seed=11)), ask)
    assert batched == vote(samples, texts, early_stop=False)
    assert ask.batches == [samples]
    assert (reasoning.together, Vote(samples=samples).together) == (samples, 0)


def test_batched_samples_of_two_requests_go_in_step() -> None:
    reasoning = Vote(samples=3, of=Budget(tokens=64), batched=True)
    ask = Scripted(["so 7", "", "and then", "8", " 8"])
    asked = replace(ASKED, stated=lambda text: text if number(text) else "")
    answer = reasoning.answer(asked, reasoning.settings(Request((), 16)), ask)
    assert ask.batches == [3, 2]  # the second and the third stated none, and are closed together
    assert [r.max_new_tokens for r in ask.asked] == [64, 64, 64, 16, 16]
    assert (answer.text, answer.votes) == ("The answer is 8", ("7", "8", "8"))
    assert [r.seed for r in answer.requests] == [r.seed for r in (ask.asked[i] for i in (0, 1, 3, 2, 4))]


def test_the_samples_are_drawn_with_seeds_of_their_own() -> None:
    requests = vote(10, [f"is {i}" for i in range(10)]).requests
    assert len({r.seed for r in requests}) == 10
    assert all(0 <= r.seed < 2**32 for r in requests)
    assert {r.sampling for r in requests} == {Sampling(0.7)}
    other = Vote(samples=10).answer(ASKED, Request((), 16, seed=12), Scripted(["is 1"] * 10)).requests
    assert not {r.seed for r in requests} & {r.seed for r in other}


@pytest.mark.parametrize(
    ("texts", "asked_for", "text"),
    [
        (["it is 7", "7"], 2, "it is 7"),  # the third could not change it
        (["is 7", "is 8", "also 8"], 3, "is 8"),
        (["is 7", "is 8", "is 9"], 3, "is 7"),
        (["none", "is 8", "is 9"], 2, "is 8"),  # a third answer would draw level, and lose
        (["no", "none", "nothing"], 3, "no"),
        (["none", "none", "is 8"], 3, "is 8"),
    ],
)
def test_three_votes(texts: list[str], asked_for: int, text: str) -> None:
    answer = vote(3, texts)
    assert (len(answer.generations), answer.text) == (asked_for, text)
    assert answer.votes == tuple(number(t) for t in texts[:asked_for])


def test_a_vote_of_one_is_a_sample() -> None:
    answer = vote(1, ["is 7"])
    assert (answer.text, len(answer.requests), answer.votes) == ("is 7", 1, ("7",))


def test_answers_are_equal_where_the_task_says_so() -> None:
    asked = replace(ASKED, same=lambda a, b: Fraction(a) == Fraction(b))
    texts = ["is 7", "is 1/2", "is 2/4"]
    assert vote(3, texts).text == "is 7"
    assert vote(3, texts, asked).text == "is 1/2"


def test_a_vote_of_thought_out_samples() -> None:
    reasoning = Vote.model_validate({"samples": 2, "of": {"kind": "cot", "max_new_tokens": 90}, "temperature": 1.5})
    ask = Scripted(["so 7", "so 7"])
    template = reasoning.settings(Request((), 16, sampling=Sampling(0.0, 0.9, 40)))
    answer = reasoning.answer(ASKED, template, ask)
    assert {(r.messages, r.max_new_tokens, r.sampling) for r in ask.asked} == {
        (ASKED.stepwise, 90, Sampling(1.5, 0.9, 40))
    }
    assert answer.text == "SO 7"


@pytest.mark.parametrize(
    ("reasoning", "label", "most"),
    [
        (Vote(), "vote-3", (16,) * 3),
        (Vote(samples=4, early_stop=False), "vote-4-all", (16,) * 4),
        (Vote(samples=4, batched=True), "vote-4-batched", (16,) * 4),
        (Vote(samples=2, of=Cot(max_new_tokens=90), batched=True), "vote-2-cot-90-batched", (90, 90)),
        (Vote(samples=2, of=Cot(max_new_tokens=90), temperature=1.0), "vote-2-cot-90-t1", (90, 90)),
        (Vote(of=FewShot(examples=2)), "vote-3-few-shot-2", (16,) * 3),
        (Vote(samples=2, of=Budget(tokens=64)), "vote-2-budget-64", (64, 16, 64, 16)),
    ],
)
def test_labels_and_limits(reasoning: Vote, label: str, most: tuple[int, ...]) -> None:
    assert (reasoning.label, reasoning.most_tokens(reasoning.settings(Request((), 16)))) == (label, most)


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"samples": 0}, "samples"),
        ({"temperature": 0}, "temperature"),
        ({"of": "vote"}, "of"),
        ({"of": "cott"}, "of"),
        ({"of": {"kind": "cot", "max_new_tokens": 0}}, "max_new_tokens"),
    ],
)
def test_a_wrong_vote_is_refused(fields: dict[str, object], place: str) -> None:
    with pytest.raises(ValidationError, match=place):
        Vote.model_validate(fields)


def test_of_may_be_a_name() -> None:
    assert Vote.model_validate({"of": "cot"}) == Vote(of=Cot())
    assert Vote.model_validate({"of": "direct"}) == Vote(of=Direct())


def test_what_cannot_be_counted_is_refused() -> None:
    assert Vote().refuses(ASKED) is None
    assert Vote().refuses(Asked((TURN,))) == "no answer is extracted from its texts that votes could be counted of"
    assert Vote(of=Cot()).refuses(replace(ASKED, stepwise=None)) == "it has no prompt that asks for steps"
    assert Vote(of=FewShot()).refuses(ASKED) == "it has no examples to show"


def test_equal_texts_in_other_characters_vote_for_one_answer() -> None:
    composed, apart = (unicodedata.normalize(form, "Ōsaka") for form in ("NFC", "NFD"))
    scorer = SCORERS["exact"]
    asked = Asked((TURN,), extract=scorer.extract, same=scorer.same)
    assert vote(3, [composed, f"{apart} ", "京都"], asked).votes == ("ōsaka", "ōsaka")


@pytest.mark.parametrize("text", ["unanswered is 3", "The answers is 3", "The answer isn't 3", "The answer island 3"])
def test_a_mark_inside_a_word_states_nothing(text: str) -> None:
    assert [SCORERS[name].stated(text) for name in ("math", "exact")] == ["", ""]  # type: ignore[misc]
