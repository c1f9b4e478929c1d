"""Figures and sentences, alike for the terminal and the page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from joulewise.analysis.begun import GO_ON, named
from joulewise.analysis.cells import VANILLA
from joulewise.analysis.intervals import Quantity
from joulewise.analysis.pollution_share import PollutionShare
from joulewise.analysis.precision import Precision
from joulewise.analysis.savings import Gamma, Saving
from joulewise.counted import counted
from joulewise.energy.crosscheck import LIMIT
from joulewise.report.run_facts import CounterCheck, EngineFacts, IdlePower, Origin, RunFacts
from joulewise.report.summary import Section, Summary

COMPONENT_NAMES = {"gpu": "GPU", "cpu": "CPU", "dram": "memory", "total": "total"}

NO_PARADOX = (
    "Modelled joules are computed from time or utilisation. Where they stand, the table cannot show the paradox of "
    "arXiv 2602.09113, a decoding that is faster and yet draws more energy, and no verdict on energy is given; the "
    "times are measured all the same."
)

HOW_TO_READ = (
    "Vanilla decodes plainly, one token at a time. A saving, or factor, is vanilla's seconds or joules per output "
    "token over the decoding's, over the same questions: above 1 the decoding saves, below 1 it costs. "
    "Intervals are 95 %: a bootstrap over questions (a question with all its "
    "repeats is one unit), with the part of the meter's uncertainty that more questions do not average out added in "
    "full; n is the number of questions. A verdict is given where the whole interval lies on one side of 1."
)


def figure(value: float) -> str:
    """Three significant digits, no needless exponent: ``0.0123``, ``1.23``, ``12,300``."""
    if value == 0.0:
        return "0"
    digits = 2 - math.floor(math.log10(abs(value)))
    rounded = round(value, digits)
    if not 1e-5 <= abs(rounded) < 1e9:
        return f"{value:.2e}"
    # Rounding may add a digit (0.9996 -> 1.00), so count again.
    digits = 2 - math.floor(math.log10(abs(rounded)))
    return f"{rounded:,.{max(0, digits)}f}"


def short_model(name: str) -> str:
    """A model's name for a heading: of a path its last part; a name on a hub as it is."""
    is_path = name.endswith(".gguf") or name.startswith(("/", ".", "~")) or name.count("/") > 1
    return name.rstrip("/").rsplit("/", 1)[-1] if is_path else name


def value(quantity: Quantity, factor: float = 1.0) -> str:
    """The figure itself; a lower end where the figure has no upper one."""
    if quantity.value is not None:
        return figure(quantity.value * factor)
    if quantity.unbounded and quantity.lower is not None:
        return f"≥ {figure(quantity.lower * factor)}"
    return "unbounded" if quantity.unbounded else "unknown"


def interval(quantity: Quantity, factor: float = 1.0) -> str | None:
    """The interval in words; None where ``value`` says all there is."""
    if quantity.value is None or quantity.lower is None:
        return None
    if quantity.upper is None:
        return f"{figure(quantity.lower * factor)} or more"
    return f"{figure(quantity.lower * factor)} – {figure(quantity.upper * factor)}"


def verdict(gamma: Gamma) -> str:
    """The verdict, or why there is none, in a word or two."""
    if gamma.ratio.value is None:
        return "unknown"
    return gamma.verdict or gamma.ratio.provenance


def common_reason(quantities: Iterable[Quantity]) -> str | None:
    """Why a column holds nothing but unknowns, if it holds nothing else and for one reason."""
    quantities = tuple(quantities)
    reasons = {q.reason for q in quantities}
    if any(q.value is not None or q.unbounded for q in quantities) or len(reasons) != 1:
        return None
    return reasons.pop()


