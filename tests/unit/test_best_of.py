"""The best of several samples: who rates, what wins, and what happens where nobody can rate."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from joulewise.engines.engine import Generation, Message, Request, Sampling
from joulewise.errors import ChoiceError, UserError
from joulewise.reasoning import Answer, Asked, BestOf, Budget, Cot, Vote
from joulewise.reasoning.best_of import first_best
from joulewise.reasoning.reward import RewardSpec

TURN = (Message("user", "How many?"),)
ASKED = Asked((TURN,), (Message("user", "Step by step?"),), extract=lambda text: text)


class Scripted:
    """Answers with the given texts of so many tokens and log-probabilities, one after another."""

    def __init__(self, made: Iterable[tuple[str, int, float | None]]) -> None:
        self.made = iter(made)
        self.asked: list[Request] = []
        self.batches: list[int] = []

    def __call__(self, request: Request) -> Generation:
        self.asked.append(request)
        text, tokens, likely = next(self.made)
        return Generation(text, tuple(range(tokens)), 1, "eos", 0.0, 1.0, log_probability=likely)

    def together(self, requests: Sequence[Request]) -> tuple[Generation, ...]:
        self.batches.append(len(requests))
        return tuple(self(request) for request in requests)


def best(made: Sequence[tuple[str, int, float | None]], asked: Asked = ASKED, **fields: Any) -> tuple[Answer, Scripted]:
    reasoning = BestOf.model_validate({"samples": len(made)} | fields)
    ask = Scripted(made)
    return reasoning.answer(asked, reasoning.settings(Request((), 16, seed=11)), ask), ask


def test_the_likeliest_by_token_wins_not_the_shortest() -> None:
    answer, ask = best([("a", 2, -4.0), ("b", 8, -8.0), ("c", 1, -1.5)])
    assert (answer.text, answer.ratings, answer.note) == ("b", (-2.0, -1.0, -1.5), None)
    assert len(answer.generations) == 3
    assert {(r.sampling, r.log_probability) for r in ask.asked} == {(Sampling(0.7), True)}


def test_a_sample_of_two_requests_is_rated_over_both() -> None:
    made = [("no", 6, -3.0), ("1", 2, -1.0), ("none", 6, -12.0), ("2", 6, 0.0)]
    asked = replace(ASKED, stated=lambda text: "" if text in ("no", "none") else text)
    answer, _ = best(made, asked, samples=2, of=Budget(tokens=6))
    assert (answer.text, answer.ratings) == ("The answer is 1", (-0.5, -1.0))


@given(st.lists(st.none() | st.floats(-9, 9), min_size=1))
def test_the_first_of_the_highest_rated(ratings: list[float | None]) -> None:
    chosen = first_best(ratings)
    rated = [r for r in ratings if r is not None]
    assert ratings[chosen] == (max(rated) if rated else None)
    assert ratings[chosen] not in ratings[:chosen]


def test_by_the_question_s_examples() -> None:
    worth = {"a": 0.5, "b": None, "c": 1.0, "d": 1.0}
    answer, ask = best([(t, 1, None) for t in worth], replace(ASKED, by_examples=worth.__getitem__), by="examples")
    assert (answer.text, answer.ratings, answer.note) == ("c", (0.5, None, 1.0, 1.0), None)
    assert not any(r.log_probability for r in ask.asked)


def test_without_any_rating_the_first_is_taken_and_that_is_told() -> None:
    answer, _ = best([("a", 1, None), ("b", 1, None)], replace(ASKED, by_examples=lambda _: None), by="examples")
    assert (answer.text, answer.note) == ("a", "no sample has a rating, so it is the first")
    assert best([("a", 1, None), ("b", 1, -1.0)])[0].text == "b"
    assert best([("a", 0, 0.0), ("b", 1, -9.0)])[0].text == "b"  # nothing was written


def test_by_the_oracle_is_told_as_such() -> None:
    answer, _ = best([("7", 1, None), ("8", 1, None)], replace(ASKED, oracle=lambda t: float(t == "8")), by="oracle")
    assert (answer.text, answer.ratings, answer.note) == ("8", (0.0, 1.0), "chosen by who knows the answer")


def test_only_the_oracle_sees_the_reference() -> None:
    def seen(_: str) -> float:
        raise AssertionError("the scorer was asked")

    asked = replace(ASKED, oracle=seen, by_examples=lambda _: 0.0)
    best([("7", 1, -1.0)], asked)
    best([("7", 1, None)], asked, by="examples")
    Vote().answer(asked, Request((), 16), Scripted([("7", 1, None)] * 3))


def test_a_batch_chooses_the_same_with_the_seeds_of_a_vote() -> None:
    made = [("a", 2, -4.0), ("b", 8, -8.0), ("c", 1, -1.5)]
    one_by_one, ask = best(made)
    batched, together = best(made, batched=True)
    assert batched == one_by_one
    assert (ask.batches, together.batches) == ([], [3])
    vote = Scripted(made)
    Vote(early_stop=False).answer(ASKED, Request((), 16, seed=11), vote)
    assert [r.seed for r in vote.asked] == [r.seed for r in ask.asked]


@pytest.mark.parametrize(
    ("fields", "label"),
    [
        ({}, "best-of-3-likelihood"),
        ({"samples": 5, "of": Cot(max_new_tokens=90), "batched": True}, "best-of-5-likelihood-cot-90-batched"),
        ({"by": "examples", "temperature": 1.0}, "best-of-3-examples-t1"),
        ({"by": "reward", "reward": {"url": "http://x/rate"}}, "best-of-3-reward"),
    ],
)
def test_labels(fields: dict[str, Any], label: str) -> None:
    assert BestOf.model_validate(fields).label == label


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"samples": 0}, "samples"),
        ({"by": "reward"}, "'by: reward' needs 'reward'"),
        ({"reward": {"url": "http://x"}}, "nothing else may have it"),
        ({"by": "reward", "reward": {"url": "x"}}, "is no address of a server"),
        ({"by": "reward", "reward": {"url": "http://me:secret@x"}}, "a key goes in the environment"),
        ({"by": "reward", "reward": {"url": "http://x", "key": "k"}}, "key"),
        ({"by": "reward", "reward": {"url": "http://x", "timeout_s": 0}}, "timeout_s"),
        ({"by": "taste"}, "by"),
    ],
)
def test_a_wrong_one_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        BestOf.model_validate(fields)


def test_what_cannot_be_rated_is_refused() -> None:
    assert BestOf().refuses(ASKED) is None
    assert BestOf(by="examples").refuses(ASKED) == "its questions show no examples that code could be run on"
    assert BestOf(by="oracle").refuses(ASKED) == "nothing scores its answers before they are given"
    assert BestOf(of=Cot()).refuses(replace(ASKED, stepwise=None)) == "it has no prompt that asks for steps"
    assert BestOf().refuses(replace(ASKED, continuations=("A", "B"))) == "its answers are compared, not sampled"


Reply = Callable[[dict[str, Any]], tuple[int, bytes]]


class Server:
    """Answers as it is told, and keeps what it was sent."""

    def __init__(self) -> None:
        self.reply: Reply = lambda _: (200, b"{}")
        self.seen: list[tuple[str, str | None, dict[str, Any]]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.seen.append((self.path, self.headers["Authorization"], body))
                code, data = server.reply(body)
                self.send_response(code)
                self.send_header("Content-Length", str(len(data)))
                if code == 302:
                    self.send_header("Location", "/elsewhere")
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        self.http = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.http.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.http.shutdown()
    thread.join()
    made.http.server_close()


def test_by_a_reward_model_s_own_address(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", "abc")
    server.reply = lambda body: (200, json.dumps({"score": {"un": -2, "deux": 1.5}[body["answer"]]}).encode())
    reward = {"url": f"{server.url}/rate", "key_env": "THE_KEY"}
    answer, _ = best([("un", 1, None), ("deux", 1, None)], by="reward", reward=reward)
    assert (answer.text, answer.ratings) == ("deux", (-2.0, 1.5))
    assert answer.note == f"the joules of 127.0.0.1:{server.http.server_port}, which chose, are unknown"
    said = [{"role": "user", "content": "How many?"}]
    assert server.seen[1] == ("/rate", "Bearer abc", {"messages": said, "answer": "deux"})


def test_what_a_budget_s_close_begins_is_not_told_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Sequence[Message]] = []
    monkeypatch.setattr(RewardSpec, "rate", lambda _, messages, answer: told.append(messages))
    asked = replace(ASKED, stated=lambda text: "" if text == "no" else text)
    made = [("no", 6, None), ("1", 2, None)]
    answer, _ = best(made, asked, samples=1, of=Budget(tokens=6), by="reward", reward={"url": "http://x"})
    assert (told, len(answer.requests)) == ([(Message("user", "Step by step?"),)], 2)


def test_by_a_chat_model(server: Server) -> None:
    def reply(body: dict[str, Any]) -> tuple[int, bytes]:
        text = {"ä": "12 or 40", "b": "I'd say 97.5.", "c": "none"}[body["messages"][0]["content"].split("\n")[-3]]
        return 200, json.dumps({"choices": [{"message": {"content": text}}]}).encode()

    server.reply = reply
    reward = {"url": f"{server.url}/v1/", "model": "m"}
    answer, _ = best([("ä", 1, None), ("b", 1, None), ("c", 1, None)], by="reward", reward=reward)
    assert (answer.text, answer.ratings) == ("b", (40.0, 97.5, None))
    path, key, body = server.seen[0]
    assert (path, key, body["model"], body["temperature"]) == ("/v1/chat/completions", None, "m", 0.0)
    assert "user: How many?" in body["messages"][0]["content"]


@pytest.mark.parametrize(
    ("data", "model"),
    [
        (b'{"score": "high"}', None),
        (b'{"score": NaN}', None),
        (b'{"score": null}', None),
        (b'{"choices": [{"message": {"content": "very good"}}]}', "m"),
        (b'{"choices": [{"message": {"content": null}}]}', "m"),
    ],
)
def test_a_reply_without_a_number_is_no_rating(server: Server, data: bytes, model: str | None) -> None:
    server.reply = lambda _: (200, data)
    assert RewardSpec(url=server.url, model=model).rate(TURN, "7") is None


@pytest.mark.parametrize("data", [b"", b"<html></html>", b"[]", b"3", b'{"choices": []}', b"[" * 9999, b"\xff"])
@pytest.mark.parametrize("model", [None, "m"])
def test_who_does_not_answer_as_a_rater_fails_the_trial(server: Server, data: bytes, model: str | None) -> None:
    """Else the first sample would pass for the best."""
    server.reply = lambda _: (200, data)
    with pytest.raises(ChoiceError, match="not as who rates does"):
        RewardSpec(url=server.url, model=model).rate(TURN, "7")


def test_who_is_down_fails_the_trial_alone_and_who_knows_us_not_ends_the_run(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    reward = RewardSpec(url=server.url)
    for code, fault in ((500, ChoiceError), (429, ChoiceError), (302, UserError), (401, UserError), (404, UserError)):
        server.reply = lambda _, code=code: (code, b"")  # type: ignore[misc]
        with pytest.raises(fault, match=f"HTTP {code}"):
            reward.rate(TURN, "7")
    assert {path for path, _, _ in server.seen} == {"/"}
    monkeypatch.delenv("NO_KEY", raising=False)
    reward = RewardSpec(url=server.url, key_env="NO_KEY")
    for value, fault in ((None, "holds no key"), ("two words", "holds no key that can be one"), ("clé", "can be one")):
        if value is not None:
            monkeypatch.setenv("NO_KEY", value)
        with pytest.raises(UserError, match=f"NO_KEY .*{fault}"):
            reward.rate(TURN, "7")
        told = BestOf(by="reward", reward=reward).refuses(ASKED)
        assert told is not None
        assert fault in told
    monkeypatch.setenv("NO_KEY", "fine")
    assert BestOf(by="reward", reward=reward).refuses(ASKED) is None


def test_who_is_not_there_is_told() -> None:
    unused = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    unused.server_close()
    with pytest.raises(ChoiceError, match=r"cannot be reached .*: no sample could be chosen"):
        RewardSpec(url=f"http://127.0.0.1:{unused.server_port}").rate(TURN, "7")
