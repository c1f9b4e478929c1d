"""A share that is given on the command line."""

from __future__ import annotations

from joulewise.errors import UserError


def share(text: str, option: str, example: str = "5%", as_share: str = "0.05", most: float = 10.0) -> float:
    """``5%`` or ``0.05`` as 0.05. A bare ``5`` may be meant either way and is refused.

    Args:
        text: as it was given.
        option: the option's name.
        example, as_share: a sensible value, in both ways of writing.
        most: what a percentage may stand for at most, as a share.

    Raises:
        UserError: it is neither.
    """
    if not text.strip():
        raise UserError(f"{option} is empty; write {example} or {as_share}")
    number, percent = text.strip().removesuffix("%").strip(), text.strip().endswith("%")
    try:
        found = float(number) / (100 if percent else 1)
    except ValueError:
        raise UserError(f"{option} {text}: not a number; write {example} or {as_share}") from None
    if not (0.0 <= found <= most if percent else 0.0 <= found < 1.0):
        raise UserError(
            f"{option} {text}: write a percentage from 0% to {most:.0%}, such as {example}, or a share below 1, such "
            f"as {as_share}"
        )
    return found
