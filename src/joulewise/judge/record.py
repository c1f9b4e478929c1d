"""What a judge said: ``judgements.jsonl`` of a run folder, one judgement a line, only ever added to."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated, Literal

from pydantic import Field, ValidationError

from joulewise.errors import EnvironmentFault, UserError
from joulewise.records import EnergyRecord, Record, Seconds, Tokens
from joulewise.yaml_file import in_words

JUDGEMENTS = "judgements.jsonl"

Rating = Annotated[float, Field(ge=1.0, le=10.0)]


class Call(Record):
    """One request to the judge.

    Args:
        order: of a comparison: who came first; None where one answer is graded.
        prompt_tokens, output_tokens: as the judge counts them; None where it does not say.
        duration_s: from the request to the whole reply; None where none came.
        said: what was taken from the reply: a grade, or ``A``, ``B``, ``C``; None where nothing could be.
        energy: joules of this machine meanwhile, where they were measured; None: not known.
    """

    order: Literal["ours first", "theirs first"] | None = None
    prompt_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    duration_s: Seconds | None = None
    said: str | None = None
    energy: tuple[EnergyRecord, ...] | None = None


class Judgement(Record):
    """What a judge made of one turn's answer.

    Args:
        trial_id: whose answer.
        answer_hash: of the answer's tokens, so that another answer is not taken for it.
        turn: from 1.
        against: the Trial whose answer it was compared with; None where it was graded by itself.
        judge: the judge's model.
        server: scheme, host and port of its address.
        prompts: name of the templates.
        guided: whether the judge was given a reference answer.
        status: ``unjudged`` where no grade could be had; that is no grade of 0.
        reason: why it is unjudged.
        rating: 1 to 10.
        verdict: of a comparison, from the Trial's side; a tie also where the two orders disagree.
        calls: all requests, those in vain too.
        judged_at: wall-clock time, ISO 8601 UTC.
    """

    kind: Literal["judgement"] = "judgement"
    trial_id: str
    answer_hash: str
    turn: Annotated[int, Field(ge=1)]
    against: str | None = None
    judge: str
    server: str
    prompts: str
    guided: bool
    status: Literal["judged", "unjudged"]
    reason: str | None = None
    rating: Rating | None = None
    verdict: Literal["win", "tie", "loss"] | None = None
    calls: tuple[Call, ...] = ()
    judged_at: str

    @property
    def by(self) -> tuple[str, str]:
        """Judge and templates: grades of two are not mixed."""
        return self.judge, self.prompts

    @property
    def of(self) -> tuple[str, str, int, str | None]:
        """What was judged."""
        return self.trial_id, self.answer_hash, self.turn, self.against


def read_judgements(folder: Path) -> tuple[Judgement, ...]:
    """All judgements of a run, in the order written; a last line that was cut off is left out.

    Raises:
        UserError: a broken line that is not the last one.
    """
    path = folder / JUDGEMENTS
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise EnvironmentFault(f"{path}: cannot be read ({error.strerror}); check its permissions") from error
    found = []
    for number, line in enumerate(lines, 1):
        if not line.endswith(b"\n"):
            break
        try:
            found.append(Judgement.model_validate_json(line))
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"]))
            raise UserError(
                f"{path}:{number}: {field}: {in_words(first)}; restore the file, or delete it to do without"
            ) from error
    return tuple(found)


@contextmanager
def judgements_file(folder: Path) -> Iterator[IO[bytes]]:
    """The file, open to add lines and held by this process alone; a line that was cut off is taken away.

    Raises:
        EnvironmentFault: it cannot be written, or another judge writes in it now.
    """
    path = folder / JUDGEMENTS
    try:
        file = path.open("ab+", buffering=0)  # closing must not write once more what did not fit
    except OSError as error:
        raise EnvironmentFault(
            f"{path}: cannot be written ({error.strerror}); make room or ask for permission"
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EnvironmentFault(f"{path}: another `joulewise judge` is writing here; wait for it") from None
        file.seek(0)
        whole = file.read()
        file.truncate(whole.rfind(b"\n") + 1)
        yield file


def append(file: IO[bytes], judgement: Judgement) -> None:
    """Write one line and flush it to disk.

    Raises:
        EnvironmentFault: no space left, or the like.
    """
    try:
        line = judgement.model_dump_json().encode() + b"\n"
        while line:
            line = line[file.write(line) :]
        os.fsync(file.fileno())
    except OSError as error:
        raise EnvironmentFault(
            f"{file.name}: cannot be written ({error.strerror}); make room and judge again: what is there is kept"
        ) from error


def latest(judgements: Sequence[Judgement]) -> Mapping[tuple[str, str, int, str | None], Judgement]:
    """By what was judged, the last judgement of the judge that was asked last."""
    if not judgements:
        return {}
    return {j.of: j for j in judgements if j.by == judgements[-1].by}
