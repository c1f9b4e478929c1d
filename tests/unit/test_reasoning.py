"""What a reasoning asks, and what it makes of the answers."""

from __future__ import annotations

from joulewise.engines.engine import Generation, Message, Request
from joulewise.reasoning import Direct


def test_direct_shows_a_later_turn_the_earlier_answers() -> None:
    asked: list[Request] = []

    def ask(request: Request) -> Generation:
        asked.append(request)
        return Generation(f"answer {len(asked)}", (len(asked),), 1, "eos", 0.0, 1.0)

    turns = (
        (
            Message("system", "Be brief."),
            Message("user", "Write."),
        ),
        (Message("user", "Again."),),
    )
    answer = Direct().answer(turns, Request((), 7), ask)
    assert [r.messages for r in asked] == [
        turns[0],
        (*turns[0], Message("assistant", "answer 1"), Message("user", "Again.")),
    ]
    assert {r.max_new_tokens for r in asked} == {7}
    assert answer.text == "answer 2"
    assert answer.requests == tuple(asked)
    assert [g.text for g in answer.generations] == ["answer 1", "answer 2"]