def run_lines(run: RunFacts) -> list[tuple[str, str]]:
    """What was run, on what, and where its joules come from: name and words, line by line."""
    planned = "" if run.planned is None or run.planned <= run.trials else f" of {run.planned:,} planned"
    trials = f"{run.trials:,}{planned}: {run.ok:,} ok, {run.failed:,} failed, {run.polluted:,} polluted"
    if run.pollution_unknown:
        trials += f", {run.pollution_unknown:,} of unknown pollution"
    lines = [
        ("Plan", run.description or run.plan),
        ("Started", _moment(run.started_at)),
        ("Machine", run.machine),
        *(("GPU", gpu) for gpu in run.gpus),
        ("Other GPUs", f"{run.other_gpus:,} in the machine, not metered" if run.other_gpus else None),
        *(line for engine in run.engines for line in _engine_lines(engine)),
        ("Questions", ", ".join(f"{n:,} {task}" for task, n in run.questions.items())),
        *(("Left out" if i == 0 else "", told) for i, told in enumerate(run.excluded)),
        ("Trials", trials),
        *_origin_lines(run),
        *_idle_lines(run.idle),
        ("Counter check", "; ".join(f"{c.device}: {_gap(c)}" for c in run.counter_checks)),
        ("Software", ", ".join(f"{name} {version}" for name, version in run.software.items())),
        ("Commit", run.commit),
    ]
    return [(name, told) for name, told in lines if told]


def _moment(iso: str | None) -> str | None:
    """An ISO 8601 time for people; as it stands where it is none."""
    try:
        return None if iso is None else f"{datetime.fromisoformat(iso).astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    except ValueError:
        return iso


def _engine_lines(engine: EngineFacts) -> list[tuple[str, str]]:
    size = None if engine.parameters is None else f"{figure(engine.parameters / 1e6)} million parameters"
    told = (engine.model, engine.model_class, size, engine.dtype, ", ".join(engine.devices))
    return [
        ("Engine", f"{engine.label}: {', '.join(t for t in told if t and t != 'unknown')}"),
        *(("", note) for note in engine.notes),
    ]


def _origin_lines(run: RunFacts) -> list[tuple[str, str]]:
    """Where joules come from, a note that holds for several components once, under the last of them.

    Before any Trial has succeeded, a component of which nothing is recorded has no line.
    """
    origins = [o for o in run.origins if o.component != "total" and (run.ok or o.sources or o.notes)]
    last = {note: origin.component for origin in origins for note in origin.notes}
    lines = []
    for origin in origins:
        sources = f" ({'; '.join(origin.sources)})" if origin.sources else ""
        lines.append((f"{COMPONENT_NAMES[origin.component]} joules", origin_phrase(origin, run) + sources))
        lines += [("", note) for note in origin.notes if last[note] == origin.component]
    return lines


def _idle_lines(idle: Sequence[IdlePower]) -> list[tuple[str, str]]:
    """Power at rest: one line where it is the same with all engines, else a line a component that names them."""
    components: dict[str, dict[str, list[IdlePower]]] = {}
    for baseline in idle:
        components.setdefault(baseline.component, {}).setdefault(baseline.engine or "?", []).append(baseline)
    told, alike = [], True
    for component, engines in components.items():
        powers = {engine: _powers(baselines) for engine, baselines in engines.items()}
        same = len(set(powers.values())) == 1
        alike = alike and same
        words = powers.values() if same else (f"{power} with {engine}" for engine, power in powers.items())
        told.append(f"{COMPONENT_NAMES.get(component, component)} {', '.join(dict.fromkeys(words))}")
    if alike:
        return [("Idle power", ", ".join(told))]
    return [("" if i else "Idle power", line) for i, line in enumerate(told)]


def _powers(baselines: Sequence[IdlePower]) -> str:
    """The power of one component with one engine: a range over baselines (before, after, resumed)."""
    watts = sorted(baseline.power_w for baseline in baselines)
    ends = " to ".join(dict.fromkeys((figure(watts[0]), figure(watts[-1]))))
    kinds = dict.fromkeys(b.provenance for b in baselines if b.provenance not in (None, "measured"))
    return f"{ends} W" + (f" ({' and '.join(str(kind) for kind in kinds)})" if kinds else "")


