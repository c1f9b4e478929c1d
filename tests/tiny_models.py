"""Tiny random models of the true classes, with tokenizers made on the spot: what tests of the engine run on.

A tokenizer here has one token a character, so texts, tokens and positions are easy to tell.
"""

from __future__ import annotations

import copy
import string
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
PAD, BOS, EOS = 0, 1, 2
ALPHABET = string.ascii_letters + string.digits + " .,?!\n"
ROWS = 80  # more than the 72 tokens: the rows of a real model are padded too
LAYERS = 3
CONTEXT = 96


def tokenizer(alphabet: Sequence[str] = ALPHABET, chat_template: str | None = None) -> PreTrainedTokenizerFast:
    """One token a character; ids follow the alphabet's order."""
    core = Tokenizer(models.WordLevel({c: i for i, c in enumerate((*SPECIAL, *alphabet))}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    core.decoder = decoders.Fuse()
    made = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    made.chat_template = chat_template
    return made


TOKENS = {"vocab_size": ROWS, "pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS}
_SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
}


def llama(**shape: int) -> LlamaForCausalLM:
    return LlamaForCausalLM(LlamaConfig(**TOKENS, **(_SHAPE | shape)))


def qwen3(**shape: int) -> Qwen3ForCausalLM:
    return Qwen3ForCausalLM(Qwen3Config(**TOKENS, **(_SHAPE | {"head_dim": 8} | shape)))


def gpt2() -> GPT2LMHeadModel:
    shape = {"n_embd": 32, "n_layer": LAYERS, "n_head": 4, "n_positions": CONTEXT, "initializer_range": 0.3}
    return GPT2LMHeadModel(GPT2Config(**TOKENS, **shape))


def t5() -> T5ForConditionalGeneration:
    """FLAN-T5's class and shape: gated GELU, its own head, relative positions."""
    shape = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": LAYERS, "num_heads": 4, "initializer_factor": 3.0}
    config = T5Config(
        **TOKENS, **shape, feed_forward_proj="gated-gelu", tie_word_embeddings=False, decoder_start_token_id=PAD
    )
    return T5ForConditionalGeneration(config)


FAMILIES: dict[str, Callable[[], Any]] = {"llama": llama, "qwen3": qwen3, "gpt2": gpt2, "t5": t5}


def build(family: str, seed: int = 0) -> Any:
    """A random model of a family, in float32."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return FAMILIES[family]().eval()


def save(folder: Path, model: Any, its_tokenizer: Any = None, **generation: Any) -> str:
    """Write model and tokenizer as a plan would name them; ``generation`` goes into the model's generation config."""
    for name, value in generation.items():
        setattr(model.generation_config, name, value)
    model.save_pretrained(folder)
    (its_tokenizer or tokenizer()).save_pretrained(folder)
    return str(folder)


def always_wrong(model: Any) -> Any:
    """A draft whose best token is always the one after the target's: never accepted."""
    draft = copy.deepcopy(model)
    head = draft.get_output_embeddings()
    head.weight.data = head.weight.data.roll(1, dims=0)
    return draft


def noisy(model: Any, scale: float = 0.06) -> Any:
    """A draft that often agrees with the target and often does not."""
    draft = copy.deepcopy(model)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(1)
        for parameter in draft.parameters():
            parameter.add_(torch.randn_like(parameter) * scale * parameter.std())
    return draft


def with_rows(model: Any, rows: int) -> Any:
    """The same model with its vocabulary padded (or cut) to ``rows``."""
    padded = copy.deepcopy(model)
    padded.resize_token_embeddings(rows, mean_resizing=False)
    return padded


def reordered(model: Any, alphabet: Sequence[str]) -> Any:
    """The same model for a tokenizer with the alphabet in another order: other ids, the same text."""
    draft = copy.deepcopy(model)
    old, new = tokenizer().get_vocab(), tokenizer(alphabet).get_vocab()
    order = list(range(ROWS))
    for token, i in new.items():
        order[i] = old[token]
    for layer in (draft.get_input_embeddings(), draft.get_output_embeddings()):
        layer.weight.data = layer.weight.data[order]
    return draft
