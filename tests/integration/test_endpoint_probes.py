"""Budgets and their probes over servers: where a thought is cut, what is asked again, what is refused at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("aiohttp", reason="the extra endpoint is not installed")

from endpoint_runs import Server, plan
from fake_server import DONE, Asked, Drop, Reply, Step, fails, finish, piece, role, usage
from joulewise.energy.meter import Meter
from joulewise.engines.endpoint_request import UNTIMED
from joulewise.errors import UserError
from joulewise.ledger import load
from joulewise.ledger_lines import read_ledger
from joulewise.records import Trial
from joulewise.runner import run

THOUGHT = ["Hm ", "so ", "I ", "add ", "two ", "and ", "one ", "more "]
"""Its tokens. An answer behind it is how many of them there were, so that each cut shows."""
CLOSE = "The answer is"
PROBED = {"kind": "budget", "tokens": 8, "probes": [2, 4, 6]}


class Thinker(Server):
    """Thinks in pieces of so many tokens, and tells them where it is asked to.

    Args:
        sizes: the pieces' tokens.
        again: what the thought is when it is asked for again.
    """

    def __init__(self, *sizes: int, again: Callable[[int], Reply] | None = None, **more: Any) -> None:
        self.sizes, self.again = sizes, again
        super().__init__(self.think, **more)

    def think(self, asked: Asked) -> Reply:
        body = asked.json
        messages = body.get("messages") or [{"content": body["prompt"]}]
        if (last := messages[-1]["content"]).endswith(CLOSE):
            words = last.split("\n\n")[-2].split()
            return self.answer(asked, text=f" {len(words)}", output=2)
        limit = body["max_tokens"]
        if limit < len(THOUGHT):
            if self.again is not None:
                return self.again(limit)
            return self.answer(asked, text=" ".join(THOUGHT[:limit]).replace("  ", " "), output=limit, reason="length")
        counts = (body.get("stream_options") or {}).get("continuous_usage_stats", False)
        steps: list[Step] = [role()]
        made = 0
        for size in self.sizes:
            text = "".join(THOUGHT[made : made + size])
            made += size
            told = {"usage": {"prompt_tokens": 7, "completion_tokens": made}} if counts else {}
            steps.append(piece(text, **told))
        self.count(7, made)
        return Reply([*steps, finish("length"), usage(7, made), DONE])


class Unknown(Thinker):
    """Nobody knows of what kind."""

    def reply(self, asked: Asked) -> Reply:
        return fails(404) if asked.path in ("/metrics", "/version") else super().reply(asked)


def probed(folder: Path, server: Server, meter: Meter, **more: Any) -> Trial:
    planned = plan(folder, server.url, questions=1, reasonings=[PROBED], **more)
    with (folder / "words.yaml").open("a") as task:
        task.write("cot_prompt: 'Step by step: {text}'\n")
    (trial,) = read_ledger(run(planned, folder / "run", meter=meter).folder / "ledger.jsonl").trials
    assert trial.status == "ok", trial.error
    return trial


def test_a_thought_is_cut_where_its_pieces_end_and_asked_for_again_where_they_do_not(
    tmp_path: Path, meter: Meter
) -> None:
    with Thinker(1, 1, 2, 3, 1) as server:
        trial = probed(tmp_path, server, meter)
    assert (trial.extracted, trial.note) == ("8", None)
    assert [(p.tokens, p.extracted, p.error) for p in trial.probes] == [(k, str(k), None) for k in (2, 4, 6)]
    # Six tokens end inside a piece: their time is known, their text was asked for again.
    thinking = [asked.json for asked in server.asked if not asked.json["messages"][-1]["content"].endswith(CLOSE)]
    assert [body["max_tokens"] for body in thinking] == [8, 6]
    assert [body["stream_options"].get("continuous_usage_stats") for body in thinking] == [True, None]
    assert len(server.asked) == len(thinking) + 4
    times_s = [p.time_s for p in trial.probes]
    assert None not in times_s
    assert sorted(times_s) == times_s  # type: ignore[type-var]
    rows = {row["reasoning"]: row for row in load(tmp_path / "run").arrow.to_pylist()}
    assert {name: row["output_tokens"] for name, row in rows.items()} == {
        "budget-2": 4, "budget-4": 6, "budget-6": 8, "budget-8": 10,
    }  # fmt: skip
    assert all(row["gpu_energy_j"] > 0.0 for row in rows.values())


@pytest.mark.parametrize(
    ("again", "why"),
    [
        (lambda _: Reply([role(), piece("Other words "), finish("length"), usage(7, 6), DONE]), "others than before"),
        (lambda _: Reply([role(), piece("Hm "), Drop()]), "broke off"),
    ],
)
def test_a_probe_that_cannot_be_told_fails_alone(
    tmp_path: Path, meter: Meter, again: Callable[[int], Reply], why: str
) -> None:
    with Thinker(1, 1, 2, 3, 1, again=again) as server:
        trial = probed(tmp_path, server, meter)
    assert [p.extracted for p in trial.probes] == ["2", "4", None]
    assert why in (trial.probes[2].error or "")
    assert {row["reasoning"] for row in load(tmp_path / "run").arrow.to_pylist()} == {
        "budget-2",
        "budget-4",
        "budget-8",
    }


def test_of_a_server_that_tells_no_tokens_the_verdicts_are_told_and_no_joules(tmp_path: Path, meter: Meter) -> None:
    with Unknown(1, 1, 2, 3, 1) as server:
        trial = probed(tmp_path, server, meter, engine={"api": "completions"})
    assert [(p.extracted, p.time_s, p.energy) for p in trial.probes] == [(str(k), None, None) for k in (2, 4, 6)]
    assert trial.note == UNTIMED
    assert "continuous_usage_stats" not in str([asked.json for asked in server.asked])
    assert {row["reasoning"] for row in load(tmp_path / "run").arrow.to_pylist()} == {"budget-8"}


@pytest.mark.parametrize("reasoning", [PROBED, {"kind": "budget", "tokens": 8}, {"kind": "vote", "of": "budget"}])
def test_a_budget_is_refused_before_anything_is_measured_where_nobody_knows_how_to_close_it(
    tmp_path: Path, meter: Meter, reasoning: dict[str, Any]
) -> None:
    with Unknown(8) as server:
        planned = plan(tmp_path, server.url, questions=1, reasonings=[reasoning])
        with (tmp_path / "words.yaml").open("a") as task:
            task.write("cot_prompt: 'Step by step: {text}'\n")
        with pytest.raises(UserError) as refused:
            run(planned, tmp_path / "run", meter=meter)
        assert server.asked == []
    label = planned.reasonings[0].label
    assert str(refused.value).startswith(f"engine served, reasoning {label}: This reasoning has the model go on with")
    assert "`api: completions`" in str(refused.value)
    assert f"`exclude: [{{engine: 'served', reasoning: '{label}'}}]`" in str(refused.value)
    assert (tmp_path / "run" / "ledger.jsonl").read_text() == ""
