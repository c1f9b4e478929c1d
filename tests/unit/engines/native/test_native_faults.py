"""What the engine cannot run is one clear sentence with a way out; what it can run, it runs rightly."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MiniMaxConfig,
    MiniMaxForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    StableLmConfig,
    StableLmForCausalLM,
)

import tiny_heads
import tiny_models
from joulewise.decoding import CoGA, DyGA, Eagle3, Medusa, PromptLookup, Vanilla
from joulewise.decoding.spec import Decoding
from joulewise.engines.engine import Message, Request, Role, Sampling
from joulewise.engines.native import NativeEngine, session
from joulewise.engines.native.accept import Chooser, match
from joulewise.engines.native.check import as_step, reader
from joulewise.engines.native.draft import Draft
from joulewise.engines.native.loop import decode
from joulewise.engines.native.model import DecoderModel
from joulewise.engines.native.session import Captured
from joulewise.engines.native.tree import Tree
from joulewise.engines.spec import NativeSpec, TransformersSpec
from joulewise.engines.transformers import TransformersEngine
from joulewise.engines.transformers.check import Step, next_logits
from joulewise.engines.transformers.loading import make_neutral
from joulewise.errors import ContextLengthError, EnvironmentFault, UserError
from random_trees import PlantedTrees

SHUFFLED = "".join(random.Random(3).sample(tiny_models.ALPHABET, len(tiny_models.ALPHABET)))
SHAPE: dict[str, Any] = tiny_models.TOKENS | {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "initializer_range": 0.3,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_models.save(tmp_path_factory.mktemp("llama"), tiny_models.build("llama"))


def ask(text: str, new: int = 4, role: Role = "user", sampling: Sampling = Sampling()) -> Request:  # noqa: B008
    return Request((Message(role, text),), new, True, sampling)


def load(model: str, decodings: list[Decoding] | None = None, **spec: Any) -> NativeEngine:
    engine = NativeEngine(NativeSpec(**{"model": model, "device": "cpu"} | spec))
    engine.load(decodings or [])
    return engine


def seeded(make: Callable[[], Any]) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make().eval()


# Models that the seam does not reach

UNREACHED: dict[str, tuple[Callable[[], Any], str]] = {
    "encoder-decoder": (tiny_models.t5, "it is an encoder-decoder"),
    "other modules": (tiny_models.gpt2, "not a plain stack of attention layers"),
    "softcap": (
        lambda: Gemma2ForCausalLM(Gemma2Config(**SHAPE, head_dim=8, attn_logit_softcapping=5.0)),
        r"its attention cannot take our mask or cache \(attention with softcap\)",
    ),
    "own cache": (
        lambda: MiniMaxForCausalLM(MiniMaxConfig(**SHAPE, head_dim=8, num_local_experts=2)),
        "its attention cannot take our mask or cache",
    ),
    "own attention": (lambda: StableLmForCausalLM(StableLmConfig(**SHAPE)), "its logits would be off by"),
    "shortest window": (
        lambda: MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=6)),
        "its logits would be off by",
    ),
}


@pytest.mark.parametrize("case", UNREACHED)
def test_a_model_that_the_seam_does_not_reach(case: str, tmp_path: Path) -> None:
    make, reason = UNREACHED[case]
    model = seeded(make)
    name = tiny_models.save(tmp_path, model)
    with pytest.raises(UserError, match=reason) as caught:
        load(name)
    assert str(caught.value).startswith(f"The engine `native` cannot run {name} ({type(model).__name__}): ")
    assert str(caught.value).endswith("Use the engine `transformers` for it.")
    assert "\n" not in str(caught.value)


def test_a_draft_that_the_seam_does_not_reach(folder: str, tmp_path: Path) -> None:
    draft = tiny_models.save(tmp_path, tiny_models.build("gpt2"))
    with pytest.raises(UserError, match=f"cannot run {draft} .*Use the engine `transformers`"):
        load(folder, [CoGA(draft=draft)])


def test_a_model_that_keeps_a_state(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LlamaForCausalLM, "_is_stateful", True)
    with pytest.raises(UserError, match="Use the engine `transformers`"):
        load(folder)


def windowed_mistral() -> Any:
    return MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=24))


def windowed_qwen2() -> Any:
    window = {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}
    return Qwen2ForCausalLM(Qwen2Config(**SHAPE, **window))


@pytest.mark.parametrize("make", [windowed_mistral, windowed_qwen2])
def test_a_window_is_never_overstepped(make: Callable[[], Any], tmp_path: Path) -> None:
    """Within it all tokens see each other; beyond it ours would see more than they may."""
    name = tiny_models.save(tmp_path, seeded(make))
    engine = load(name)
    library = TransformersEngine(TransformersSpec(model=name, device="cpu"))
    library.load([])
    expected = library.generate(ask("abcabcabcabc", 12), Vanilla()).token_ids
    for decoding in (Vanilla(), PromptLookup(tokens=8)):
        assert engine.generate(ask("abcabcabcabc", 12), decoding).token_ids == expected
        with pytest.raises(ContextLengthError, match=r"see 24 tokens back.*may be 25.*the engine `transformers`"):
            engine.generate(ask("abcabcabcabc", 13), decoding)


def test_a_window_that_is_switched_off_is_none(tmp_path: Path) -> None:
    for number, config in enumerate((MistralConfig(**SHAPE, sliding_window=None), Qwen2Config(**SHAPE))):
        model = (MistralForCausalLM if number == 0 else Qwen2ForCausalLM)(config).eval()
        assert DecoderModel(make_neutral("tiny", model, tiny_models.tokenizer())).window is None


def test_a_text_does_not_grow_over_the_change_of_a_models_positions(tmp_path: Path) -> None:
    """The library reads the whole text again there; keys of the first kind would stay in our cache."""
    turn = 300
    rope = {"rope_type": "longrope", "rope_theta": 10_000.0, "original_max_position_embeddings": turn}
    rope |= {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    shape = SHAPE | {"max_position_embeddings": 1200, "original_max_position_embeddings": turn}
    name = tiny_models.save(tmp_path, seeded(lambda: Phi3ForCausalLM(Phi3Config(**shape, rope_parameters=rope))))
    engine = load(name)
    library = TransformersEngine(TransformersSpec(model=name, device="cpu"))
    library.load([])
    for text in ("ab" * 10, "ab" * (turn // 2) + "c"):
        expected = library.generate(ask(text, 12), Vanilla()).token_ids
        for decoding in (Vanilla(), PromptLookup(tokens=8)):
            assert engine.generate(ask(text, 12), decoding).token_ids == expected
    for text in ("ab" * 30, "ab" * (turn // 2)):
        with pytest.raises(ContextLengthError, match=f"over {turn} tokens with other positions.*`transformers`"):
            engine.generate(ask(text, 12), Vanilla())


def test_a_draft_beyond_the_context_does_not_change_the_positions(tmp_path: Path) -> None:
    """Dynamic RoPE changes its frequencies there, for all that is read in the same forward and later."""
    rope = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}
    name = tiny_models.save(tmp_path, seeded(lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, rope_parameters=rope))))
    engine = load(name)
    library = TransformersEngine(TransformersSpec(model=name, device="cpu"))
    library.load([])
    text, new = "ab" * 40, tiny_models.CONTEXT - 80
    expected = library.generate(ask(text, new), Vanilla()).token_ids
    target = engine._ready(Vanilla()).target
    prompt = torch.tensor(target.loaded.tokenizer(text)["input_ids"])
    for seed in range(3):
        trees = PlantedTrees(expected, tiny_models.ROWS, random.Random(seed), 20, 1.0)
        with torch.inference_mode():
            decoded = decode(target, trees, prompt, new, (), match, Chooser(Sampling()))
        assert decoded.tokens == expected
        assert sum(trees.planted) > 0


def test_a_layer_that_is_not_there_cannot_be_tapped() -> None:
    loaded = make_neutral("tiny", tiny_models.build("llama"), tiny_models.tokenizer())
    with pytest.raises(UserError, match="Layer 3 of tiny is to be tapped, which has 3"):
        DecoderModel(loaded, (0, 3))


# Drafts


def test_a_draft_with_another_tokenizer(folder: str, tmp_path: Path) -> None:
    other = tiny_models.reordered(tiny_models.build("llama"), SHUFFLED)
    draft = tiny_models.save(tmp_path, other, tiny_models.tokenizer(SHUFFLED))
    with pytest.raises(UserError, match=f"{draft} has another tokenizer than {folder}.* `transformers`"):
        load(folder, [CoGA(draft=draft)])


@pytest.mark.parametrize(("target_rows", "draft_rows"), [(80, 73), (73, 80)])
def test_padding_of_the_vocabulary_is_not_another_tokenizer(tmp_path: Path, target_rows: int, draft_rows: int) -> None:
    model = tiny_models.build("llama")
    target = tiny_models.save(tmp_path / "target", tiny_models.with_rows(model, target_rows))
    draft = tiny_models.save(tmp_path / "draft", tiny_models.with_rows(model, draft_rows))
    decodings: list[Decoding] = [CoGA(tokens=4), DyGA(tokens=3), DyGA(tokens=6, rule="confidence", threshold=0.2)]
    engine = load(target, decodings, draft=draft)
    beyond = False
    for prompt in ("What is 17 and 25?", "The cat sat. The cat"):
        vanilla = engine.generate(ask(prompt, 24), Vanilla())
        for decoding in decodings:
            generation = engine.generate(ask(prompt, 24), decoding)
            assert generation.token_ids == vanilla.token_ids
        # The draft is the target; only a token in rows that the draft lacks makes it err, and what comes after that.
        known = all(token < min(target_rows, draft_rows) for token in vanilla.token_ids)
        whole = engine.generate(ask(prompt, 24), decodings[0])
        assert (whole.accepted == whole.drafted) == known
        beyond |= not known
        hot = Sampling(temperature=1.0)
        sampled = [engine.generate(ask(prompt, 24, sampling=hot), decodings[0]).token_ids for _ in range(2)]
        assert sampled[0] == sampled[1]
    assert beyond == (target_rows > draft_rows)


def test_the_drafts_context_counts_too(folder: str, tmp_path: Path) -> None:
    short = tiny_models.build("llama")
    short.config.max_position_embeddings = 32
    draft = tiny_models.save(tmp_path, short)
    decoding = CoGA(draft=draft)
    engine = load(folder, [decoding])
    assert engine.generate(ask("ab" * 15, 8), Vanilla()).output_tokens == 8
    with pytest.raises(ContextLengthError, match=f"{draft} has 32"):
        engine.generate(ask("ab" * 15, 8), decoding)


def test_the_context_is_checked_to_the_token(folder: str) -> None:
    decodings: list[Decoding] = [CoGA(tokens=8, draft="first-layers:3"), PromptLookup(tokens=8)]
    engine = load(folder, decodings)
    for decoding in [Vanilla(), *decodings]:
        fits = engine.generate(ask("ab" * 40, tiny_models.CONTEXT - 80), decoding)
        assert fits.prompt_tokens + fits.output_tokens == tiny_models.CONTEXT
        with pytest.raises(ContextLengthError, match=r"80 prompt tokens and 17 new ones need 97 positions.* has 96"):
            engine.generate(ask("ab" * 40, tiny_models.CONTEXT - 79), decoding)


# Refusals and the engine's life


class Wishful(Decoding):
    """A decoding that no engine knows."""

    kind: str = "wishful"


def test_refusals_have_a_reason(folder: str) -> None:
    engine = NativeEngine(NativeSpec(model=folder))
    assert engine.refuses(Vanilla()) is None
    assert engine.refuses(PromptLookup()) is None
    assert engine.refuses(CoGA(draft="first-layers:2", synthetic_acceptance=0.5)) is None
    assert "needs a draft model" in str(engine.refuses(CoGA()))
    assert "needs a draft model" in str(engine.refuses(DyGA()))
    assert "wishful" in str(engine.refuses(Wishful()))
    assert "first-layers:N" in str(engine.refuses(CoGA(draft="first-layers:0")))
    for head in (Medusa(), Eagle3()):
        reason = str(engine.refuses(head))
        assert f"{head.label} needs a head" in reason
        assert f"heads: {{{head.kind}: ...}}" in reason
    assert NativeEngine(NativeSpec(model=folder, heads={"medusa": "some"})).refuses(Medusa()) is None
    with pytest.raises(UserError, match="needs a draft model"):
        load(folder, [CoGA()])
    with pytest.raises(UserError, match="needs a head"):
        load(folder, [Medusa()])


def test_opening_refusing_and_a_dry_run_load_no_torch(folder: str, tmp_path: Path) -> None:
    plan, head = tmp_path / "plan.yaml", tiny_heads.write(tmp_path / "head", tiny_heads.medusa(1))
    plan.write_text(
        f"name: small\nengines: [{{kind: native, model: {folder}, draft: first-layers:1, heads: {{medusa: random}}}}]\n"
        "decodings: [vanilla, {kind: coga, tokens: 2}, {kind: medusa, synthetic_acceptance: 0.5},\n"
        f"  {{kind: medusa, head: {head}, tree: [[0]]}}]\n"
        "tasks: [starter]\n"
    )
    code = (
        "import sys\n"
        "from joulewise.cli.main import app\n"
        f"app(['run', {str(plan)!r}, '--dry-run'], standalone_mode=False)\n"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Nothing was run." in done.stdout


def test_generating_before_loading_and_after_closing(folder: str) -> None:
    engine = NativeEngine(NativeSpec(model=folder))
    with pytest.raises(RuntimeError, match="load"):
        engine.generate(ask("abc"), Vanilla())
    engine.close()
    engine.load([])
    assert engine.generate(ask("abc"), Vanilla()).output_tokens == 4
    with pytest.raises(RuntimeError, match="load"):
        engine.generate(ask("abc"), CoGA(draft="first-layers:1"))
    engine.close()
    engine.close()
    with pytest.raises(RuntimeError, match="load"):
        engine.generate(ask("abc"), Vanilla())


def test_an_empty_prompt(folder: str) -> None:
    with pytest.raises(UserError, match="no tokens"):
        load(folder).generate(ask(""), Vanilla())


def test_no_memory_left(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = load(folder)

    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    with monkeypatch.context() as patch:
        patch.setattr(DecoderModel, "new_cache", full)
        with pytest.raises(EnvironmentFault, match=r"No memory is left on cpu for 3 prompt and 4 new .*\(vanilla\)"):
            engine.generate(ask("abc"), Vanilla())
    assert engine.generate(ask("abc"), Vanilla()).output_tokens == 4


def test_what_cannot_be_captured_for_lack_of_memory_is_told_in_the_record(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    assert load(folder).generate(ask("abc"), Vanilla()).note is None
    with monkeypatch.context() as patch:
        patch.setattr(session, "Eager", lambda model, capacity: Captured(model, capacity, full))
        engine = NativeEngine(NativeSpec(model=folder, device="cpu"))
        with pytest.warns(RuntimeWarning, match="No memory is left to capture a forward"):
            info = engine.load([Vanilla()])
        with pytest.warns(RuntimeWarning, match="No memory is left to capture a forward"):
            generation = engine.generate(ask("abc"), Vanilla())
    told = f"no memory was left to capture a forward of {folder} over 1 tokens: from then on it runs uncaptured"
    assert [note for note in info.notes if "capture" in note] == [f"{told}, which is slower"]
    assert generation.note == f"{told}, which is slower"


def test_info_says_what_ran(folder: str) -> None:
    engine = NativeEngine(NativeSpec(model=folder, draft="first-layers:1", dtype="bfloat16", device="cpu"))
    info = engine.load([Vanilla(), CoGA(tokens=2), PromptLookup()])
    assert (info.engine, info.model, info.model_class) == ("native", folder, "LlamaForCausalLM")
    assert (info.dtype, info.devices, info.context_length) == ("bfloat16", ("cpu",), tiny_models.CONTEXT)
    assert set(info.drafts) == {"coga-2"}
    assert "attention: masked, on a preallocated cache" in info.notes
    assert [note for note in info.notes if note.startswith("kernels")] == ["kernels: torch's"]


# The control of design rule 4


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_the_reader_sees_what_the_librarys_forwards_see(family: str) -> None:
    plain = make_neutral("tiny", tiny_models.build(family), tiny_models.tokenizer())
    model = DecoderModel(make_neutral("tiny", tiny_models.build(family), tiny_models.tokenizer()))
    prompt = torch.tensor([[9, 30, 5, 41, 7]])
    tokens = [11, 52, 8, 8, 23, 60, 35, 4, 17, 29]
    ways = [
        [Step(0, 0)] * 10,
        [Step(9, 9)],
        [Step(3, 3)] * 3,
        [Step(7, 7)] * 2,  # past the end of the output
        [Step(3, 1)] * 5,
        [Step((52, 40, 40), 1), Step((8, 23, 9), 2), Step((60, 1, 1), 1), Step((4, 4, 4), 2)],
    ]
    trees = [
        Step((52, 50, 50), 1, (0, 0, 1)),
        Step((8, 23, 60, 3, 3), 3, (0, 1, 2, 2, 1)),
        Step((4, 17, 9), 2, (0, 1, 0)),
    ]
    with torch.inference_mode():
        for index in (0, 1, 4, 9):
            for steps in ways:
                expected = next_logits(plain, prompt, tokens, index, steps)
                found = reader(model)(model.loaded, prompt, tokens, index, steps)
                torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
            found = reader(model)(model.loaded, prompt, tokens, index, [Step(0, 0), *trees])
            expected = next_logits(plain, prompt, tokens, index, [Step(0, 0)] * 10)
            torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
        with pytest.raises(ValueError, match="output token 9"):
            reader(model)(model.loaded, prompt, tokens, 9, [Step(0, 0)])


def test_a_round_is_replayed_with_its_accepted_nodes_in_front() -> None:
    """The tree 0 - (1, 2), 1 - 3, 2 - (4, 5), 5 - 6, of which 2, 5 and 6 were accepted."""
    tree = Tree.of(torch.tensor([0, 0, 0, 1, 2, 2, 5]), 3)
    step = as_step(Draft(torch.tensor([11, 12, 13, 14, 15, 16]), tree), [2, 5, 6])
    assert step == Step([12, 15, 16, 11, 13, 14], 3, [0, 1, 2, 0, 4, 1])


def test_a_wrong_token_is_found_and_a_lossy_decoding_is_not_judged(folder: str) -> None:
    engine = load(folder)
    request = ask("The cat sat.", 12)
    tokens = list(engine.generate(request, Vanilla()).token_ids)
    wrong = [*tokens[:7], (tokens[7] + 1) % tiny_models.ROWS, *tokens[8:]]
    decoding = PromptLookup(tokens=4)
    assert engine.check_lossless(request, decoding, tokens, tokens).status == "identical"
    check = engine.check_lossless(request, decoding, tokens, wrong)
    assert (check.status, check.first_difference) == ("different", 7)
    assert check.gap is not None
    assert check.gap > 0
    assert check.control is not None
    assert check.control < 1e-3
    assert engine.check_lossless(request, decoding, tokens, tokens[:-1]).status == "different"
    sampled = ask("The cat sat.", 12, sampling=Sampling(temperature=1.0))
    assert engine.check_lossless(sampled, decoding, tokens, wrong).status == "not_checked"
    typical = Medusa(acceptance="typical")
    assert engine.check_lossless(request, typical, tokens, wrong).note == f"{typical.label} is lossy"
