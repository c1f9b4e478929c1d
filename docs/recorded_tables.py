"""Tables of the documentation from what benchmarks have recorded: a function each, of the record's path."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from joulewise.engines.shipped import ShippedKind

ROOT = Path(__file__).parent.parent


def sandbox(file: str) -> str:
    """What `benchmarks/sandbox.py` recorded."""
    got = record(file)
    hostile, code, cost = got["hostile"], got["humaneval"], got["cost"]
    left = "; ".join(hostile["left_behind"]) or "nothing"
    return "\n".join(
        [
            "| | |",
            "| --- | ---: |",
            f"| HumanEval's own solutions that pass | {code['right_passed']} of {code['questions']} |",
            f"| the same with a changed result that pass | {code['wrong_passed']} of {code['questions']} |",
            f"| runs of hostile programs contained | {hostile['contained']:,} of {hostile['runs']:,} |",
            f"| left behind (processes, mounts, files, users) | {left} |",
            f"| one run, median (bare Python in the same minute) | {cost['sandbox_ms_median']:.0f} ms "
            f"({cost['bare_python_ms_median']:.0f} ms) |",
        ]
    )


def report(file: str) -> str:
    """What `benchmarks/report.py` recorded."""
    got = record(file)
    return "\n".join(
        [
            "| a report of | wall clock | peak memory | ledger | page |",
            "| --- | ---: | ---: | ---: | ---: |",
            f"| {got['trials']:,} Trials | {got['wall_s']:.1f} s (aim {got['limit_s']:.0f}) | "
            f"{got['peak_gib']:.2f} GiB (aim {got['limit_gib']:.0f}) | {got['ledger_mb']:.0f} MB | "
            f"{got['page_mb']:.1f} MB |",
        ]
    )


def gate(file: str, scenario: str | None = None) -> str:
    """How often the gate fails by true rise, as `benchmarks/compare.py` recorded it.

    Args:
        file: the record.
        scenario: show these pairs only; all if None.
    """
    got = record(file)
    rises = list(got["gate"][0]["fails"])
    rows = [f"| outputs | runs a side | questions | {' | '.join(f'+{float(r) * 100:.0f} %' for r in rises)} |"]
    rows.append("| --- | ---: | ---: |" + " ---: |" * len(rises))
    for line in got["gate"]:
        if scenario in (None, line["scenario"]):
            shares = " | ".join(f"{line['fails'][r] * 100:.1f} %" for r in rises)
            rows.append(f"| {line['scenario']} | {line['runs_a_side']} | {line['questions']} | {shares} |")
    return "\n".join(rows)


def gate_same_outputs(file: str) -> str:
    """The same, of pairs whose outputs did not change."""
    return gate(file, "same outputs")


def meter_accuracy(file: str) -> str:
    """What `benchmarks/meter_accuracy.py` recorded, the two sensors side by side."""
    rows: dict[tuple[str, float], dict[str, Any]] = {}
    for row in record(file)["rows"]:
        rows.setdefault((row["load"], row["length_s"]), {})[row["sensor"]] = row
    lines = ["| load | window, s | aim | fresh: error / half-width / holds | held: error / half-width / holds |"]
    lines[0] += " counter difference | polled power x time |"
    lines.append("| --- | --- | --- | --- | --- | --- | --- |")
    for (shape, length_s), found in rows.items():
        told = [
            f"{r['joulewise_p95']:.2g} / {r['half_width_median']:.2g} / {r['interval_holds']:.0f}"
            for r in (found["fresh"], found["held"])
        ]
        held = found["held"]
        others = [f"{round(held[name], 1):.3g}" for name in ("difference_p95", "polled_p95")]
        lines.append(f"| {shape} | {length_s:g} | {held['aim']:g} | {' | '.join((*told, *others))} |")
    return "\n".join(lines)


def meter_starved(file: str) -> str:
    """What `benchmarks/meter_accuracy.py` recorded of bursts where the sampler gets on late."""
    lines = ["| window, s | aim | error / half-width / holds / bound holds |", "| --- | --- | --- |"]
    for row in record(file)["rows"]:
        if (row["sensor"], row["load"]) == ("starved", "bursts"):
            near = f"{row['joulewise_p95']:.2g} / {row['half_width_median']:.2g}"
            holds = f"{row['interval_holds']:.0f} / {row['bound_holds']:.0f}"
            lines.append(f"| {row['length_s']:g} | {row['aim']:g} | {near} / {holds} |")
    return "\n".join(lines)


def rest(file: str) -> str:
    """What `benchmarks/rest.py` recorded: windows with and without rest between them, the two sensors side by side."""
    rows: dict[tuple[float, str], dict[str, Any]] = {}
    for row in record(file)["rows"]:
        rows.setdefault((row["length_s"], row["way"]), {})[row["sensor"]] = row
    lines = ["| window, s | next window | fresh: rest, s / bias / half-width / holds | held: the same |"]
    lines.append("| --- | --- | --- | --- |")
    for (length_s, way), found in rows.items():
        told = []
        for one in (found["fresh"], found["held"]):
            bias, half, holds = (
                " and ".join(format(value, style) for value in one[name])
                for name, style in (("bias", "z.1f"), ("half_width_median", ".2g"), ("interval_holds", ".0f"))
            )
            told.append(f"{one['rest_s']:.2f} / {bias} / {half} / {holds}")
        lines.append(f"| {length_s:g} | {way} | {' | '.join(told)} |")
    return "\n".join(lines)


def meter_replayed(file: str) -> str:
    """What `benchmarks/meter_accuracy.py --replay` recorded: windows in a recording of a card."""
    told = record(file)
    rows: dict[tuple[str, float], dict[str, Any]] = {}
    for row in told["rows"]:
        rows.setdefault((row["load"], row["length_s"]), {})[row["sensor"]] = row
    lines = [
        "| load | window, s | aim | error / half-width / holds / bound holds | the load itself wandered "
        "| against all steps: error / holds | counter difference | polled power x time |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (shape, length_s), found in rows.items():
        card, steps = found["card"], found.get("steps")
        cells = [
            f"{card['joulewise_p95']:.2g} / {card['half_width_median']:.2g} / {card['interval_holds']:.0f} / "
            f"{card['bound_holds']:.0f}",
            f"{told[f'{shape}_wandered_percent'][str(length_s)]:.2g}",
            f"{steps['joulewise_p95']:.2g} / {steps['interval_holds']:.0f}" if steps else "",
            *(f"{round(card[name], 1):.3g}" for name in ("difference_p95", "polled_p95")),
        ]
        lines.append(f"| {shape} | {length_s:g} | {card['aim']:g} | {' | '.join(cells)} |")
    return "\n".join(lines)


def card_windows(file: str) -> str:
    """The live meter's windows as `benchmarks/card.py` recorded them."""
    lines = [
        "| window, s | aim | windows | error / half-width / holds / bound holds | counter difference "
        "| polled power x time |",
        "| --- | --- | ---: | --- | --- | --- |",
    ]
    for row in record(file)["windows"]["lengths"]:
        cells = [
            f"{row['joulewise_p95']:.2g} / {row['half_width_median']:.2g} / {row['interval_holds']:.0f} / "
            f"{row['bound_holds']:.0f}",
            *(f"{round(row[name], 1):.3g}" for name in ("difference_p95", "polled_p95")),
        ]
        lines.append(f"| {row['length_s']:g} | {row['aim']:g} | {row['windows']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def card_rivals(file: str) -> str:
    """What Zeus and CodeCarbon said of windows over the same load, as `benchmarks/card.py` recorded it."""
    told: dict[float, dict[str, str]] = {}
    for row in record(file)["rivals"]:
        if "length_s" in row:
            told.setdefault(row["length_s"], {})[row["name"]] = f"{row['p95']:.3g} ({row['windows']})"
    lines = ["| window, s | Zeus (windows) | CodeCarbon (windows) |", "| --- | --- | --- |"]
    for length_s, row in sorted(told.items()):
        cells = (row.get(name, "not installed") for name in ("zeus", "codecarbon"))
        lines.append(f"| {length_s:g} | {' | '.join(cells)} |")
    return "\n".join(lines)


def aa(file: str) -> str:
    """What `benchmarks/aa.py` recorded of identical cells."""
    head = (
        "| what a run asks | questions | pairs | false alarms, limit 5 % / 0 % | interval of γ: holds 1 / half-width "
    )
    lines = [head + "| +10 % found: limit 5 % / 0 % / γ |", "| --- | ---: | ---: | --- | --- | --- |"]
    for row in record(file)["rows"]:
        alarms = " / ".join(f"{share * 100:.1f} %" for share in row["false_alarms"].values())
        found = [*row["found_by_compare"].values(), row["found_by_gamma"]]
        lines.append(
            f"| {row['case']} | {row['questions']} | {row['pairs']} | {alarms} | "
            f"{row['gamma_holds_1'] * 100:.1f} % of {row['gammas']} / {row['gamma_half_width_median'] * 100:.2g} % | "
            + " / ".join(f"{share * 100:.0f} %" for share in found)
            + " |"
        )
    return "\n".join(lines)


def covered(file: str) -> str:
    """How often intervals of γ hold the truth, as `benchmarks/coverage.py` recorded it."""
    rows = record(file)["intervals"]
    return _coverage(rows, lambda row: f"{_share(row['gamma_coverage'])} ({row['gamma_coverage_plain'] * 100:.1f})")


def break_even_covered(file: str) -> str:
    """How often intervals of the break-even do: needed to save time, needed to save energy, kept."""
    rows = record(file)["break_even"]
    return _coverage(rows, lambda row: " / ".join(_share(row[f"{of}_coverage"]) for of in ("time", "energy", "length")))


def trained(folder: str) -> str:
    """What the recipes of the shipped heads say of their trainings."""
    lines = [
        "| | steps | tokens seen | seconds | best token agrees on held-out texts |",
        "| --- | ---: | ---: | ---: | --- |",
    ]
    for kind in get_args(ShippedKind):
        told = record(f"{folder}/{kind}/recipe.json")
        steps = f"{told['step']:,}" + ("" if told["finished"] else f" of {told['steps']:,}")
        agrees = ", ".join(f"{100 * share:.0f}" for share in told["held_out"]["agreement"])
        lines.append(f"| `{kind}` | {steps} | {told['tokens_seen']:,} | {told['duration_s']:.0f} | {agrees} % |")
    return "\n".join(lines)


def decoding(file: str) -> str:
    """What `benchmarks/decode.py` recorded."""
    got = record(file)

    def pair(value: list[float] | None, scale: float) -> str:
        return "not seen" if value is None else f"{value[0] * scale:.2f} ± {value[1] * scale:.2f}"

    lines = ["| way | ms a token, after the first | ms a token, all | J a token, all | tokens a round | overhead |"]
    lines.append("| --- | --- | --- | --- | ---: | ---: |")
    for name, row in got["ways"].items():
        tau = "" if row["acceptance_length"] is None else f"{row['acceptance_length']:.2f}"
        over = "" if row["round_overhead_share"] is None else f"{row['round_overhead_share']:.1%}"
        told = (pair(row["decode_token_s"], 1e3), pair(row["token_s"], 1e3), pair(row["token_j"], 1))
        lines.append(f"| {name} | {' | '.join(told)} | {tau} | {over} |")
    return "\n".join(lines)


def steps(file: str) -> str:
    """The single forwards that `benchmarks/decode.py` timed alone, and the power that they draw."""
    models: dict[str, dict[int, dict[str, Any]]] = {}
    for row in record(file)["steps"]:
        models.setdefault(row["model"], {})[row["width"]] = row
    lines = ["| tokens a forward | target: ms | J | W | draft: ms | J | W |", "| ---: |" + " ---: |" * 6]
    for width in models["target"]:
        cells = []
        for model in ("target", "draft"):
            row = models[model][width]
            cells += [f"{row['step_s'] * 1e3:.2f}", f"{row['step_j']:.2f}", f"{row['step_j'] / row['step_s']:.0f}"]
        lines.append(f"| {width} | {' | '.join(cells)} |")
    return "\n".join(lines)


def load_forms(file: str) -> str:
    """The forms over the load that `benchmarks/curves.py` tried."""
    got = record(file)

    def pair(one: dict[str, Any]) -> str:
        return f"{one['median'] * 100:.1f} / {one['p90'] * 100:.1f}"

    lines = [
        "| terms | alone | with a correction: least – most | within the aim | ends alone | ends, with a correction |"
    ]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for terms in dict.fromkeys(form["terms"] for form in got["forms"]):
        mine = [form for form in got["forms"] if form["terms"] == terms]
        cells = []
        for where in ("interior", "ends"):
            cells += [pair(form[where]) for form in mine if not form["freedom"]]
            free = [form[where] for form in mine if form["freedom"]]
            ends = [{key: choose(one[key] for one in free) for key in ("median", "p90")} for choose in (min, max)]
            cells.append(" – ".join(map(pair, ends)))
        met = [all(form["interior"][key] <= got["aim"][key] for key in got["aim"]) for form in mine if form["freedom"]]
        cells.insert(2, f"{sum(met)} of {len(met)}")
        lines.append(f"| {terms} | {' | '.join(cells)} |")
    shipped = got["shipped"]
    lines.append(
        f"| **shipped**: {shipped['terms']}, reach {shipped['reach']:g}, freedom {shipped['freedom']:g} | | "
        f"**{pair(shipped['interior'])}** | {'yes' if got['aim_met'] else 'no'} | | **{pair(shipped['ends'])}** |"
    )
    return "\n".join(lines)


def load_trust(file: str) -> str:
    """How far the choice of the form, and predictions across models, can be trusted, by `benchmarks/curves.py`."""
    got = record(file)
    lines = ["| | median | 90th percentile | |", "| --- | ---: | ---: | --- |"]
    halves = got["halves"]
    judged = {"chosen": "form chosen on half of the models, judged on the other", "shipped": "shipped form, likewise"}
    for name, title in judged.items():
        one = halves[name]
        low, high = one["p90_range"]
        lines.append(
            f"| {title}, {halves['splits']} times | {one['median']:.1%} | {one['p90']:.1%} | 90 % of the latter in "
            f"{low:.1%} to {high:.1%}; within the aim {one['within_aim']:.0%} of times |"
        )
    for left_out, one in got["across_models"].items():
        lines.append(
            f"| one {left_out} left out ({one['groups']}), {one['points']} points | {one['median']:.1%} | "
            f"{one['p90']:.1%} | {one['within_2']:.0%} within a factor of 2 |"
        )
    return "\n".join(lines)


def load_generator(file: str) -> str:
    """What `benchmarks/load_generator.py` recorded."""
    got = record(file)
    runs, limits = got["runs"], got["limits"]

    def percentiles(name: str) -> list[str]:
        found = (one[name] for one in runs)
        return ["too few" if p is None else f"{p['50']:.2f}, {p['99']:.2f} ms" for p in found]

    rows = {
        "streams": [f"{one['streams']:,.0f}" for one in runs],
        "chunks a second": [f"{one['pieces_per_s']:,.0f}" for one in runs],
        "the generator's CPU": [f"{one['cpu']:.0%}" for one in runs],
        "memory after the warm-up, at the end": [f"{m[0]:.0f}, {m[-1]:.0f} MB" for m in (o["memory_mb"] for o in runs)],
        "others' use of the CPUs": [f"{one['other_cores']:.2f} cores" for one in runs],
        "sent late: median, 99th percentile": percentiles("late_ms"),
        "read late: median, 99th percentile": percentiles("stamp_ms"),
        "undisturbed": [f"{one['undisturbed_s']:.1f} s" for one in runs],
        "sent late while undisturbed": percentiles("undisturbed_late_ms"),
        "read late while undisturbed": percentiles("undisturbed_stamp_ms"),
    }
    names = (f"run {n + 1}{' (judged)' if n == got['judged'] else ''}" for n in range(len(runs)))
    lines = [f"| | {' | '.join(names)} |", "| --- |" + " ---: |" * len(runs)]
    lines += [f"| {name} | {' | '.join(values)} |" for name, values in rows.items()]
    aims = (
        f"at least {limits['streams']:,} streams and {limits['pieces_per_s']:,} chunks a second, sent less than "
        f"{limits['late_ms_99']:g} ms late at the 99th percentile, memory up by {limits['memory_growth']:.0%} at most"
    )
    return "\n".join([*lines, "", f"Aims: {aims}: **{'met' if got['met'] else 'missed'}** in the run judged."])


def attributed(file: str) -> str:
    """What `benchmarks/attribution.py` recorded."""
    got = record(file)
    models = list(next(iter(got["kinds"].values()))["models"])
    truth = any("true_j" in row for row in got["kinds"].values())
    heads = ["request", *(["caused"] if truth else []), "regression", *models, "one more (no share)"]
    lines = [f"| {' | '.join(heads)} |", "| --- |" + " ---: |" * (len(heads) - 1)]
    for kind, row in got["kinds"].items():
        prompt, output = got["settings"][kind.replace(" ", "_")]
        low, high = row["interval_j"]
        cells = [f"{kind}: {prompt:,} + {output:,} tokens", *([f"{row['true_j']:.1f} J"] if truth else [])]
        cells.append(f"{row['energy_j']:.1f} J ({low:.1f} to {high:.1f})")
        for name in models:
            model = row["models"][name]
            low, high = model["interval"]
            cells.append(f"{model['mean_j']:.1f} J: {model['miss']:+.1%} ({low:+.1%} to {high:+.1%})")
        cells.append(f"{row['one_more_j']:.1f} J")
        lines.append(f"| {' | '.join(cells)} |")
    off = ", ".join(f"{mix['off']:+.1%} at {mix['percent']} %" for mix in got["mixes"])
    return "\n".join(
        [
            *lines,
            "",
            f"{got['settings']['concurrency']} at a time, {sum(m['requests'] for m in got['mixes']):,.0f} requests in "
            f"{sum(m['windows'] for m in got['mixes'])} windows; the regression is off by mix of long prompts: {off}.",
        ]
    )


def _coverage(rows: list[dict[str, Any]], cell: Callable[[dict[str, Any]], str]) -> str:
    """A line for each number of questions, a column for each scenario."""
    scenarios = list(dict.fromkeys(row["scenario"] for row in rows))
    lines = [f"| questions | {' | '.join(scenarios)} |", "| ---: |" + " ---: |" * len(scenarios)]
    for n in dict.fromkeys(row["questions"] for row in rows):
        lines.append(f"| {n} | {' | '.join(cell(row) for row in rows if row['questions'] == n)} |")
    return "\n".join(lines)


def _share(share: float) -> str:
    return f"{share * 100:.1f} %"


def record(file: str) -> dict[str, Any]:
    """What a file of figures holds."""
    found: dict[str, Any] = json.loads((ROOT / file).read_text(encoding="utf-8"))
    return found


TABLES: tuple[Callable[[str], str], ...] = (
    sandbox,
    report,
    gate,
    gate_same_outputs,
    meter_accuracy,
    meter_starved,
    rest,
    meter_replayed,
    card_windows,
    card_rivals,
    aa,
    covered,
    break_even_covered,
    trained,
    decoding,
    steps,
    load_forms,
    load_trust,
    load_generator,
    attributed,
)
"""What a page can name."""
