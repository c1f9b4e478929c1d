"""What a reasoning asks, and what it makes of the answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from pydantic import ValidationError

from joulewise.engines.engine import Cut, FinishReason, Generation, Message, Request
from joulewise.reasoning import Asked, Budget, Cot, Direct, FewShot, Probed, Reasoning, Vote
from joulewise.reasoning.reasoning import Answer, stated_whole, without_thinking
from joulewise.tasks.math_answer import extract_math, stated_math


class Scripted:
    """Answers with the texts it was given, one after another, and keeps what it was asked."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = iter(texts)
        self.asked: list[Request] = []

    def __call__(self, request: Request) -> Generation:
        self.asked.append(request)
        return Generation(next(self.texts), (len(self.asked),), 1, "eos", 0.0, 1.0)


def user(text: str) -> tuple[Message, ...]:
    return (Message("user", text),)


def last_line(text: str) -> str:
    return text.splitlines()[-1]


ASKED = Asked((user("How many?"),), user("How many? Step by step."), stated=last_line)
TALK = Asked(((Message("system", "Be brief."), Message("user", "Write.")), user("Again.")))


def test_direct_shows_a_later_turn_the_earlier_answers() -> None:
    ask = Scripted(["answer 1", "answer 2"])
    answer = Direct().answer(TALK, Request((), 7), ask)
    assert [r.messages for r in ask.asked] == [
        TALK.turns[0],
        (*TALK.turns[0], Message("assistant", "answer 1"), Message("user", "Again.")),
    ]
    assert {r.max_new_tokens for r in ask.asked} == {7}
    assert answer.text == "answer 2"
    assert answer.requests == tuple(ask.asked)
    assert [g.text for g in answer.generations] == ["answer 1", "answer 2"]


def test_a_model_s_thinking_is_no_part_of_its_answer_but_of_its_generation() -> None:
    ask = Scripted(["<think>\nis it 1?\n</think>\n\n2", "<think>endless"])
    answer = Direct().answer(TALK, Request((), 7), ask)
    assert ask.asked[1].messages[2] == Message("assistant", "2")
    assert answer.text == ""
    assert answer.generations[0].text.startswith("<think>")


@pytest.mark.parametrize(
    ("text", "opened", "rest"),
    [
        ("plain", False, "plain"),
        ("<think>a</think>b", False, "b"),
        ("opened by the template</think>\n\nb", True, "b"),
        ("opened by the template and never closed", True, ""),
        ("<think>a</think>b<think>c</think> d", False, "d"),
        ("<think>never closed", False, ""),
        ("", False, ""),
    ],
)
def test_without_thinking(text: str, opened: bool, rest: str) -> None:
    assert without_thinking(Generation(text, (1,), 1, "eos", 0.0, 1.0, thinking_open=opened)) == rest


def test_cot_asks_for_steps_and_scores_what_they_end_in() -> None:
    ask = Scripted(["First 3.\n7"])
    cot = Cot(max_new_tokens=90)
    answer = cot.answer(ASKED, cot.settings(Request((), 16, seed=5)), ask)
    assert ask.asked == [Request(user("How many? Step by step."), 90, seed=5, thinking=True)]
    assert (answer.text, answer.generations[0].text) == ("7", "First 3.\n7")
    assert (cot.label, cot.refuses(ASKED)) == ("cot-90", None)


def test_cot_leaves_the_length_of_a_fixed_stop_alone() -> None:
    template = Request((), 16, ignore_eos=True)
    assert Cot().settings(template) == replace(template, thinking=True)


def test_cot_refuses_a_task_without_a_prompt_for_steps() -> None:
    assert Cot().refuses(TALK) == "it has no prompt that asks for steps"
    assert Direct().refuses(TALK) is None


EXAMPLES = tuple((Message("user", f"Example {i}?"), Message("assistant", f"{i}")) for i in range(3))


