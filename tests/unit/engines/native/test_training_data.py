"""Texts that a target wrote: the folder, its split, and that a kill costs one batch at most."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tiny_models
from joulewise.engines.engine import Message, Sampling
from joulewise.engines.native.accept import Chooser
from joulewise.engines.native.model import DecoderModel
from joulewise.engines.native.session import uncaptured
from joulewise.engines.native.training import batch, data
from joulewise.engines.native.training import write as write_module
from joulewise.engines.native.training.data import Writer, open_texts
from joulewise.engines.native.training.files import alone_in
from joulewise.engines.native.training.write import Writing, read_prompts, write_texts
from joulewise.engines.transformers.loading import Loaded, make_neutral
from joulewise.errors import EnvironmentFault, UserError

TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] }}.{{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}a.{% endif %}"
)
Pairs = list[tuple[list[int], list[int]]]


def loaded(template: str | None = TEMPLATE, family: str = "llama") -> Loaded:
    return make_neutral("tiny", tiny_models.build(family), tiny_models.tokenizer(chat_template=template))


def pairs(count: int, seed: int = 0) -> Pairs:
    dice = np.random.default_rng(seed)
    return [
        (dice.integers(4, 70, 9).tolist(), dice.integers(4, 70, int(size)).tolist())
        for size in dice.integers(6, 30, count)
    ]


def content(folder: Path) -> tuple[bytes, bytes]:
    return (folder / "tokens.bin").read_bytes(), (folder / "index.bin").read_bytes()


def writer(folder: Path) -> Writer:
    folder.mkdir(exist_ok=True)
    return Writer(folder, loaded(), {"prompts": "made up"})


def test_texts_come_back_as_they_were(tmp_path: Path) -> None:
    given_ = pairs(150)
    writer(tmp_path).add(given_)
    texts = open_texts(tmp_path, loaded())
    assert texts.tokens.dtype == np.uint16
    assert texts.answer_tokens == sum(len(answer) for _, answer in given_)
    assert [texts.prompt(i).tolist() for i in range(150)] == [prompt for prompt, _ in given_]
    assert {*texts.where(True).tolist(), *texts.where(False).tolist()} == set(range(150))
    held_out = texts.where(True)
    assert 1 < len(held_out) < 15
    every = [p.tolist() for p in texts.held_out_prompts(100)]
    assert every == [given_[i][0] for i in held_out]
    assert [p.tolist() for p in texts.held_out_prompts(2)] == [every[0], every[len(every) // 2]]
    assert texts.first(0).held_out_prompts(2) == []
    its = texts.batch(np.array([3, 8]), 1000, torch.device("cpu"))
    for row, number in enumerate((3, 8)):
        prompt, answer = given_[number]
        assert its.tokens[row, : len(prompt) + len(answer)].tolist() == prompt + answer
        assert its.tokens[row][its.answer[row]].tolist() == answer


def test_nothing_is_there_twice_and_no_answer_on_both_sides(tmp_path: Path) -> None:
    (prompt, answer), (other_prompt, other) = pairs(2)
    its = writer(tmp_path)
    assert its.add([(prompt, answer), (prompt, other), (other_prompt, answer)]) == 1
    again = writer(tmp_path)
    assert again.knows(prompt)
    assert not again.knows(other_prompt)
    assert again.add([(prompt, other), (other_prompt, answer)]) == 0
    assert again.add([(other_prompt, [])]) == 0
    assert again.add([(other_prompt, other)]) == 1


def test_a_kill_at_any_byte_costs_the_batch_alone(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    its = writer(whole)
    its.add(pairs(2, 1))
    before, counted = content(whole), (whole / "data.json").read_bytes()
    its.add(pairs(2, 2))
    after = content(whole)
    for tokens in range(len(before[0]), len(after[0]), 7):
        (whole / "data.json").write_bytes(counted)
        (whole / "tokens.bin").write_bytes(after[0][:tokens])
        (whole / "index.bin").write_bytes(before[1])
        assert len(open_texts(whole).index) == 2
        writer(whole).add(pairs(2, 2))
        assert content(whole) == after
    for rows in range(len(before[1]), len(after[1])):
        (whole / "data.json").write_bytes(counted)
        (whole / "tokens.bin").write_bytes(after[0])
        (whole / "index.bin").write_bytes(after[1][:rows])
        writer(whole).add(pairs(2, 2))
        assert content(whole) == after


def test_damaged_tokens_are_refused_and_writing_keeps_what_is_whole(tmp_path: Path) -> None:
    writer(tmp_path).add(pairs(3))
    tokens, index = content(tmp_path)
    (tmp_path / "tokens.bin").write_bytes(tokens[:-3])
    with pytest.raises(UserError) as told:
        open_texts(tmp_path, loaded())
    assert f"tokens.bin is damaged: it holds {len(tokens) - 3:,} bytes, and index.bin tells of {len(tokens):,}" in str(
        told.value
    )
    assert f"`joulewise heads data tiny --out {tmp_path}` again" in str(told.value)
    again = writer(tmp_path)
    assert again.texts == len(open_texts(tmp_path).index) == 2
    again.add(pairs(3))
    assert content(tmp_path) == (tokens, index)


@pytest.mark.parametrize("left", [2, 1, 0])
def test_an_index_that_was_cut_by_whole_texts_is_refused_and_writing_keeps_what_is_whole(
    tmp_path: Path, left: int
) -> None:
    writer(tmp_path).add(pairs(3))
    tokens, index = content(tmp_path)
    (tmp_path / "index.bin").write_bytes(index[: 12 * left])
    with pytest.raises(UserError) as told:
        open_texts(tmp_path, loaded())
    assert f"index.bin is damaged: it holds {left} texts, and data.json tells of 3; run `joulewise" in str(told.value)
    again = writer(tmp_path)
    assert again.texts == len(open_texts(tmp_path).index) == left
    again.add(pairs(3))
    assert content(tmp_path) == (tokens, index)


def test_a_folder_that_counts_no_texts_still_opens(tmp_path: Path) -> None:
    writer(tmp_path).add(pairs(3))
    about = json.loads((tmp_path / "data.json").read_text())
    assert about.pop("texts") == 3
    (tmp_path / "data.json").write_text(json.dumps(about))
    assert len(open_texts(tmp_path, loaded()).index) == 3
    assert writer(tmp_path).texts == 3
    assert json.loads((tmp_path / "data.json").read_text()) == about | {"texts": 3}


@pytest.mark.parametrize(
    ("whole", "name"),
    [
        (0, "tokens.bin"),
        (1, "index.bin"),
        (2, "data.json"),
    ],
)
def test_a_full_disk_is_told_and_costs_nothing_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: int, name: str
) -> None:
    its = writer(tmp_path)
    its.add(pairs(2, 1))
    before = content(tmp_path)
    synced = count()

    def full(_: int) -> None:
        if next(synced) >= whole:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(data.os, "fsync", full)
    with pytest.raises(EnvironmentFault) as told:
        its.add(pairs(2, 2))
    why = "cannot be written (No space left on device): make room there, and run the same command again."
    assert str(told.value) == f"{tmp_path / name} {why}"
    monkeypatch.undo()
    its = writer(tmp_path)
    kept = content(tmp_path)
    assert [new[: len(old)] for new, old in zip(kept, before, strict=True)] == list(before)
    assert its.texts == len(open_texts(tmp_path).index)
    lost = 4 - its.texts
    assert its.add(pairs(2, 2)) == lost


def test_another_targets_data_is_refused(tmp_path: Path) -> None:
    writer(tmp_path).add(pairs(2))
    with pytest.raises(UserError, match="were written by tiny"):
        open_texts(tmp_path, loaded(template=None))
    with pytest.raises(UserError, match="holds no texts"):
        open_texts(tmp_path / "nowhere")
    (tmp_path / "data.json").write_text(json.dumps({"target": "tiny"}))
    with pytest.raises(UserError, match="lacks or misstates 'dtype'"):
        open_texts(tmp_path)


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 60)), min_size=1, max_size=40),
    tokens=st.integers(16, 200),
)
def test_batches_hold_every_text_once_within_the_budget(sizes: list[tuple[int, int]], tokens: int) -> None:
    index = np.array([(*size, i % 5 == 0) for i, size in enumerate(sizes)], np.int32)
    texts = data.Texts(Path("x"), {}, np.zeros(int(index[:, :2].sum()), np.uint16), index)
    longest = 50
    batches = texts.batches(False, tokens, longest)
    chosen = [int(i) for its in batches for i in its]
    assert sorted(chosen) == [i for i in texts.where(False).tolist() if sum(sizes[i]) >= data.SHORTEST]
    for its in batches:
        widest = max(min(sum(sizes[i]), longest) for i in its)
        assert len(its) == 1 or len(its) * widest <= tokens


def test_the_frequent_tokens_are_those_of_training_answers(tmp_path: Path) -> None:
    its = writer(tmp_path)
    its.add([([50 + i, 5, 6, 7], [10, 10, 11, 12 + i]) for i in range(30)])
    texts = open_texts(tmp_path)
    assert texts.frequent(2).tolist() == [10, 11]
    seen = {int(t) for i in texts.where(False) for t in (10, 11, 12 + i)}
    assert texts.frequent(1000).tolist() == sorted(seen)


class Killed(Exception):
    pass


def write(folder: Path, tokens: int, **other: Any) -> None:
    prompts = [(Message("user", f"question {i}?"),) for i in range(11)]
    with alone_in(folder):
        write_texts(loaded(), folder, Writing(tokens, max_new_tokens=20, batch=4, **other), prompts, "mine.jsonl")


@pytest.mark.parametrize("lost", ["tokens.bin", "index.bin"])
def test_writing_goes_on_after_a_kill_as_if_there_had_been_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(write_module, "TURN_TOKENS", 40)
    write(tmp_path / "whole", 260)
    append = Writer._append
    for killed in (1, 3, 4):  # the fourth is of turns that the target made up
        left = [killed]

        def dies(self: Writer, name: str, bytes_: bytes, left: list[int] = left) -> None:
            left[0] -= name == lost
            if left[0] == 0:
                raise Killed
            append(self, name, bytes_)

        folder = tmp_path / f"{killed}"
        with monkeypatch.context() as patched:
            patched.setattr(Writer, "_append", dies)
            with pytest.raises(Killed):
                write(folder, 260)
        had = len(open_texts(folder).index)
        assert had <= 4 * (killed - 1)
        write(folder, 260)
        assert content(folder) == content(tmp_path / "whole")
    assert open_texts(tmp_path / "whole").answer_tokens >= 260
    assert len(open_texts(tmp_path / "whole").index) > 11
    assert [o["prompts"] for o in open_texts(folder).about["origins"]] == ["mine.jsonl"]


def test_answers_are_the_targets_own_greedy_ones_in_spite_of_the_padding(tmp_path: Path) -> None:
    target = loaded()  # generates by itself, alone, without our attention and cache
    prompts = [(Message("user", "?" * (1 + 5 * i)),) for i in range(4)]
    with alone_in(tmp_path):
        write_texts(loaded(), tmp_path, Writing(1, max_new_tokens=12, batch=4), prompts, "mine")
    texts = open_texts(tmp_path)
    assert len(texts.index) > 1
    for i in range(len(texts.index)):
        prompt = texts.prompt(i)
        alone = target.model.generate(prompt[None], max_new_tokens=12, do_sample=False, eos_token_id=tiny_models.EOS)
        its = texts.batch(np.array([i]), 100, torch.device("cpu"))
        answer = its.tokens[0][its.answer[0]]
        assert answer.tolist() == alone[0, len(prompt) :].tolist()[: len(answer)]
        assert len(answer) > 4


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_captured_batch_over_several_buckets_writes_the_same(monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    monkeypatch.setattr(batch, "BUCKET", 8)
    monkeypatch.setattr(batch, "_MASK_AT_ONCE", 3 * 13 * 4)  # four columns of the prompts at a time
    monkeypatch.setattr(batch, "FEW_LEFT", 0.0)
    reference = loaded(family=family)
    model = DecoderModel(loaded(family=family))
    prompts = [torch.randint(4, 70, (size,), generator=torch.Generator().manual_seed(size)) for size in (3, 13, 9)]
    greedy = Chooser.of(Sampling(), 0, model.device)
    rows = [prompt.tolist() for prompt in prompts]
    with torch.inference_mode():
        plain = batch.write_batch(model, rows, 30, [], greedy)
        captured = batch.write_batch(model, rows, 30, [], greedy, uncaptured)
    assert plain == captured
    for prompt, answer in zip(prompts, plain, strict=True):
        alone = reference.model.generate(prompt[None], max_new_tokens=30, do_sample=False, eos_token_id=None)
        assert answer == alone[0, len(prompt) :].tolist()


def test_a_batch_ends_with_its_texts_and_cuts_the_last_few(monkeypatch: pytest.MonkeyPatch) -> None:
    model = DecoderModel(loaded())
    rows = [[5, 6, number] for number in range(7, 16)]
    greedy = Chooser.of(Sampling(), 0, model.device)
    with torch.inference_mode():
        whole = batch.write_batch(model, rows, 40, [], greedy)
        ends = {row[2] for row in whole[:-1]} - set(whole[-1])  # all but the last text end early
        monkeypatch.setattr(batch, "_LOOK_EVERY", 4)
        cut = batch.write_batch(model, rows, 40, ends, greedy)
    for row, short in zip(whole, cut, strict=True):
        assert short == row[: len(short)]
    assert all(row[-1] in ends and not ends.intersection(row[:-1]) for row in cut[:-1])
    assert len(cut[-1]) < 40


def test_prompts_that_are_kept_out_or_too_long_are_not_answered(tmp_path: Path) -> None:
    prompts = [(Message("user", text),) for text in ("one?", "two?", "x" * 90)]
    with alone_in(tmp_path):
        write_texts(loaded(), tmp_path, Writing(15, max_new_tokens=20), prompts, "mine", exclude=prompts[:1])
    texts = open_texts(tmp_path)
    assert tiny_models.tokenizer().decode(texts.prompt(0)[2:]).startswith("two?")
    assert len(texts.index) == 1


def test_a_deadline_that_is_over_leaves_an_open_folder(tmp_path: Path) -> None:
    write(tmp_path, 700, deadline_s=0.0)
    assert open_texts(tmp_path).answer_tokens == 0


def test_without_a_chat_template_no_turns_are_made_up(tmp_path: Path) -> None:
    with alone_in(tmp_path), pytest.raises(UserError, match=r"no chat template.*--prompts"):
        write_texts(loaded(None), tmp_path, Writing(10))


def test_without_a_chat_template_the_prompts_are_answered_all_the_same(tmp_path: Path) -> None:
    said: list[str] = []
    with alone_in(tmp_path):
        how = Writing(10**6, max_new_tokens=8)
        write_texts(loaded(None), tmp_path, how, [(Message("user", "one?"),)], "mine", say=said.append)
    assert len(open_texts(tmp_path).index) == 1
    assert "cannot make up more" in said[-1]


def test_a_folder_has_one_writer(tmp_path: Path) -> None:
    with alone_in(tmp_path), pytest.raises(UserError, match="Another process is writing"), alone_in(tmp_path):
        pass


def test_prompts_are_read_in_every_form(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    rows: list[dict[str, Any]] = [
        {"prompt": "a"},
        {"question": "b", "answer": "z"},
        {"turns": ["c", "d"]},
        {"messages": [{"role": "user", "content": "e"}, {"role": "assistant", "content": "f"}]},
    ]
    file.write_text("\n".join(map(json.dumps, rows)))
    assert [m[-1].content for m in read_prompts(file)] == ["a", "b", "c", "e"]
    lines = tmp_path / "prompts.txt"
    lines.write_text("one\n\n two \n")
    assert [m[0].content for m in read_prompts(lines)] == ["one", "two"]


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("p.jsonl", '{"prompt": "a"}\n{"answer": "b"}', r"p.jsonl:2: no prompt in it: it needs one of"),
        ("p.jsonl", '{"messages": [{"role": "assistant", "content": "b"}]}', "p.jsonl:1: no prompt"),
        ("p.jsonl", '{"turns": []}', "p.jsonl:1: no prompt"),
        ("p.jsonl", "{", "p.jsonl:1: not valid JSON"),
        ("p.txt", "\n\n", "holds no prompts"),
    ],
)
def test_a_file_without_prompts_says_where(tmp_path: Path, name: str, text: str, fault: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=fault):
        read_prompts(tmp_path / name)
    with pytest.raises(UserError):
        read_prompts(tmp_path / "nowhere.txt")
