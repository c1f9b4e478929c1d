"""DecoderModel: Transformers' own modules on a preallocated cache, one forward at a time."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from joulewise.engines.native.attention import NAME, Sight, bias_of, causal_mask
from joulewise.engines.native.cache import KV
from joulewise.engines.native.lean import Rotary, make_lean
from joulewise.engines.native.merged import merge_projections
from joulewise.engines.transformers.loading import Loaded
from joulewise.errors import UserError, first_paragraph

_PROBE_FIRST, _PROBE_TOKENS = 1000, 12
"""The tokens of the probe. A vocabulary begins with its special ones, over which a real model in bfloat16 differs from
itself in float32 by more than its whole spread."""

_PROBE_TOLERANCE, _PROBE_TOLERANCE_HALF = 0.02, 0.4
"""How far our logits may lie from the model's own, over their spread: in float32; in half precision, by other kernels,
and in int8, where a token's activations are rounded by which others share its forward. Wrong ones are off by 1."""


OWN_KERNELS, TORCH_KERNELS = "Joulewise's own", "torch's"
"""Whose kernels run, as the record says it."""


@dataclass(frozen=True, slots=True)
class Hidden:
    """What a forward over W tokens leaves.

    Args:
        last: hidden states after the final norm, shape ``(W, H)``.
        taps: the inputs of the tapped layers side by side, shape ``(W, taps x H)``; None where nothing is tapped.
    """

    last: Tensor
    taps: Tensor | None = None

    def __getitem__(self, rows: Any) -> Hidden:
        return Hidden(self.last[rows], None if self.taps is None else self.taps[rows])