def origin_phrase(origin: Origin, run: RunFacts) -> str:
    """How a component's figures came about, one phrase."""
    if origin.provenance is None:
        if run.ok:
            return "in no Trial" if origin.sources else "not metered here"
        return "no Trial succeeded" if run.trials else "no Trial yet"
    if origin.provenance == "unknown" and len(origin.trials) > 1:
        counts = ", ".join(f"{kind} in {n:,}" for kind, n in origin.trials.items())
        return f"not known in every Trial: {counts}"
    phrases = {"measured": "measured", "modelled": "modelled, not measured", "unknown": "could not be read"}
    return phrases[origin.provenance]


def headlines(section: Section, run: RunFacts) -> list[str]:
    """What the savings of a section mean, as ``results`` tells it, and what drafted."""
    drafts: dict[str, list[str]] = {}
    ran = {cost.key.decoding for cost in section.costs}
    for engine in run.engines:
        if engine.label == section.engine:
            for decoding, draft in engine.drafts.items():
                if decoding in ran:
                    drafts.setdefault(draft, []).append(decoding)
    return results(section) + [
        f"{' and '.join(names)} draft{'s' * (len(names) == 1)} with {d}." for d, names in drafts.items()
    ]


def results(section: Section) -> list[str]:
    """What the savings of a section mean: a sentence a decoding, and the paradox where it is found."""
    decodings: dict[str, list[Saving]] = {}
    for saving in section.savings:
        decodings.setdefault(saving.key.decoding, []).append(saving)
    told = [_meaning(name, found, section) for name, found in decodings.items()]
    paradox = [
        f"{s.key.decoding} on {s.key.task}"
        for s in section.savings
        if s.time.verdict == "faster" and "costs energy" in (s.gpu.verdict, s.total.verdict)
    ]
    if paradox:
        told.append(f"Faster, and yet costing energy: {', '.join(paradox)}.")
    if any(verdict(s.gpu if section.component == "gpu" else s.total) == "modelled" for s in section.savings):
        told.append("Modelled energy can prove neither a saving nor a cost.")
    return told


_KINDS = ("faster", "slower", "saves energy", "costs energy", "cannot tell", "modelled", "unknown")
"""Verdicts, and why there is none, in the order of a sentence."""


def _meaning(decoding: str, savings: list[Saving], section: Section) -> str:
    """One decoding against vanilla over all tasks of a section: speed and energy side by side, where they agree."""
    gpu = section.component == "gpu"
    name = "GPU energy" if gpu else "energy"
    time_words = {"cannot tell": "cannot tell whether it is faster or slower", "unknown": "time unknown"}
    energy_words = {
        "saves energy": f"saves {name}",
        "costs energy": f"costs {name}",
        "cannot tell": f"cannot tell whether it saves or costs {name}",
        "modelled": f"{name} modelled",
        "unknown": f"{name} unknown",
    }
    groups: dict[tuple[str, str], list[tuple[str, Gamma, Gamma]]] = {}
    for s in savings:
        energy = s.gpu if gpu else s.total
        groups.setdefault((verdict(s.time), verdict(energy)), []).append((s.key.task, s.time, energy))
    told = []
    for (speed, cost), found in sorted(groups.items(), key=lambda item: [_KINDS.index(kind) for kind in item[0]]):
        tasks, times, energies = zip(*found, strict=True)
        where = listed(tasks)
        if len(found) > 3 or len(found) == len(savings) > 1:
            where = (
                f"all {len(savings)} tasks" if len(found) == len(savings) else f"{len(found)} of {len(savings)} tasks"
            )
        energy_word = energy_words[cost]
        if speed == cost == "cannot tell":
            energy_word = energy_word.removeprefix("cannot tell ")
        told.append(f"{time_words.get(speed, speed)}{_factors(times)} and {energy_word}{_factors(energies)} on {where}")
    return f"{decoding}: {'; '.join(told)}."


def _factors(gammas: Sequence[Gamma]) -> str:
    """The factors in brackets, ``(factor 1.03 to 1.54)``; where there are none, why."""
    values = sorted(gamma.ratio.value for gamma in gammas if gamma.ratio.value is not None)
    if values:
        return f" (factor {' to '.join(dict.fromkeys((figure(values[0]), figure(values[-1]))))})"
    why = common_reason(gamma.ratio for gamma in gammas)
    return f" ({why})" if why else ""


