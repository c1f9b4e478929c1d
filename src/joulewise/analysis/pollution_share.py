"""How many Trials other processes disturbed: counted, told and left out alike by reports, curves and comparisons."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from joulewise.counted import counted


@dataclass(frozen=True, slots=True)
class PollutionShare:
    """Of Trials that succeeded.

    Args:
        trials: how many there are.
        polluted: those during which other processes used the CPU above the plan's limit.
        unknown: those of which that is not known; they count as clean, for want of a reason to leave them out.
    """

    trials: int
    polluted: int
    unknown: int

    @property
    def doubtful(self) -> bool:
        """Whether not even half of the Trials are known to be clean."""
        return 2 * (self.polluted + self.unknown) > self.trials

    def notes(self, left_out: bool, whose: str = "") -> list[str]:
        """What a reader must know, in sentences; none where all Trials are known to be clean.

        Args:
            left_out: whether the polluted Trials are in no figure.
            whose: what the Trials are of, such as ``of NEW``, where several are told of.
        """
        told = []
        of = f"of {counted(self.trials, 'Trial')}{whose and f' {whose}'}"
        if self.polluted:
            left = "left out of all figures" if left_out else "in the figures; --without-polluted leaves them out"
            verb = "is" if self.polluted == 1 else "are"
            share = f"{100 * self.polluted / self.trials:.3g} %"
            told.append(f"{self.polluted:,} {of} ({share}) {verb} polluted by other processes' CPU use: {left}.")
        if self.unknown:
            kept = "in the figures all the same" if left_out else "in the figures, also with --without-polluted"
            told.append(f"For {self.unknown:,} {of} other processes' CPU use is not known: {kept}.")
        return told


def pollution_share(rows: pa.Table) -> PollutionShare:
    """The share of polluted Trials among ``rows`` that succeeded; failed ones count nowhere."""
    ok = rows.filter(pc.equal(rows["status"], "ok"))
    polluted = pc.sum(ok["polluted"]).as_py() or 0
    return PollutionShare(ok.num_rows, polluted, without_polluted(ok)["other_cpu_cores"].null_count)


def without_polluted(rows: pa.Table) -> pa.Table:
    """The rows that are not known to be polluted."""
    return rows.filter(pc.invert(pc.fill_null(rows["polluted"], False)))