def test_few_shot_shows_the_first_examples_as_earlier_turns() -> None:
    ask = Scripted(["7"])
    asked = replace(ASKED, examples=lambda: EXAMPLES)
    answer = FewShot(examples=2).answer(asked, Request((), 16), ask)
    assert [m.content for m in ask.asked[0].messages] == ["Example 0?", "0", "Example 1?", "1", "How many?"]
    assert [m.role for m in ask.asked[0].messages] == ["user", "assistant", "user", "assistant", "user"]
    assert answer.text == "7"


@pytest.mark.parametrize(
    ("there", "wanted", "reason"),
    [
        (0, 1, "it has no examples to show"),
        (1, 2, "it has 1 example to show, and 2 are asked for"),
        (3, 4, "it has 3 examples to show, and 4 are asked for"),
        (3, 3, None),
    ],
)
def test_few_shot_refuses_a_task_with_too_few_examples(there: int, wanted: int, reason: str | None) -> None:
    assert FewShot(examples=wanted).refuses(replace(ASKED, examples=lambda: EXAMPLES[:there])) == reason


COUNTED = replace(ASKED, stated=stated_math, extract=extract_math)


SHORT = Request((), 16, seed=3)


def budget(texts: list[str], template: Request = SHORT, **more: int) -> tuple[Answer, list[Request]]:
    reasoning = Budget.model_validate(more)
    ask = Scripted(texts)
    return reasoning.answer(COUNTED, reasoning.settings(template), ask), ask.asked


def test_steps_within_their_budget_that_state_an_answer_are_all() -> None:
    answer, asked = budget(["3 + 4. The answer is 7."], tokens=64)
    assert asked == [Request(user("How many? Step by step."), 64, seed=3, thinking=True)]
    assert (answer.text, answer.requests) == ("Answer: 7", tuple(asked))


@pytest.mark.parametrize(
    ("steps", "begun"),
    [
        ("First 3, and th", "First 3, and th\n\nThe answer is"),
        ("", "\n\nThe answer is"),
        ("<think>\nFirst 3\n", "<think>\nFirst 3\n</think>\n\nThe answer is"),
        ("<think>3</think>Well.", "<think>3</think>Well.\n\nThe answer is"),
    ],
)
def test_steps_without_an_answer_are_closed_and_the_model_goes_on(steps: str, begun: str) -> None:
    answer, asked = budget([steps, " 7 apples."], tokens=64, answer_tokens=9)
    closing = (*user("How many? Step by step."), Message("assistant", begun))
    assert asked[1] == Request(closing, 9, seed=3, thinking=True)
    assert (answer.text, answer.requests) == ("Answer: 7", tuple(asked))
    assert [g.text for g in answer.generations] == [steps, " 7 apples."]


def test_a_block_that_the_template_opened_is_closed_too() -> None:
    asked: list[Request] = []

    def ask(request: Request) -> Generation:
        asked.append(request)
        text = "The answer is 9, or is it" if len(asked) == 1 else " 7"
        return Generation(text, (1,), 1, "eos", 0.0, 1.0, thinking_open=len(asked) == 1)

    reasoning = Budget(tokens=64)
    answer = reasoning.answer(COUNTED, reasoning.settings(SHORT), ask)  # what is said inside the block is no answer
    assert asked[1].messages[-1].content == "The answer is 9, or is it\n</think>\n\nThe answer is"
    assert answer.text == "Answer: 7"


@pytest.mark.parametrize(
    ("text", "end", "stated"),
    [
        ("The answer is 12", "length", ""),  # of 1234, maybe
        ("The answer is 12", "eos", "Answer: 12"),
        ("The answer is 12.", "length", "Answer: 12"),
        ("The answer is 12 apples and 3", "length", "Answer: 12"),
        ("The answer is 3,1", "length", ""),
        ("It is 12", "length", ""),
        ("The answer is ٣", "length", ""),
        ("Die Antwort: é. The answer is 7 Äpfel", "length", "Answer: 7"),
    ],
)
def test_a_number_that_its_limit_may_have_cut_off_is_no_answer(text: str, end: FinishReason, stated: str) -> None:
    assert stated_whole(COUNTED, text, end) == stated

    def ask(request: Request) -> Generation:
        return Generation(text, (1,), 1, end, 0.0, 1.0)

    assert Cot().answer(COUNTED, SHORT, ask).text == stated
    fixed = replace(SHORT, ignore_eos=True)
    assert Budget().answer(COUNTED, fixed, ask).text == stated


