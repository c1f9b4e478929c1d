"""GSM8K, MMLU and CNN/DailyMail from small files and from a hub that is played; see also ``test_real_task_data``."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from joulewise.errors import EnvironmentFault, UserError
from joulewise.tasks import open_task
from joulewise.tasks.task import Score, question_hash

pytest.importorskip("math_verify", reason="needs the extra 'score'")
pytest.importorskip("rouge_score", reason="needs the extra 'score'")

GSM8K = [
    {"question": "What is 2 x 600?", "answer": "2 * 600 = <<2*600=1200>>1,200\n#### 1,200"},
    {"question": "What is 3 - 5?", "answer": "#### -2"},
]
MMLU: list[dict[str, Any]] = [
    {"subject": "anatomy", "question": "Where?", "choices": ["here", "there", "up", "down"], "answer": 1},
    {"subject": "virology", "question": "What?", "choices": ["1", "2", "3", "4"], "answer": 3},
    {"subject": "anatomy", "question": "Who?", "choices": ["I", "you", "she", "we"], "answer": 0},
]
MT_BENCH: list[dict[str, Any]] = [
    {"question_id": 81, "category": "writing", "turns": ["Write.", "Again, please."], "reference": []},
    {"question_id": 82, "category": "math", "turns": ["Add.", "And once more."], "reference": ["1", "2"]},
]
MT_BENCH_HUB = [
    {"prompt": r["turns"], "prompt_id": 4711, "category": r["category"], "reference": r["reference"]} for r in MT_BENCH
]
CNN_DM = [{"id": "f00", "article": "A long text.", "highlights": "A text."}]

Load = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Callable[[Load], None]:
    """Puts a package ``datasets`` in place whose ``load_dataset`` is the given function."""
    monkeypatch.delenv("JOULEWISE_DATA", raising=False)

    def install(load: Load) -> None:
        package, exceptions = ModuleType("datasets"), ModuleType("datasets.exceptions")
        exceptions.DatasetsError = type("DatasetsError", (Exception,), {})  # type: ignore[attr-defined]
        package.load_dataset, package.exceptions = load, exceptions  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "datasets", package)
        monkeypatch.setitem(sys.modules, "datasets.exceptions", exceptions)
        monkeypatch.setattr("joulewise.tasks.rows.hub_out_of_reach", lambda: None)

    return install


def write(folder: Path, name: str, rows: list[dict[str, Any]]) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    (folder / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return folder


def local_mmlu() -> list[dict[str, Any]]:
    indices = [0, 0, 1]
    test = [
        {**r, "split": "test", "index": i, "answer": "ABCD"[r["answer"]]} for r, i in zip(MMLU, indices, strict=True)
    ]
    return [*test, {**test[0], "split": "dev"}]


def test_gsm8k_from_a_file(tmp_path: Path) -> None:
    task = open_task("gsm8k", write(tmp_path, "gsm8k_test.jsonl", GSM8K))
    assert [(q.question_id, q.reference) for q in task.questions()] == [("test-0", "1200"), ("test-1", "-2")]
    assert (task.name, task.third_party, task.metric) == ("gsm8k", True, "math_match")
    first = task.questions()[0]
    assert "1200" not in task.turns(first)[0][0].content
    assert task.score(first, "The answer is 1,200.").correct is True


def test_gsm8k_split(tmp_path: Path) -> None:
    task = open_task("gsm8k", write(tmp_path, "gsm8k_train.jsonl", GSM8K), {"split": "train"})
    assert task.questions()[0].question_id == "train-0"
    with pytest.raises(UserError, match=r"option 'split': .*found 'dev'"):
        open_task("gsm8k", tmp_path, {"split": "dev"})
    with pytest.raises(UserError, match="unknown option 'spilt'; did you mean 'split'"):
        open_task("gsm8k", tmp_path, {"spilt": "train"})


@pytest.mark.parametrize("answer", ["It is 18.", "#### many", "####", "18 ####"])
def test_gsm8k_answer_without_a_number(tmp_path: Path, answer: str) -> None:
    write(tmp_path, "gsm8k_test.jsonl", [*GSM8K, {"question": "?", "answer": answer}])
    with pytest.raises(UserError, match=r"gsm8k_test\.jsonl:3: the field 'answer' does not end in"):
        open_task("gsm8k", tmp_path)


def test_mmlu_from_a_file(tmp_path: Path) -> None:
    task = open_task("mmlu", write(tmp_path, "mmlu.jsonl.gz", local_mmlu()))
    assert [(q.question_id, q.reference, q.category) for q in task.questions()] == [
        ("anatomy-test-0", "B", "anatomy"),
        ("virology-test-0", "D", "virology"),
        ("anatomy-test-1", "A", "anatomy"),
    ]
    assert "B) there" in task.turns(task.questions()[0])[0][0].content
    assert task.third_party
    some = open_task("mmlu", tmp_path, {"subjects": ["anatomy"]})
    assert [q.question_id for q in some.questions()] == ["anatomy-test-0", "anatomy-test-1"]
    with pytest.raises(UserError, match="no subject 'virolgy'; did you mean 'virology'"):
        open_task("mmlu", tmp_path, {"subjects": ["virolgy"]})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"choices": ["a", "b"]}, "'choices' is wrong"),
        ({"answer": "E"}, "'answer' is wrong"),
        ({"question": None}, "'question' is wrong"),
    ],
)
def test_mmlu_with_a_broken_row(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    rows = local_mmlu()
    rows[1] |= change
    with pytest.raises(UserError, match=rf"mmlu\.jsonl\.gz:2: the field {message}"):
        open_task("mmlu", write(tmp_path, "mmlu.jsonl.gz", rows))


def test_mmlu_splits(tmp_path: Path) -> None:
    write(tmp_path, "mmlu.jsonl.gz", local_mmlu())
    assert [q.question_id for q in open_task("mmlu", tmp_path, {"split": "dev"}).questions()] == ["anatomy-dev-0"]
    with pytest.raises(UserError, match=r"option 'split': mmlu\.jsonl\.gz holds no questions of the split 'val'"):
        open_task("mmlu", tmp_path, {"split": "val"})
    write(tmp_path, "mmlu.jsonl.gz", [{k: v for k, v in local_mmlu()[0].items() if k != "split"}])
    with pytest.raises(UserError, match="the field 'split' is missing"):
        open_task("mmlu", tmp_path)


@pytest.mark.parametrize("answer", ["AB", "A, B", ["A", "B"], "", None])
def test_mmlu_with_two_right_letters_or_none(tmp_path: Path, answer: Any) -> None:
    rows = local_mmlu()
    rows[0]["answer"] = answer
    write(tmp_path, "mmlu.jsonl.gz", rows)
    with pytest.raises(UserError, match=r"mmlu\.jsonl\.gz:1: the field 'answer' is wrong: .*--skip-bad"):
        open_task("mmlu", tmp_path)
    told: list[str] = []
    task = open_task("mmlu", tmp_path, skip_bad=told.append)
    assert [q.question_id for q in task.questions()] == ["virology-test-0", "anatomy-test-1"]
    assert len(told) == 1


def test_a_skipped_gsm8k_row_renames_no_other(tmp_path: Path) -> None:
    (tmp_path / "gsm8k_test.jsonl").write_text("{\n" + json.dumps(GSM8K[1]) + "\n")
    told: list[str] = []
    task = open_task("gsm8k", tmp_path, skip_bad=told.append)
    assert [q.question_id for q in task.questions()] == ["test-1"]
    assert "gsm8k_test.jsonl:1: not valid JSON" in told[0]


def test_mt_bench_from_a_file(tmp_path: Path) -> None:
    task = open_task("mt_bench", write(tmp_path, "mt_bench_questions.jsonl", MT_BENCH))
    assert [(q.question_id, q.category) for q in task.questions()] == [("81", "writing"), ("82", "math")]
    assert task.third_party
    turns = task.turns(task.questions()[0])
    assert [[(m.role, m.content) for m in turn] for turn in turns] == [
        [("user", "Write.")],
        [("user", "Again, please.")],
    ]
    for text in ("", "An answer."):
        assert task.score(task.questions()[0], text) == Score(None, None, None, "unscored")
    some = open_task("mt_bench", tmp_path, {"categories": ["math"]})
    assert [q.question_id for q in some.questions()] == ["82"]
    with pytest.raises(UserError, match=r"option 'categories\.0': .*'humanities'"):
        open_task("mt_bench", tmp_path, {"categories": ["maths"]})


@pytest.mark.parametrize("change", [{"turns": ["one"]}, {"turns": ["a", "b", "c"]}, {"category": "cooking"}])
def test_mt_bench_with_a_broken_row(tmp_path: Path, change: dict[str, Any]) -> None:
    (name,) = change
    write(tmp_path, "mt_bench_questions.jsonl", [MT_BENCH[0], MT_BENCH[1] | change])
    with pytest.raises(UserError, match=rf"mt_bench_questions\.jsonl:2: the field '{name}' is wrong"):
        open_task("mt_bench", tmp_path)


def test_a_summary_that_nothing_can_be_compared_with(tmp_path: Path) -> None:
    write(tmp_path, "cnn_dm.jsonl", [{**CNN_DM[0], "highlights": " . "}])
    with pytest.raises(UserError, match=r"cnn_dm\.jsonl:1: the field 'highlights' holds no word"):
        open_task("cnn_dm", tmp_path)


def test_cnn_dm_from_a_file(tmp_path: Path) -> None:
    task = open_task("cnn_dm", write(tmp_path, "cnn_dm.jsonl", [{**CNN_DM[0], "origin": "elsewhere"}]))
    (question,) = task.questions()
    assert (question.question_id, question.category) == ("f00", "elsewhere")
    assert task.third_party
    assert task.score(question, "A text.").value == pytest.approx(1.0)


def test_a_missing_field_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cnn_dm\.jsonl:1: the field 'highlights' is missing"):
        open_task("cnn_dm", write(tmp_path, "cnn_dm.jsonl", [{"id": "f00", "article": "x"}]))


@pytest.mark.parametrize(
    ("name", "at", "hub_rows", "file", "rows"),
    [
        ("gsm8k", ("openai/gsm8k", "main", "test"), GSM8K, "gsm8k_test.jsonl", GSM8K),
        ("mmlu", ("cais/mmlu", "all", "test"), MMLU, "mmlu.jsonl.gz", local_mmlu()),
        ("cnn_dm", ("abisee/cnn_dailymail", "3.0.0", "test"), CNN_DM, "cnn_dm.jsonl", CNN_DM),
        (
            "mt_bench",
            ("HuggingFaceH4/mt_bench_prompts", "default", "train"),
            MT_BENCH_HUB,
            "mt_bench_questions.jsonl",
            MT_BENCH,
        ),
    ],
)
def test_hub_and_file_give_the_same_questions(
    tmp_path: Path,
    hub: Callable[[Load], None],
    name: str,
    at: tuple[str, str, str],
    hub_rows: list[dict[str, Any]],
    file: str,
    rows: list[dict[str, Any]],
) -> None:
    asked = []

    def load(*args: str, split: str, **_: Any) -> list[dict[str, Any]]:
        asked.append((*args, split))
        return hub_rows

    hub(load)
    from_hub = open_task(name)
    assert asked == [at]
    from_file = open_task(name, write(tmp_path, file, rows))
    assert from_hub.questions() == from_file.questions()
    assert [question_hash(from_hub, q) for q in from_hub.questions()] == [
        question_hash(from_file, q) for q in from_file.questions()
    ]
    assert asked == [at], "a data folder keeps the hub out"


@pytest.mark.parametrize("error", [ConnectionError("Couldn't reach it\nat all"), ValueError("no such config")])
def test_a_hub_out_of_reach(hub: Callable[[Load], None], error: Exception) -> None:
    def load(*args: str, split: str) -> list[dict[str, Any]]:
        raise error

    hub(load)
    with pytest.raises(
        EnvironmentFault, match=r"cais/mmlu .*could not be fetched.*mmlu\.jsonl\.gz .*JOULEWISE_DATA"
    ) as e:
        open_task("mmlu")
    assert str(error).splitlines()[0] in str(e.value)
    assert "\n" not in str(e.value)


def test_without_a_network_it_is_said_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    constants = pytest.importorskip("huggingface_hub.constants", reason="needs the extra 'datasets'")
    datasets = pytest.importorskip("datasets", reason="needs the extra 'datasets'")
    monkeypatch.delenv("JOULEWISE_DATA", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # the port "discard", where nothing listens
    with pytest.raises(
        EnvironmentFault, match=r"gsm8k .*\(http://127\.0\.0\.1:9 cannot be reached, and .* cache\); name a data folder"
    ):
        open_task("gsm8k")
    assert datasets.config.HF_HUB_OFFLINE is constants.HF_HUB_OFFLINE is False, "as before"


def test_a_hubs_row_that_is_broken(hub: Callable[[Load], None]) -> None:
    hub(lambda *args, split: [*GSM8K, {"question": "?"}])
    with pytest.raises(UserError, match=r"openai/gsm8k \(main, test\) row 2: the field 'answer' is missing"):
        open_task("gsm8k")


def test_without_the_package_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JOULEWISE_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        EnvironmentFault, match=r"openai/gsm8k .*pip install 'joulewise\[datasets\]'.*gsm8k_test\.jsonl"
    ):
        open_task("gsm8k")


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("gsm8k", "gsm8k_test.jsonl"),
        ("mmlu", "mmlu.jsonl.gz"),
        ("cnn_dm", "cnn_dm.jsonl"),
        ("mt_bench", "mt_bench_questions.jsonl"),
    ],
)
def test_a_missing_file_is_named_with_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, file: str
) -> None:
    with pytest.raises(UserError, match=f"no file {file} in {tmp_path} .*given as the data folder"):
        open_task(name, tmp_path)
    monkeypatch.setenv("JOULEWISE_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match=r"no folder .*nowhere .*named by JOULEWISE_DATA"):
        open_task(name)
