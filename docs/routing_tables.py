"""Tables of docs/routing.md from what benchmarks have recorded: a function each, of the record's path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from recorded_tables import record


def router_pairs(file: str) -> str:
    """The router in RouteLLM's frame, as `benchmarks/routing.py` recorded it."""
    got = record(file)

    def shown(figure: dict[str, float], scale: float = 1, digits: int = 3) -> str:
        value, lower, upper = (f"{scale * figure[name]:.{digits}f}" for name in ("value", "lower", "upper"))
        return f"{value} ({lower} to {upper})"

    (few,) = (row for row in got["mmlu_by_labels"] if row["labels"] == 1500)
    given = got["mmlu_1500_subject_given"]
    lines = ["| data | split | APGR | CPT(50), % | CPT(80), % | aim |", "| --- | --- | ---: | ---: | ---: | ---: |"]
    for split, row, aim in (("1,500 labels", few, "0.66"), ("1,500 labels, subject given", given, "-")):
        cells = f"{row['apgr']:.3f} (sd {row['apgr_sd']:.3f}) | {100 * row['cpt50']:.1f} | {100 * row['cpt80']:.1f}"
        lines.append(f"| MMLU | {split}, mean of {row['draws']} draws | {cells} | {aim} |")
    for data, split, name, aim in (
        ("MMLU", "5-fold", "mmlu_5fold", "0.71"),
        ("MMLU", "unseen subjects, 5-fold", "mmlu_unseen_subjects", "0.62"),
        ("GSM8K", "5-fold", "gsm8k_5fold", "0.65"),
    ):
        row = got[name]
        cells = " | ".join([shown(row["apgr"]), shown(row["cpt50"], 100, 1), shown(row["cpt80"], 100, 1)])
        lines.append(f"| {data} | {split} | {cells} | {aim} |")
    return "\n".join(lines)


def router_labels(file: str) -> str:
    """APGR by number of labels, as `benchmarks/routing.py` recorded it."""
    rows = record(file)["mmlu_by_labels"]
    lines = ["| MMLU labels | draws | APGR | between draws (sd) |", "| ---: | ---: | ---: | ---: |"]
    lines += [f"| {r['labels']:,} | {r['draws']} | {r['apgr']:.3f} | {r['apgr_sd']:.3f} |" for r in rows]
    return "\n".join(lines)