def test_a_budget_below_the_answer_s_length_is_closed_or_has_no_answer() -> None:
    def ask(request: Request) -> Generation:
        text = " 1234"[: request.max_new_tokens] if request.messages[-1].role == "assistant" else "The answer is 12"
        return Generation(text, (1,) * request.max_new_tokens, 1, "length", 0.0, 1.0)

    def told(answer_tokens: int) -> str:
        reasoning = Budget(tokens=16, answer_tokens=answer_tokens)
        return reasoning.answer(COUNTED, reasoning.settings(SHORT), ask).text

    assert [told(tokens) for tokens in (1, 3, 5)] == ["", "", ""]

    def ended(request: Request) -> Generation:
        return replace(ask(request), finish_reason="eos" if request.messages[-1].role == "assistant" else "length")

    reasoning = Budget(tokens=16)
    assert reasoning.answer(COUNTED, reasoning.settings(SHORT), ended).text == "Answer: 1234"


def test_what_is_asked_first_shows_in_words_and_examples() -> None:
    asked = replace(COUNTED, examples=lambda: EXAMPLES)
    first = {r.label: r.asks_first(asked, SHORT) for r in (Direct(), FewShot(examples=2), Cot(), Budget())}
    assert first["direct"] == user("How many?")
    assert first["few-shot-2"] == (*EXAMPLES[0], *EXAMPLES[1], *user("How many?"))
    assert first["cot-256"] == first["budget-256"] == user("How many? Step by step.")
    assert Vote(of=Cot()).asks_first(asked, SHORT) == first["cot-256"]


class Cutting:
    """Writes a text of one token a character, and answers what is closed with what it has for that."""

    def __init__(self, thought: str, closings: dict[str, str], opened: bool = False) -> None:
        self.thought, self.closings, self.opened = thought, closings, opened
        self.asked: list[Request] = []

    def __call__(self, request: Request) -> Generation:
        self.asked.append(request)
        last = request.messages[-1]
        if last.role == "assistant":
            return Generation(self.closings[last.content], (1, 2), 9, "eos", 10.0, 11.0)
        text = self.thought[: request.max_new_tokens]
        cuts = tuple(Cut(k, text[:k], float(k)) for k in request.cuts if k < len(text))
        return Generation(text, tuple(map(ord, text)), 3, "eos", 0.0, 9.0, thinking_open=self.opened, cuts=cuts)


def probed(ask: Cutting, template: Request = SHORT, **more: object) -> tuple[Answer, list[tuple[int, Probed]]]:
    reasoning = Budget.model_validate({"tokens": 40, "probes": [4, 12, 30]} | more)
    answer = reasoning.answer(COUNTED, reasoning.settings(template), ask)
    before = len(ask.asked)
    assert before == len(answer.requests)
    assert [probe.reasoning for probe in answer.probes] == [f"budget-{probe.tokens}" for probe in answer.probes]
    return answer, [(probe.tokens, probe.run(ask, ask)) for probe in answer.probes]


def test_a_budget_is_probed_in_one_pass() -> None:
    ask = Cutting(
        "Hm. 3 and The answer is 7. Or 8, or 9", {"Hm.\n\nThe answer is": " 5", "Hm. 3 and Th\n\nThe answer is": "?"}
    )
    answer, probes = probed(ask)
    assert (answer.text, len(answer.generations)) == ("Answer: 7", 1)
    assert [(k, p.text, p.time_s, p.closing is None) for k, p in probes] == [
        (4, "Answer: 5", 4.0, False),
        (12, "", 12.0, False),
        (30, "Answer: 7", 30.0, True),  # it has been stated by then
    ]
    # What is probed is what a budget of so many tokens answers.
    for tokens, probe in probes:
        alone = Budget(tokens=tokens)
        assert alone.answer(COUNTED, alone.settings(SHORT), ask).text == probe.text