def listed(names: Sequence[str], last: str = "and") -> str:
    """Names as a sentence has them: ``a, b and c``; ``last`` is the word before the last one."""
    return f" {last} ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def nothing_to_show(run: RunFacts, summary: Summary) -> str | None:
    """Why a run has no figures, in a sentence; None where it has some."""
    if not run.trials:
        return "This run has no Trials yet: there is nothing to report."
    if not run.ok:
        return f"No Trial of this run succeeded ({run.failed:,} failed): there are no figures."
    if summary.without_polluted and run.polluted == run.ok:
        return (
            f"All Trials that succeeded ({run.ok:,}) are polluted, and --without-polluted leaves them out: "
            "there are no figures."
        )
    return None


def explanation_notes(run: RunFacts, summary: Summary) -> list[str]:
    """What to know before the explanations of a run: how far to trust it, and why there are none."""
    nothing = nothing_to_show(run, summary)
    return [*trust_notes(run), *run.pollution.notes(summary.without_polluted), *([nothing] if nothing else [])]


def doubtful(run: RunFacts, summary: Summary) -> str | None:
    """That not even half of what stands in a run's figures is known to be undisturbed; None where it is."""
    share = _in_figures(run, summary)
    if not share.doubtful:
        return None
    if not share.polluted:
        return (
            f"Whether other processes used the CPU is not known for {share.unknown:,} of "
            f"{counted(share.trials, 'Trial')}: of "
            "Trials under 0.2 s it cannot be told, and longer answers let it be told."
        )
    more = f" (and for {share.unknown:,} more that is not known)" if share.unknown else ""
    return (
        f"Other processes used the CPU during {share.polluted:,} of {counted(share.trials, 'Trial')}{more}: the "
        "times, and all "
        "that follows from them, may be theirs. Run it again on a quiet machine."
    )


def claims_caveat(run: RunFacts, summary: Summary) -> str | None:
    """What stands beside every claim that is drawn from polluted Trials; None where none is."""
    share = _in_figures(run, summary)
    if not share.polluted and not share.doubtful:
        return None
    told = [
        *([f"{share.polluted:,} are polluted by other processes' CPU use"] if share.polluted else []),
        *([f"of {share.unknown:,} that is not known"] if share.unknown else []),
    ]
    if not share.polluted:
        told = [f"of {share.unknown:,} it is not known whether other processes used the CPU"]
    of = counted(share.trials, "Trial")
    return f"of this run's {of} {listed(told)}, and seconds, shares of them and joules may be theirs."


def _in_figures(run: RunFacts, summary: Summary) -> PollutionShare:
    """The pollution of the Trials that stand in the figures."""
    if summary.without_polluted:
        return PollutionShare(run.ok - run.polluted, 0, run.pollution_unknown)
    return run.pollution


def trust_notes(run: RunFacts) -> list[str]:
    """What a reader must know before trusting a run's joules."""
    notes = []
    if run.modelled:
        names = " and ".join(COMPONENT_NAMES[c] for c in run.modelled)
        notes.append(f"The joules of {names} are modelled, not measured. {NO_PARADOX}")
    notes += [
        f"{c.device}: over {figure(c.duration_s)} s the {_gap(c)} ({figure(c.trace_j)} J against {figure(c.counter_j)} "
        f"J). More than {LIMIT * 100:g} % apart, one of the two misses time or is scaled wrongly; hold the device "
        "against an external meter before its absolute joules are used."
        for c in run.counter_checks
        if abs(c.gap) > LIMIT
    ]
    gain = gain_note(run)
    return [*notes, gain] if gain else notes


def _gap(check: CounterCheck) -> str:
    if abs(check.gap) < 5e-5:
        return "power readings integrate to what the counter says"
    side = "more" if check.gap > 0 else "less"
    return f"power readings integrate to {figure(abs(check.gap) * 100)} % {side} than the counter says"


