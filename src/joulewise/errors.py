"""The errors a person can act on."""

from __future__ import annotations

import textwrap


class JoulewiseError(Exception):
    """Base class of every error that Joulewise raises on purpose.

    The message is one clear sentence that says what is wrong, where, and what to do about it;
    the command line prints it without a traceback.
    """


class UserError(JoulewiseError):
    """The input is wrong: a plan, a file, a flag. The command line exits with code 2."""


class EnvironmentFault(JoulewiseError):
    """The machine does not let us go on: no space left, no permission, a missing extra.

    The command line exits with code 2; what was written before stays intact.
    """


class ContextLengthError(JoulewiseError):
    """A question, with the tokens it may produce, does not fit the model's context.

    Only the Trial fails; the run goes on.
    """


class ChoiceError(JoulewiseError):
    """What was to choose among several samples of an answer could not.

    Only the Trial fails; the run goes on.
    """


class ServerError(JoulewiseError):
    """A server gave no answer, an unusable one, or has ended.

    Only the Trial fails; the run goes on.
    """


def first_paragraph(error: Exception) -> str:
    """What an error says first, in one line, for use within a sentence; its type where it says nothing."""
    paragraph = str(error).strip().partition("\n\n")[0].rstrip(".: \n")
    return textwrap.shorten(paragraph, 300, placeholder=" ...") or type(error).__name__