class DecoderModel:
    """A causal model whose forwards read and write a ``KV``.

    Args:
        loaded: the model; its attention is replaced and its projections are merged, for good.
        taps: layers whose inputs a forward also returns (EAGLE-3).

    Raises:
        UserError: an architecture that the seam does not reach, with the reason.
    """

    def __init__(self, loaded: Loaded, taps: Sequence[int] = ()) -> None:
        self.loaded = loaded
        self.model: Any = loaded.model
        self.decoder: Any = loaded.model.base_model
        self.head: Any = loaded.model.get_output_embeddings()
        self.device: torch.device = loaded.model.device
        if self.device.type == "cuda":
            # Graphs are captured, and our kernels started, on the current device.
            torch.cuda.set_device(self.device)
        self.taps = tuple(taps)
        self._tapped: dict[int, Tensor] = {}
        self.session: object = None
        """What was captured of this model, kept from prompt to prompt."""
        self.rows: dict[bool, object] = {}
        """The same for one text, and for several, decoded by ``together.py``."""
        parameters = inspect.signature(type(self.decoder).forward).parameters
        # The argument was renamed on the way from Transformers 5.17 to 5.24.
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        layers = getattr(self.decoder, "layers", ())
        for layer in self.taps:
            if not 0 <= layer < len(layers):
                raise UserError(f"Layer {layer} of {loaded.name} is to be tapped, which has {len(layers)}.")
        for module in self.decoder.modules():
            # Its frequencies change only beyond the context, where no text goes but a draft may; and to find that out
            # it waits for the device, which a captured forward cannot.
            if getattr(module, "rope_type", None) == "dynamic":
                module.rope_type = "default"
        self._groups: int | None = None
        """Query heads a key head where all layers share one bias; None: each makes its own of the mask."""
        self._rotary: Rotary | None = None
        self.kernels_fault: str | None = None
        """Why our own kernels do not run here though they should; in words that are the same from run to run."""
        self._refuse_what_is_not_reached()

    @property
    def sights(self) -> bool:
        """Whether ``forward_at`` and ``read`` take a ``Sight`` in a mask's place, and then run on our own kernels."""
        return self._rotary is not None

    @property
    def kernels(self) -> str:
        """Whose kernels run, for the record."""
        if self.kernels_fault:
            return f"{TORCH_KERNELS}, since {OWN_KERNELS} {self.kernels_fault}"
        return OWN_KERNELS if self.sights else TORCH_KERNELS

    @property
    def config(self) -> Any:
        """The text model's configuration."""
        return self.model.config.get_text_config(decoder=True)

    @property
    def window(self) -> int | None:
        """The fewest tokens back that a layer sees; None where all see everything."""
        windows = [getattr(m, "sliding_window", None) for m in self.decoder.modules()]
        if not getattr(self.config, "layer_types", None):  # Mistral, Phi-3: in the configuration alone, for all layers
            windows.append(getattr(self.config, "sliding_window", None))
        return min((w for w in windows if isinstance(w, int)), default=None)

    def new_cache(self, capacity: int, texts: int = 1) -> KV:
        """An empty cache for so many tokens of so many texts."""
        config = self.config
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        return KV(config.num_hidden_layers, kv_heads, head_dim, capacity, self.model.dtype, self.device, texts)

    def forward(
        self, cache: KV, tokens: Tensor, start: int, mask: Tensor | None, positions: Tensor | None = None
    ) -> Hidden:
        """One forward over W tokens, which go to the slots from ``start`` on.

        Args:
            cache: read and written.
            tokens: shape ``(W,)``.
            start: the first slot, which is the number of tokens before it.
            mask: true where a token sees a slot, shape ``(W, start + W)``; None: causal.
            positions: shape ``(W,)``; None: the slots.
        """
        span = start + len(tokens)
        slots = torch.arange(start, span, device=self.device)
        if positions is None:
            positions = slots
        if mask is None and start > 0:
            mask = causal_mask(positions, span)
        return self.forward_at(cache, tokens, slots, span, mask, positions)

    def forward_at(
        self, cache: KV, tokens: Tensor, slots: Tensor, span: int, mask: Tensor | Sight | None, positions: Tensor
    ) -> Hidden:
        """One forward over W tokens, all that differs between calls of one shape lying on the device.

        Args:
            cache: read and written.
            tokens, slots, positions: shape ``(W,)``.
            span: so many slots are read.
            mask: true where a token sees a slot, shape ``(W, span)``; None: causal, with nothing before; or a
                ``Sight``, which tells slots and span as well.
        """
        cache.slots, cache.span = slots, span
        output = self.decoder(
            input_ids=tokens[None],
            position_ids=positions[None],
            use_cache=True,
            joulewise_mask=self._bias(mask),
            **{self._cache_name: cache},
        )
        taps = torch.cat([self._tapped[layer][0] for layer in self.taps], dim=-1) if self.taps else None
        return Hidden(output.last_hidden_state[0], taps)

    def read(
        self,
        tokens: Tensor,
        cache: KV | None = None,
        mask: Tensor | Sight | None = None,
        positions: Tensor | None = None,
    ) -> Hidden:
        """A forward over several texts side by side: what heads are trained on, and how these texts are written.

        Args:
            tokens: shape ``(texts, W)``. Without a cache a shorter text is filled up behind its end, where none of its
                tokens sees it.
            cache: read and written at its ``slots``, the same for all texts; None: these tokens are all there is.
            mask: true where a token sees a slot, shape ``(texts, 1, W, span)``; None: causal, with nothing before; or
                a ``Sight``, which tells slots and span as well.
            positions: shape ``(texts, W)``; None: from 0 on.

        Returns:
            With ``texts`` as the first dimension of everything.
        """
        kept = {"use_cache": False} if cache is None else {"use_cache": True, self._cache_name: cache}
        output = self.decoder(input_ids=tokens, position_ids=positions, joulewise_mask=self._bias(mask), **kept)
        taps = torch.cat([self._tapped[layer] for layer in self.taps], dim=-1) if self.taps else None
        return Hidden(output.last_hidden_state, taps)

    def logits(self, hidden: Hidden) -> Tensor:
        """The next token's logits in float32, shape ``(W, rows)``."""
        logits: Tensor = self.head(hidden.last)
        return logits.float()

    def likeliest(self, logits: Tensor) -> Tensor:
        """The likeliest token of each row, the first of equals; ``(..., rows)`` -> ``(...)``."""
        if self.sights:
            from joulewise.engines.native.kernels import likeliest

            return likeliest(logits)
        return logits.argmax(dim=-1)

    def _bias(self, mask: Tensor | Sight | None) -> Tensor | Sight | None:
        """What the layers get."""
        by_sight = isinstance(mask, Sight)
        if self._rotary is not None:
            self._rotary.needed = not by_sight
        if mask is None or by_sight or self._groups is None:
            return mask
        return bias_of(mask, self._groups, self.model.dtype)

    def _tap(self, layer: int) -> Any:
        def keep(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._tapped[layer] = args[0] if args else kwargs["hidden_states"]

        return keep

    def _refuse_what_is_not_reached(self) -> None:
        """Compare a short forward, in two parts, with the model's own; a model that needs more than we do differs."""
        loaded = self.loaded
        refusal = (
            f"The engine `native` cannot run {loaded.name} ({type(self.model).__name__}): {{}}. Use the engine "
            "`transformers` for it."
        )
        if loaded.encoder_decoder:
            raise UserError(refusal.format("it is an encoder-decoder"))
        if not hasattr(self.decoder, "layers") or self.head is None or self.model._is_stateful:
            raise UserError(refusal.format("it is not a plain stack of attention layers with an output matrix"))
        tokens = (_PROBE_FIRST + torch.arange(_PROBE_TOKENS, device=self.device)) % self.config.vocab_size
        with torch.inference_mode():
            expected = self.model(tokens[None], use_cache=False).logits[0].float()
        self.model.config._attn_implementation = NAME
        self.config._attn_implementation = NAME
        merge_projections(self.decoder)
        self._groups, rotary = make_lean(self.decoder)
        for layer in self.taps:  # of the layers that are now there
            self.decoder.layers[layer].register_forward_pre_hook(self._tap(layer), with_kwargs=True)
        try:
            off = self._off(tokens, expected)
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
            raise UserError(refusal.format(f"its attention cannot take our mask or cache ({error})")) from error
        exact = self.model.dtype == torch.float32 and loaded.quantisation != "int8"
        tolerance = _PROBE_TOLERANCE if exact else _PROBE_TOLERANCE_HALF
        if not off <= tolerance:
            raise UserError(refusal.format(f"its logits would be off by {off:.2g} of their spread"))
        if rotary is not None and (faults := self._fault_of_kernels(rotary, tokens, expected, tolerance)):
            self._rotary, rotary.needed = None, True
            self.kernels_fault = faults[0]
            warnings.warn(
                f"Our own kernels {faults[0]} ({faults[1]}): {loaded.name} runs on torch's, which is slower.",
                RuntimeWarning,
                stacklevel=2,
            )

    def _fault_of_kernels(
        self, rotary: Rotary, tokens: Tensor, expected: Tensor, tolerance: float
    ) -> tuple[str, str] | None:
        """Turn to our own kernels, and say what is wrong with them here: in short, and in detail."""
        from joulewise.engines.native.kernels import FAILURES

        self._rotary = rotary
        try:
            off = self._off(tokens, expected)
        except FAILURES as error:
            return "cannot be built here", first_paragraph(error)
        if off <= tolerance:
            return None
        return "give wrong logits here", f"off by {off:.2g} of their spread; please report this, with the GPU's name"

    def _off(self, tokens: Tensor, expected: Tensor) -> float:
        """How far the logits of a forward in parts lie from those expected, over their spread: of the worst token."""
        cache, first = self.new_cache(len(tokens)), len(tokens) - 5
        with torch.inference_mode():
            parts = [self.forward(cache, tokens[:first], 0, None)]
            for part in tokens[first:].split((4, 1)):
                slots = torch.arange(first, first + len(part), device=self.device)
                mask: Tensor | Sight = causal_mask(slots, first + len(part))
                if self.sights:
                    mask = Sight(slots[:1], causal_mask(slots - first, len(part)))
                parts.append(self.forward_at(cache, part, slots, first + len(part), mask, slots))
                first += len(part)
            found = torch.cat([self.logits(part) for part in parts])
        off = (found - expected).square().mean(dim=-1).sqrt() / expected.std(dim=-1).clamp(min=1e-6)
        return float(off.max())