def gain_note(run: RunFacts) -> str | None:
    """Which sensors' gain is not known and what that means, in two sentences; None where all are known."""
    unknown = [COMPONENT_NAMES[o.component] for o in run.origins if o.gain_unknown]
    if not unknown:
        return None
    return (
        f"The sensor gain of {' and '.join(unknown)} is not known, so the intervals of absolute joules leave it out. "
        "In a component's own saving it cancels."
    )


def failures(run: RunFacts) -> str | None:
    """How many Trials failed and why, in a line for the terminal; None where none did."""
    if not run.failed:
        return None
    why = "; ".join(f"{error} ({n:,})" for error, n in run.errors[:_REASONS])
    return f"{run.failed:,} of {counted(run.trials, 'Trial')} failed: {why}{_further_reasons(run)}"


_REASONS = 5
"""At most so many reasons why Trials failed are told."""


def _further_reasons(run: RunFacts) -> str:
    further = len(run.errors) - _REASONS
    return f"; and {further} more reason{'s' * (further > 1)}" if further > 0 else ""


def trial_notes(run: RunFacts, summary: Summary) -> list[str]:
    """Missing, failed, polluted and compared Trials of a run, in sentences."""
    notes = []
    if run.planned is not None and run.planned > run.trials:
        notes.append(
            f"The run is not finished: {run.trials:,} of {counted(run.planned, 'planned Trial')} "
            f"{'is' if run.trials == 1 else 'are'} there."
        )
    notes += [
        f"{engine} could not be loaded, and none of its cells was run: {error.rstrip('.')}."
        for engine, error in run.not_loaded.items()
    ]
    if run.trials and run.not_begun:
        vanilla = any(key.decoding == VANILLA for key in run.not_begun)
        without = " Without vanilla there is no saving to tell." if vanilla else ""
        notes.append(f"No Trial yet of {named(run.not_begun)}: {GO_ON}.{without}")
    if run.failed:
        why = "; ".join(f"{n:,} x {error}" for error, n in run.errors[:_REASONS]) + _further_reasons(run)
        notes.append(
            f"{run.failed:,} of {counted(run.trials, 'Trial')} failed, and {'is' if run.failed == 1 else 'are'} in "
            f"no figure: {why}."
        )
    repeated = [p for p in summary.precision if p.key.run == run.name]
    if run.target is not None and repeated:
        notes.append(_target_note(run.target, repeated))
    notes += run.pollution.notes(summary.without_polluted)
    found = [verdicts for verdicts in summary.lossless if verdicts.key.run == run.name]
    identical, tie, different = (sum(getattr(v, name) for v in found) for name in ("identical", "tie", "different"))
    if checked := identical + tie + different:
        notes.append(
            f"Compared with vanilla's: {counted(checked, 'output')}, {identical:,} identical, {tie:,} that differ "
            "first at a "
            f"near-tie, {different:,} that differ in a way that arithmetic does not explain."
        )
    return notes


def _target_note(target: float, found: Sequence[Precision]) -> str:
    """Which cells were measured as well as the plan wanted, and how well the others are."""
    missed = [
        f"{p.key.decoding} on {p.key.task} "
        + ("of unknown joules" if p.relative_half_width is None else f"at {figure(p.relative_half_width * 100)} %")
        for p in found
        if p.relative_half_width is None or p.relative_half_width > target
    ]
    most = max(p.repeats for p in found)
    told = (
        f"Measured to {target * 100:g} % or better (joules per output token of these very questions, gain apart): "
        f"{len(found) - len(missed)} of {counted(len(found), 'cell')}, with up to {counted(most, 'repeat')}"
    )
    return f"{told}. Not yet, or not within the plan's budget: {listed(missed)}." if missed else f"{told}."


def dropped_notes(savings: Iterable[Saving]) -> list[str]:
    """Questions that a saving could not use, cell by cell."""
    notes = []
    for s in savings:
        parts = [
            f"{name} {gamma.dropped}"
            for name, gamma in (("time", s.time), ("GPU", s.gpu), ("total", s.total))
            if gamma.dropped and gamma.ratio.value is not None
        ]
        if parts:
            notes.append(f"{s.key.task}, {s.key.decoding}: questions left out for want of a pair: {', '.join(parts)}.")
    return notes
