"""Engine: takes Requests, gives Generations. The seam between what is asked and who generates."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from joulewise.decoding.spec import Decoding

Role = Literal["system", "user", "assistant"]
FinishReason = Literal["eos", "length"]

PHASES = ("prefill", "draft_prefill", "draft", "verify", "accept", "memory", "host")
"""What the seconds of a generation go to: the target's and the draft's prefill, draft forwards, the target's forwards
after the prefill (plain steps are ``verify`` too), choosing what to keep, moving memory (cache crop and copy,
host-device copies), and the rest, control flow.
"""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen. ``temperature`` 0 is greedy; then the other fields have no effect."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0

    @property
    def greedy(self) -> bool:
        """True where each token is the most likely one."""
        return self.temperature == 0.0


@dataclass(frozen=True, slots=True)
class Request:
    """One call of a model.

    Args:
        messages: the conversation so far; the engine applies the model's chat template where it has one, else joins the
            contents with blank lines.
        max_new_tokens: at most so many output tokens (exactly so many where ``ignore_eos``).
        ignore_eos: go on past the end-of-sequence token (the stop rule ``fixed``).
        sampling: greedy by default.
        seed: for sampling; has no effect on greedy decoding.
        log_probability: whether the output's log-probability is asked for.
        cuts: after how many output tokens the text so far is to be told, rising.
        thinking: sets the switch that a model's chat template has for its own ``<think>`` block; None leaves it as the
            template has it. A model without such a switch takes no notice.
    """

    messages: tuple[Message, ...]
    max_new_tokens: int
    ignore_eos: bool = False
    sampling: Sampling = Sampling()
    seed: int = 0
    log_probability: bool = False
    thinking: bool | None = None
    cuts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Round:
    """One round of speculation: one verification forward of the target.

    Args:
        drafted: draft tokens proposed (0 where the drafter had none).
        accepted: draft tokens that entered the output; the bonus token is not among them.
    """

    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True)
class Tally:
    """Speculation as totals, where nobody tells the single rounds.

    Args:
        rounds: verification forwards of the target, those without a draft included.
        drafted, accepted: as in ``Round``, summed.
        drafts: the rounds that had a draft; None where not told.
        per_position: in how many rounds the first, second, ... draft token was accepted; None where not told.
    """

    rounds: int
    drafted: int
    accepted: int
    drafts: int | None = None
    per_position: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Cut:
    """An output as it was after some of its tokens.

    Args:
        tokens: how many.
        text: their text; None where the engine does not see it: what it writes for a request of so many tokens tells.
        time_s: when they were there, monotonic seconds; None where the engine does not see it.
    """

    tokens: int
    text: str | None
    time_s: float | None


OF_TEXT = "text:"
"""Begins the hash of an output whose text is known and whose token ids are not."""


@dataclass(frozen=True, slots=True)
class Generation:
    """What one Request gave.

    Args:
        text: the output, special tokens removed.
        token_ids: the output tokens, the end-of-sequence token included where it was produced; empty where the engine
            tells only how many there are.
        prompt_tokens: tokens of the prompt after the template.
        wasted_tokens: tokens that the target had accepted or produced past the end of the output and that were thrown
            away.
        finish_reason: ``eos`` or ``length``.
        start_s, first_token_s, end_s: monotonic seconds; ``first_token_s`` is None where the engine cannot see it.
        rounds: the rounds of speculation, in order; empty for plain decoding.
        phases_s: seconds by phase, names of ``PHASES``, that sum to ``end_s - start_s``; None where the engine cannot
            tell them apart.
        log_probabilities: natural logarithm of each given continuation's probability, in their order, where nothing was
            generated and ``text`` is the most likely of them (see ``ComparingEngine``); else None.
        log_probability: natural logarithm of the output's probability under the model, at a temperature of 1 and over
            the whole vocabulary, however its tokens were drawn; the end token counts too. None where not asked for.
        thinking_open: whether the prompt ended inside a ``<think>`` block, which the output goes on with.
        cuts: those that the Request asked for and that lie before the output's end.
        counted_tokens: how many output tokens there are, where their ids are not known; None where they are.
        note: what a reader must know of how it came about.
    """

    text: str
    token_ids: tuple[int, ...]
    prompt_tokens: int
    finish_reason: FinishReason
    start_s: float
    end_s: float
    first_token_s: float | None = None
    wasted_tokens: int = 0
    rounds: tuple[Round, ...] = ()
    phases_s: Mapping[str, float] | None = None
    log_probabilities: tuple[float, ...] | None = None
    log_probability: float | None = None
    thinking_open: bool = False
    cuts: tuple[Cut, ...] = ()
    counted_tokens: int | None = None
    note: str | None = None

    @property
    def output_tokens(self) -> int:
        """Output tokens, the end-of-sequence token included."""
        return len(self.token_ids) if self.counted_tokens is None else self.counted_tokens

    @property
    def output_hash(self) -> str:
        """SHA-256 (16 hex digits) of the output tokens; of the text, and marked so, where their ids are not known."""
        if self.counted_tokens is not None:
            return OF_TEXT + hashlib.sha256(self.text.encode()).hexdigest()[:16]
        return hashlib.sha256(",".join(map(str, self.token_ids)).encode()).hexdigest()[:16]

    @property
    def drafted(self) -> int:
        """All draft tokens proposed."""
        return sum(r.drafted for r in self.rounds)

    @property
    def accepted(self) -> int:
        """All draft tokens accepted."""
        return sum(r.accepted for r in self.rounds)


CheckStatus = Literal["identical", "tie", "different", "not_checked"]


@dataclass(frozen=True, slots=True)
class LosslessCheck:
    """Whether an output equals vanilla's greedy output (design, rule 4).

    Args:
        status: ``identical``; ``tie``: the first difference lies at a near-tie that vanilla itself shows between
            forward widths; ``different``: a failure; ``not_checked``: sampled output, a lossy decoding, or no vanilla
            to compare with.
        first_difference: index of the first differing output token.
        gap: the target's logit gap there between vanilla's token and the other one (usually its top two).
        control: the largest change of that gap that vanilla shows between forward widths on the same prefix.
        note: why it was not checked, or what a reader must know.
    """

    status: CheckStatus
    first_difference: int | None = None
    gap: float | None = None
    control: float | None = None
    note: str | None = None


THINKING_SWITCH = "its chat template can switch its own thinking on and off"
"""The note of a model with such a switch."""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What ran, for the record. All of it must be equal for two cells to be a fair pair (design, rule 5).

    Args:
        engine: the engine's registry name.
        model: the model as the plan named it.
        model_class: such as ``LlamaForCausalLM``.
        parameters: number of parameters; None where a server does not tell.
        dtype: such as ``float32``; ``unknown`` where a server does not tell.
        devices: where the weights lie, such as ``("cuda:0",)``.
        context_length: the most tokens of prompt and output together; None if the model states none.
        versions: library versions that matter, by name.
        drafts: by decoding label, what drafts (name, parameters, a note such as "correctness fixture").
        notes: what a reader of the results must know, such as "weights dequantised from Q4_1".
        quantisation: of the target's weights as they ran, such as ``nf4`` or ``gptq, 4 bits``; None if unquantised.
    """

    engine: str
    model: str
    model_class: str
    parameters: int | None
    dtype: str
    devices: tuple[str, ...]
    context_length: int | None
    versions: Mapping[str, str] = field(default_factory=dict)
    drafts: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    quantisation: str | None = None

    @property
    def thinking_switch(self) -> bool:
        """Whether the model's own thinking can be switched on and off."""
        return THINKING_SWITCH in self.notes


