"""``joulewise heads``: train a draft head or a small draft model for a target, and check one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from joulewise.cli.named_file import named_file
from joulewise.errors import UserError

if TYPE_CHECKING:
    import threading

    from joulewise.engines.transformers.loading import Loaded

Kind = Literal["medusa", "eagle2", "eagle3", "draft"]
DType = Literal["auto", "float32", "bfloat16", "float16"]

TOKENS = 2_000_000
ANSWER_TOKENS = 384

heads = typer.Typer(
    help="Train draft heads and small draft models for a target, and check them.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _named(
    option: str, wanted: str = "the folder's name", kind: type[str | Path] = Path
) -> Callable[[str], str | Path]:
    """A parser that refuses a name of no characters, which as a path would be the current folder."""

    def parse(text: str) -> str | Path:
        named_file(text, option, wanted)
        return kind(text)

    return parse


Target = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="The model to draft for: default, a hub name, or a folder.",
        parser=_named("TARGET", "default, a hub name, or a folder", str),
    ),
]
Minutes = Annotated[
    float | None,
    typer.Option("--minutes", min=0.0, help="Stop after so many minutes; the same command goes on.", metavar="M"),
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Of all chance.", metavar="N")]
Prompts = Annotated[
    Path | None,
    typer.Option(
        "--prompts",
        metavar="FILE",
        help="Prompts: JSON Lines with a field prompt, question, text, turns or messages, or a text with one a line.",
        parser=_named("--prompts", "the file's name"),
    ),
]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.", metavar="NAME")]
DTypeOption = Annotated[
    DType, typer.Option("--dtype", metavar="NAME", help="Of the target: auto is bfloat16 on a GPU, float32 on a CPU.")
]
Tokens = Annotated[
    int, typer.Option("--tokens", min=1, metavar="N", help="Answer tokens to have in the data before it is enough.")
]
MaxNewTokens = Annotated[int, typer.Option("--max-new-tokens", min=1, metavar="N", help="Tokens of an answer at most.")]


@heads.command("data", short_help="Let a target write the texts to train on.")
def data(
    target: Target,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The folder of the data.", metavar="DIR", parser=_named("--out"))
    ],
    prompts: Prompts = None,
    exclude: Annotated[
        Path | None,
        typer.Option(
            "--exclude",
            metavar="FILE",
            help="Prompts to keep out, such as those of a benchmark.",
            parser=_named("--exclude", "the file's name"),
        ),
    ] = None,
    tokens: Tokens = TOKENS,
    minutes: Minutes = None,
    max_new_tokens: MaxNewTokens = ANSWER_TOKENS,
    batch: Annotated[
        int | None,
        typer.Option("--batch", min=1, metavar="N", help="Texts at once. Default: 1024 on a GPU, 16 on a CPU."),
    ] = None,
    seed: Seed = 0,
    device: Device = "auto",
    dtype: DTypeOption = "auto",
) -> None:
    """Let a target write the texts that its heads are trained on: its own greedy answers.

    It answers the prompts of --prompts, and then user turns that it makes up itself behind its chat prefix, until the
    folder holds --tokens answer tokens. Prompts and answers that are there already are left out; one text in 25 is
    held out. The same command goes on after a stop or a kill, which costs one batch at most.

    Ctrl-C ends it after the batch in flight (twice: at once), with exit code 130.
    """
    started_s = time.monotonic()
    _write(target, out, prompts, exclude, tokens, minutes, max_new_tokens, batch, seed, device, dtype, started_s)


def _write(
    target: str,
    out: Path,
    prompts: Path | None,
    exclude: Path | None,
    tokens: int,
    minutes: float | None,
    max_new_tokens: int | None,
    batch: int | None,
    seed: int,
    device: str,
    dtype: DType,
    started_s: float,
    require: Callable[[Loaded], None] = lambda _: None,
) -> bool:
    """Write texts; whether there are enough. ``require`` is asked before anything is written."""
    from joulewise.engines.native.training.files import alone_in
    from joulewise.engines.native.training.write import Writing, read_prompts, write_texts

    given = read_prompts(prompts) if prompts else []
    taboo = read_prompts(exclude) if exclude else []
    loaded = _load(target, dtype, device)
    require(loaded)
    how = Writing(
        tokens=tokens,
        max_new_tokens=max_new_tokens or min(ANSWER_TOKENS, (loaded.context_length or 1 << 30) // 2),
        batch=batch or (1024 if loaded.model.device.type == "cuda" else 16),
        seed=seed,
        deadline_s=_deadline(started_s, minutes),
    )
    origin, say = prompts.name if prompts else None, _teller("data")
    with alone_in(out), _stoppable("batch", "finished batches are kept") as stop:
        writer = write_texts(loaded, out, how, given, origin, taboo, say, stop.is_set)
    there = f"{out} holds {writer.texts:,} texts with {writer.answer_tokens:,} answer tokens"
    enough = writer.answer_tokens >= tokens
    typer.echo(there + ("." if enough else f" of {tokens:,}: go on with the same command, or with more prompts."))
    if stop.is_set():
        typer.echo("Stopped; finished batches are kept, and the same command goes on.", err=True)
        raise typer.Exit(130)
    return enough


@heads.command("train", short_help="Train a head or a draft model for a target.")
def train(
    target: Target,
    kind: Annotated[Kind, typer.Option("--kind", metavar="KIND", help="What to train: medusa, eagle2, eagle3, draft.")],
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="The folder of the head or draft.", metavar="DIR", parser=_named("--out")),
    ],
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="DIR",
            help="What `joulewise heads data` wrote. Default: DIR/data, written first.",
            parser=_named("--data"),
        ),
    ] = None,
    minutes: Minutes = None,
    epochs: Annotated[int, typer.Option("--epochs", min=1, metavar="N", help="Passes over the data.")] = 3,
    lr: Annotated[float, typer.Option("--lr", min=0.0, metavar="RATE", help="The highest learning rate.")] = 5e-4,
    batch_tokens: Annotated[int, typer.Option("--batch-tokens", min=16, metavar="N", help="Tokens of a step.")] = 8192,
    draft_rows: Annotated[
        int,
        typer.Option("--draft-rows", min=0, metavar="N", help="EAGLE-3: its vocabulary, the most frequent; 0: all."),
    ] = 16384,
    own_output: Annotated[
        bool, typer.Option("--own-output", help="EAGLE-3: train an output matrix of its own instead of the target's.")
    ] = False,
    unroll: Annotated[
        int | None,
        typer.Option("--unroll", min=1, metavar="N", help="EAGLE: steps on its own output. Default: 7; EAGLE-2: 1."),
    ] = None,
    feature_weight: Annotated[
        float,
        typer.Option("--feature-weight", min=0.0, metavar="W", help="EAGLE-2: of the feature regression."),
    ] = 10.0,
    medusa_heads: Annotated[int, typer.Option("--medusa-heads", min=1, metavar="N", help="Medusa: how many.")] = 4,
    draft_layers: Annotated[int, typer.Option("--draft-layers", min=1, metavar="N", help="Draft: its layers.")] = 2,
    without_embeddings: Annotated[
        bool,
        typer.Option(
            "--without-embeddings", help="Draft: publish its layers alone; the target lends embeddings and tokenizer."
        ),
    ] = False,
    tokens: Tokens = TOKENS,
    seed: Seed = 0,
    device: Device = "auto",
    dtype: DTypeOption = "auto",
) -> None:
    """Distil a Medusa, EAGLE-2 or EAGLE-3 head or a small draft model from text that the target itself wrote.

    The head is published at the end and whenever --minutes are over, as config.json and model.safetensors, with
    recipe.json beside them; a draft is an ordinary folder of Transformers. The same command goes on with a training
    that was stopped or killed, from the folder training in it, which nobody needs once it is finished.

    Ctrl-C ends it after the step in flight, which is saved and published (twice: at once, and the steps since the last
    checkpoint are lost), with exit code 130.
    """
    started_s = time.monotonic()
    from joulewise.engines.native.training.data import is_there, open_texts
    from joulewise.engines.native.training.files import alone_in
    from joulewise.engines.native.training.students import Recipe, require_fits
    from joulewise.engines.native.training.train import agreement
    from joulewise.engines.native.training.train import train as train_head

    if lr <= 0:
        raise UserError("--lr must be above 0.")
    recipe = Recipe(
        kind=kind,
        epochs=epochs,
        lr=lr,
        batch_tokens=batch_tokens,
        seed=seed,
        medusa_heads=medusa_heads,
        draft_layers=draft_layers,
        without_embeddings=without_embeddings,
        draft_rows=draft_rows,
        own_output=own_output,
        steps=unroll,
        feature_weight=feature_weight,
    )
    require = partial(require_fits, recipe)
    texts_folder = data or out / "data"
    if is_there(out):
        raise UserError(f"{out} holds texts, and a head would lie among them: name another --out.")
    if data is not None and not is_there(data):
        raise UserError(f"{data} holds no texts: write some with `joulewise heads data {target} --out {data}`.")
    enough = data is not None or (is_there(texts_folder) and open_texts(texts_folder).answer_tokens >= tokens)
    if not enough and not _write(
        target, texts_folder, None, None, tokens, minutes, None, None, seed, device, dtype, started_s, require
    ):
        return
    loaded = _load(target, dtype, device)
    require(loaded)
    texts = open_texts(texts_folder, loaded)
    deadline_s, lost = _deadline(started_s, minutes), "the steps since the last checkpoint are lost"
    with alone_in(out), _stoppable("step", lost) as stop:
        trained = train_head(recipe, loaded, texts, out, deadline_s, say=_teller("train"), stopped=stop.is_set)
    held_out = trained.report["held_out"]
    typer.echo(f"{out}: {trained.report['what']}, {trained.report['parameters_trained']:,} parameters trained.")
    if held_out:
        typer.echo(f"Held-out texts: loss {held_out['loss']:.3f}; {agreement(held_out['agreement'])}.")
    if not trained.finished:
        typer.echo(f"Stopped at step {trained.step} of {trained.steps}; the same command goes on.")
    if trained.step:
        prompts = f"--data {texts_folder}" if len(texts.where(held_out=True)) else "--prompts FILE"
        typer.echo(f"Check it: joulewise heads check {out} {target} {prompts}")
    if stop.is_set() and not trained.finished:
        raise typer.Exit(130)


@heads.command("check", short_help="Tell the acceptance of a head or draft on prompts.")
def check(
    head: Annotated[
        str,
        typer.Argument(
            metavar="HEAD",
            help="A head or draft model: a folder, file or hub name.",
            parser=_named("HEAD", "a folder, file or hub name", str),
        ),
    ],
    target: Target,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="DIR", help="Take the held-out prompts of this data.", parser=_named("--data")),
    ] = None,
    prompts: Prompts = None,
    kind: Annotated[
        Kind | None, typer.Option("--kind", metavar="KIND", help="What it is. Default: told by its files.")
    ] = None,
    questions: Annotated[int, typer.Option("--questions", min=1, metavar="N", help="Prompts at most.")] = 40,
    max_new_tokens: MaxNewTokens = 256,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json", metavar="FILE", help="Write all figures there too.", parser=_named("--json", "the file's name")
        ),
    ] = None,
    device: Device = "auto",
    dtype: DTypeOption = "auto",
) -> None:
    """Tell how many tokens a round keeps with a head or draft, through the engine `native`, greedily.

    Mean acceptance length counts the target's own token; the first token of an output, which the prefill gives, belongs
    to no round. Repetition flatters every draft, so outputs with less than 10 % repeated 8-grams are told apart, and
    prompt lookup stands beside. Intervals are 95 %, a bootstrap over the outputs, from 5 of them on; below 20 it warns.

    Exit codes: 0; 1 where no more than 1.3 tokens a round are kept; 2 wrong input.
    """
    from joulewise.engines.native.training.check import GATE, gate, kind_of
    from joulewise.engines.native.training.check import check as check_head
    from joulewise.engines.native.training.data import open_texts
    from joulewise.engines.native.training.files import write_json
    from joulewise.engines.native.training.write import read_prompts
    from joulewise.engines.transformers.prompts import encode
    from joulewise.report.heads import as_json, table, warnings

    if (data is None) == (prompts is None):
        raise UserError("Name prompts to check on: either --data, for its held-out ones, or --prompts.")
    if json_file is not None and not json_file.parent.is_dir():
        raise UserError(f"--json {json_file}: there is no folder {json_file.parent}; make it, or name another file.")
    if json_file is not None and json_file.is_dir():
        raise UserError(f"--json {json_file} is a folder; give the file's name.")
    given = read_prompts(prompts)[:questions] if prompts else []
    its_kind = kind or kind_of(head)
    loaded = _load(target, dtype, device)
    if data is not None:
        chosen = open_texts(data, loaded).held_out_prompts(questions)
        if not chosen:
            raise UserError(f"{data} holds no held-out text yet: write more of it, or name --prompts.")
    else:
        chosen = [encode(loaded, messages)[0] for messages in given]
    room = loaded.context_length
    if room is not None and any(len(prompt) + max_new_tokens > room for prompt in chosen):
        raise UserError(f"A prompt and {max_new_tokens} new tokens exceed the {room} positions of {target}.")
    checked = check_head(head, its_kind, loaded, chosen, max_new_tokens, _teller("check"))
    typer.echo(table(checked))
    for warning in warnings(checked, GATE):
        typer.echo(warning, err=True)
    fault = gate(checked)
    if json_file is not None:
        about = {"head": head, "kind": its_kind, "target": target, "prompts": (data or prompts or Path()).name}
        write_json(json_file, as_json(checked, GATE, **about, max_new_tokens=max_new_tokens, fault=fault))
    if fault:
        typer.echo(f"Below the gate: {fault}.", err=True)
        raise typer.Exit(1)


def _load(target: str, dtype: DType, device: str) -> Loaded:
    from importlib.util import find_spec

    from joulewise.errors import EnvironmentFault

    if find_spec("torch") is None or find_spec("transformers") is None:
        raise EnvironmentFault("Heads need torch and transformers: pip install 'joulewise[transformers]'.")
    from joulewise.engines.transformers.loading import load

    return load(target, None, dtype, device)


@contextmanager
def _stoppable(unit: str, left: str) -> Iterator[threading.Event]:
    """An event that Ctrl-C sets, to stop after the ``unit`` in flight; a second one ends at once and tells ``left``."""
    from joulewise.stopping import stop_on_signal

    try:
        with stop_on_signal(unit) as stop:
            yield stop
    except KeyboardInterrupt:
        typer.echo(f"Stopped in the middle of a {unit}; {left}; the same command goes on.", err=True)
        raise typer.Exit(130) from None


def _deadline(started_s: float, minutes: float | None) -> float:
    return float("inf") if minutes is None else started_s + 60 * minutes


def _teller(stage: str) -> Callable[[str], None]:
    def say(line: str) -> None:
        typer.echo(f"[{stage}] {line}", err=True)

    return say
