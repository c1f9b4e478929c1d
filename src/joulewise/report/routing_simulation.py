"""What routers would do with traffic, in words and figures, for a terminal or a pipe; and for machines."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from joulewise.report.plain_table import table, wrapped
from joulewise.report.text import figure
from joulewise.routing.simulated import Simulated, Simulation


def describe_simulation(found: Simulation, width: int | None = None) -> str:
    """All routers beside the baseline, what could not be kept, and where their requests went.

    Args:
        width: columns of the terminal; None: any.
    """
    count = found.routers[0].requests
    head = (
        f"{count:,} requests in {figure(found.duration_s)} s; joules saved and accuracy lost against {found.baseline}"
    )
    lines = [*wrapped([head], width), ""]
    titles = ("router", "right", "J/request", "joules saved", "points lost", "late", "first token p95", "whole p95")
    lines += table([titles, *(_row(one) for one in found.routers)], width)
    told = _not_kept(found)
    idle = [f"{one.name} {figure(one.idle_j)} J" for one in found.routers if one.idle_j is not None]
    if idle:
        told += ["", f"Servers at rest: {', '.join(idle)}"]
    carbon = [f"{one.name} {figure(one.carbon_g)} g" for one in found.routers if one.carbon_g is not None]
    if carbon:
        told += ["", f"CO2 equivalent of the requests: {', '.join(carbon)}"]
    told += ["", "Where requests went"]
    told += [
        f"  {one.name}: " + ", ".join(f"{option} {share:.0%}" for option, share in one.shares.items() if share)
        for one in found.routers
        if sum(share > 0 for share in one.shares.values()) > 1 or one.name not in one.shares
    ]
    told += [f"Note: {note}" for note in found.notes]
    return "\n".join([*lines, *wrapped(told, width)]) + "\n"


def _not_kept(found: Simulation) -> list[str]:
    """How often a router's choice could not do what was asked of it, a sentence each."""
    told = []
    for one in found.routers:
        if one.limits_missed:
            told.append(
                f"{one.name}: no option was expected to keep all limits in {one.limits_missed:.1%} of its choices"
            )
        if one.below_floor:
            told.append(
                f"{one.name}: no option was expected to reach the floor in {one.below_floor:.1%} of its choices"
            )
    return ["", *told] if told else []


def _row(one: Simulated) -> tuple[str, ...]:
    saved = lost = "-"
    if one.against is not None:
        low, high = one.against.saved_interval
        saved = f"{one.against.saved:.1%} ({low:.1%} to {high:.1%})"
        low, high = one.against.lost_interval
        lost = f"{100 * one.against.lost:.1f} ({100 * low:.1f} to {100 * high:.1f})"
    missed = [share for share in (one.first_token_missed, one.total_missed) if share is not None]
    return (
        one.name,
        f"{one.accuracy:.1%}",
        figure(one.request_j),
        saved,
        lost,
        f"{max(missed):.1%}" if missed else "-",
        "unknown" if one.first_token_s is None else f"{figure(one.first_token_s.p95)} s",
        f"{figure(one.total_s.p95)} s",
    )


def simulation_json(found: Simulation) -> dict[str, Any]:
    """The same for machines, without every single request; what is not known is null."""

    def plain(value: Any) -> Any:
        if hasattr(value, "__dataclass_fields__"):
            return {
                f.name: plain(getattr(value, f.name))
                for f in fields(value)
                if not f.name.endswith(("_request_j", "_request_s")) and f.name != "right_by_request"
            }
        if isinstance(value, (list, tuple)):
            return [plain(inner) for inner in value]
        return dict(value) if hasattr(value, "items") else value

    return dict(plain(found))