def router_models(file: str) -> str:
    """Nine models, five folds and test questions, as `benchmarks/routing.py` recorded them."""
    folds, test = (record(file)["nine_models"][name] for name in ("folds", "test"))
    lines = [
        f"| router | 5-fold, {folds['questions']:,} questions: accuracy, % | AIQ | J/token | "
        f"{test['questions']:,} test questions: accuracy, % | AIQ | J/token |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name in (key for key in folds if key != "questions"):
        cells = (
            f"{100 * r['accuracy']:.1f} ({100 * r['lower']:.1f} to {100 * r['upper']:.1f}) | {r['aiq']:.3f} | "
            f"{r['joules_per_token']:.2f}"
            for r in (folds[name], test[name])
        )
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def router_traffic(file: str) -> str:
    """Routers on a replayed trace, as `benchmarks/routing_simulation.py` recorded them."""
    lines = [
        "| requests a second | router | right, % | J/request | saved, % | accuracy lost, points | late, % | "
        "first token p95, s | strong, % |",
        "| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for load in record(file)["loads"]:
        for one in load["routers"]:
            saved = lost = "-"
            if (found := one["against"]) is not None:
                saved, lost = (
                    f"{100 * found[name]:.1f} ({100 * low:.1f} to {100 * high:.1f})"
                    for name in ("saved", "lost")
                    for low, high in (found[f"{name}_interval"],)
                )
            lines.append(
                f"| {load['rate']:.1f} | {one['name']} | {100 * one['accuracy']:.1f} | {one['request_j']:.0f} | "
                f"{saved} | {lost} | {100 * one['first_token_missed']:.1f} | {one['first_token_s']['p95']:.1f} | "
                f"{100 * one['shares']['strong']:.0f} |"
            )
    return "\n".join(lines)


def router_cost(file: str) -> str:
    """Time of a decision and of a large fit, as `benchmarks/routing.py` recorded them."""
    got = record(file)
    fast, large = got["speed"], got["large_fit"]
    return "\n".join(
        [
            "| | measured | aim |",
            "| --- | ---: | ---: |",
            f"| a decision over {fast['options']} options by accuracy and joules, 200 words: median | "
            f"{fast['median_us']:.0f} µs | 150 µs |",
            f"| 99th percentile | {fast['p99_us']:,.0f} µs | 400 µs |",
            f"| fastest | {fast['fastest_us']:.0f} µs | |",
            f"| its accuracies alone: median | {fast['accuracy_median_us']:.0f} µs | |",
            f"| with percentiles and reasons (`choose`): median | {fast['with_reasons_median_us']:,.0f} µs | |",
            f"| joules of a decision, {fast['provenance']}, all of the machine's while it runs | "
            f"{1000 * fast['decision_j']:.2g} mJ | |",
            f"| a fit on {large['rows']:,} queries, two options | {large['seconds']:.0f} s | 60 s |",
            f"| its peak memory | {large['peak_gib']:.2f} GiB | 2 GiB |",
        ]
    )


def router_ledgers(file: str) -> str:
    """Routers on the questions of a recorded run, as `benchmarks/routing_ledgers.py` recorded them."""
    lines = []
    for run, found in record(file)["ledgers"].items():
        base = f"the best in hindsight, {_short(found['best'])}"
        lines += [
            f"`{run}`: {found['questions']} questions, "
            f"{100 * found['right_by_some_option']:.1f} % right by some option",
            "",
            "| | accuracy, % | J/answer | regret, points | joules saved against always-strongest, % | "
            f"against {base}, % | accuracy gained against it, points |",
            "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        ]
        rows: dict[tuple[str, ...], list[str]] = {}  # who fares alike stands in one
        for name, row in found["policies"].items():
            if name == "best in hindsight":
                continue
            strongest, best = (row["against"].get(other) for other in ("always-strongest", "best in hindsight"))
            cells = [_figure(row["accuracy"], 100, 1), _figure(row["energy_j"], 1, 2)]
            cells += [f"{100 * row['regret']['value']:.1f}", _change(strongest, "saved")]
            cells += [_change(best, "saved"), _change(best, "gained")]
            rows.setdefault(tuple(cells), []).append(_short(name))
        lines += [f"| {'; '.join(names)} | {' | '.join(cells)} |" for cells, names in rows.items()]
        curve = "; ".join(f"{100 * one['accuracy']:.1f} % at {one['energy_j']:.2f} J" for one in found["curve"])
        lines += ["", f"By price of a joule: {curve}. {_same(found)}", ""]
    return "\n".join(lines).rstrip()


def _same(found: dict[str, Any]) -> str:
    """At which joules the router is as accurate as a fixed option."""
    told = []
    for name, one in found["same_accuracy"].items():
        share = "never" if one["value"] is None else f"at {_figure(one, 100, 0)} % of its joules"
        told.append(f"as {name} {share} (in {100 * one['reached']:.0f} % of samples at all)")
    return f"As accurate, the price chosen in hindsight: {', '.join(told)}."


def _change(against: dict[str, dict[str, float]] | None, name: str) -> str:
    """A figure against another policy; 0 against itself, and where nothing differs."""
    if against is None or max(map(abs, against[name].values())) < 1e-9:
        return "0"
    return _figure(against[name], 100, 1)


def _short(option: str) -> str:
    """An option without its engine, and without vanilla."""
    return option.removeprefix("default@native/").removeprefix("vanilla/")


def _figure(one: dict[str, float], scale: float, digits: int) -> str:
    value, lower, upper = (f"{scale * one[name]:.{digits}f}" for name in ("value", "lower", "upper"))
    return f"{value} ({lower} to {upper})"


ROUTING_TABLES: tuple[Callable[[str], str], ...] = (
    router_pairs,
    router_labels,
    router_models,
    router_traffic,
    router_cost,
    router_ledgers,
)
"""What the page can name."""