class Engine(Protocol):
    """Takes Requests, gives Generations. One engine holds one target model."""

    def refuses(self, decoding: Decoding) -> str | None:
        """Why this engine cannot do ``decoding``, one sentence; None if it can. Loads nothing."""
        ...

    def load(self, decodings: Sequence[Decoding]) -> EngineInfo:
        """Load the target and every draft that ``decodings`` need.

        Raises:
            UserError: a model that does not exist, a draft whose tokenizer cannot be matched, and the like.
        """
        ...

    def generate(self, request: Request, decoding: Decoding) -> Generation:
        """Generate, and return when the device is done (so that a window around the call holds all of its joules).

        The result depends on the arguments alone: no state is carried from call to call (design, rule 6).

        Raises:
            ContextLengthError: prompt and ``max_new_tokens`` do not fit the context.
        """
        ...

    def check_lossless(
        self, request: Request, decoding: Decoding, reference: Sequence[int], output: Sequence[int]
    ) -> LosslessCheck:
        """Compare ``output`` of ``decoding`` with ``reference``, vanilla's output tokens for the same request.

        Runs forwards of the target where they differ; never called inside a window.
        """
        ...

    def close(self) -> None:
        """Free the device memory. Idempotent."""
        ...


@runtime_checkable
class ComparingEngine(Protocol):
    """What an engine may do besides: compare given continuations of a prompt."""

    def compare(self, request: Request, continuations: Sequence[str]) -> Generation:
        """The most likely of ``continuations`` as the answer's beginning, by one forward; nothing is generated.

        Compared is the sum of the log-probabilities of a continuation's tokens; of equal ones the first counts. The
        request's token limit, stop rule and sampling have no effect. Vanilla must be loaded.

        Raises:
            ContextLengthError: prompt and continuations do not fit the context.
            UserError: a continuation without tokens.
        """
        ...