def test_a_thought_that_ended_before_is_what_it_was() -> None:
    ask = Cutting("Hm. 3", {"Hm.\n\nThe answer is": " 5", "Hm. 3\n\nThe answer is": " 6"})
    answer, probes = probed(ask)
    assert (answer.text, len(answer.generations)) == ("Answer: 6", 2)
    assert [(k, p.text, p.time_s, p.closing is None) for k, p in probes] == [
        (4, "Answer: 5", 4.0, False),
        (12, "Answer: 6", 11.0, True),
        (30, "Answer: 6", 11.0, True),
    ]


def test_a_probe_closes_a_block_too() -> None:
    closed = "4 a\n</think>\n\nThe answer is"
    answer, ((_, probe),) = probed(Cutting("4 a</think>The answer is 7", {closed: " 4"}, opened=True), probes=[3])
    assert (answer.text, probe.text) == ("Answer: 7", "Answer: 4")


def test_a_fixed_length_is_not_probed() -> None:
    answer, probes = probed(Cutting("Hm", {}), Request((), 16, ignore_eos=True))
    assert (answer.requests[0].cuts, probes) == ((), [])


@pytest.mark.parametrize("probes", [[0], [8, 4], [4, 4], [64], [4, 99]])
def test_probes_that_cannot_be_are_refused(probes: list[int]) -> None:
    with pytest.raises(ValidationError, match="probes"):
        Budget.model_validate({"tokens": 64, "probes": probes})
    with pytest.raises(ValidationError, match="samples are not probed"):
        Vote.model_validate({"of": {"kind": "budget", "probes": [4]}})


@pytest.mark.parametrize(
    ("reasoning", "label", "thinking", "needs"),
    [
        (Direct(), "direct", False, False),
        (FewShot(), "few-shot-5", False, False),
        (Cot(), "cot-256", True, False),
        (Cot(thinking=True), "cot-256-thinking", True, True),
        (Cot(thinking=False), "cot-256-no-thinking", False, False),
        (Budget(thinking=True), "budget-256-thinking", True, True),
        (Budget(answer_tokens=9, thinking=False), "budget-256-9-no-thinking", False, False),
        (Vote(of=Cot(thinking=True)), "vote-3-cot-256-thinking", True, True),
        (Vote(), "vote-3", False, False),
    ],
)
def test_who_thinks_by_the_model_s_own_switch(reasoning: Reasoning, label: str, thinking: bool, needs: bool) -> None:
    for template in (Request((), 8), Request((), 8, ignore_eos=True)):
        assert reasoning.settings(template).thinking is thinking
    assert (reasoning.label, reasoning.needs_thinking) == (label, needs)


@pytest.mark.parametrize(("last", "text"), [("7", "Answer: 7"), ("", ""), (" not known", "")])
def test_the_answer_after_a_close_must_be_one(last: str, text: str) -> None:
    assert budget(["Hm", last])[0].text == text


def test_a_fixed_length_is_not_closed() -> None:
    answer, asked = budget(["Hm"], Request((), 16, ignore_eos=True))
    assert (answer.text, [r.max_new_tokens for r in asked]) == ("", [16])


def test_a_budget_has_its_label_and_needs_steps() -> None:
    assert (Budget(tokens=64).label, Budget(answer_tokens=9).label) == ("budget-64", "budget-256-9")
    assert Budget().refuses(TALK) == "it has no prompt that asks for steps"
    assert Budget().refuses(COUNTED) is None
    assert Budget(tokens=64).most_tokens(Request((), 8, ignore_eos=True)) == (8,)
