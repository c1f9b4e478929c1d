"""Generation tasks of lm-eval (the Language Model Evaluation Harness): prompts, filters and metrics by its own code."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import Field

from joulewise.engines.engine import Message
from joulewise.errors import EnvironmentFault, UserError, first_paragraph
from joulewise.reasoning.reasoning import Asked
from joulewise.tasks.rows import TaskContext, TaskOptions, hub_out_of_reach, offline, parse_options
from joulewise.tasks.task import Question, Score, Task
from joulewise.yaml_file import suggest

PREFIX = "lm_eval:"
"""``lm_eval:gsm8k``, or ``lm_eval:my-task.yaml``."""

FEW_SHOT_SEED = 1234
"""Of the examples that are shown: lm-eval's own."""
MAX_NEW_TOKENS = 256
"""Where a task names no budget: lm-eval's own."""
_BUDGETS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""What tasks call it, as lm-eval ranks them."""

_LOCAL = ("json", "csv", "parquet", "text", "arrow")
_GENERATION = "generate_until"
_NOTHING_FOUND = "[invalid]"


class LmEvalOptions(TaskOptions):
    """What a plan may choose.

    Args:
        num_fewshot: answered questions before each; if left out, as many as the task says.
        chat: say descriptions, examples and question as a conversation; else all is one user message.
        filter: which of the task's filters takes the answer out of the text; if left out, the first.
        metric: which of its metrics is the score; if left out, the first that scores single answers.
        category: the field of the data with the question's category.
    """

    num_fewshot: int | None = Field(None, ge=0)
    chat: bool = False
    filter: str | None = None
    metric: str | None = None
    category: str | None = None


@dataclass(frozen=True, slots=True)
class HarnessTask:
    """A ``Task`` of lm-eval.

    Args:
        name, source, max_new_tokens: as in ``Task``.
        items: the questions.
        prompts: what is said, by question id.
        metric: the score's name there.
        binary: whether that is right or wrong.
        stops: the answer ends before the first of these.
        taken_by: the filter's name.
        instances: lm-eval's requests, by question id.
        inner: lm-eval's task.
    """

    name: str
    source: str
    max_new_tokens: int
    items: tuple[Question, ...]
    prompts: Mapping[str, tuple[Message, ...]]
    metric: str
    binary: bool
    stops: tuple[str, ...]
    taken_by: str
    instances: Mapping[str, Any]
    inner: Any
    third_party: bool = True

    def questions(self) -> Sequence[Question]:
        """All questions, in lm-eval's order."""
        return self.items

    def turns(self, question: Question) -> tuple[tuple[Message, ...], ...]:
        """One turn of what lm-eval says."""
        return (self.prompts[question.question_id],)

    def asked(self, question: Question) -> Asked:
        """The turn alone: lm-eval shows examples itself, and finds answers by filters of its own."""
        return Asked(self.turns(question))

    def score(self, question: Question, text: str) -> Score:
        """lm-eval's metric of what its filter takes from the text before the first stop string."""
        try:
            filtered, results = _evaluated(self.inner, self.instances[question.question_id], _cut(text, self.stops))
            value = float(results[self.taken_by][self.metric])
        except Exception as error:  # noqa: BLE001 - others' code: one odd answer must not end a run
            return Score(None, None, None, self.metric, f"lm-eval could not score it ({type(error).__name__})")
        found = filtered[self.taken_by]
        extracted = found if isinstance(found, str) and found != _NOTHING_FOUND else None
        if not 0.0 <= value <= 1.0:
            return Score(None, None, extracted, self.metric, f"lm-eval's {self.metric} is not between 0 and 1")
        note = "no answer found" if found == _NOTHING_FOUND else None
        return Score(value, value == 1.0 if self.binary else None, extracted, self.metric, note)


def harness_label(name: str) -> str:
    """A label for ``lm_eval:...``: the task's name, or the file's."""
    target = name.removeprefix(PREFIX)
    plain = Path(target).stem if target.endswith((".yaml", ".yml")) else target
    return "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in plain).lstrip("._-") or "lm-eval"


def open_harness(name: str, context: TaskContext) -> Task:
    """A generation task of lm-eval, by its name there or by a YAML file.

    Args:
        name: with the prefix.
        context: has the options. The data come from where lm-eval's task says, the hub or files of one's own; paths in
            a YAML file are relative to it.

    Raises:
        UserError: no such task, one that does not generate or that this cannot score, or a wrong option.
        EnvironmentFault: lm-eval is not installed, or its data cannot be had.
    """
    options = parse_options(LmEvalOptions, context, name)
    if find_spec("lm_eval") is None:
        raise EnvironmentFault(
            f"task {name}: needs the package lm-eval, which is not installed: pip install 'joulewise[lm-eval]'"
        )
    with _hushed():
        inner = _load(name)
        if inner.OUTPUT_TYPE != _GENERATION:
            raise _no_generation(name, inner.OUTPUT_TYPE)
        instances = _requests(name, inner, options)
        return _task(name, inner, instances, options)


def _load(name: str) -> Any:
    from lm_eval.tasks import TaskManager

    target = name.removeprefix(PREFIX)
    path = Path(target) if target.endswith((".yaml", ".yml")) else None
    if path is not None and not path.is_file():
        raise UserError(f"task {name}: no file {path}")
    manager = TaskManager(include_defaults=path is None)
    told: Mapping[str, Any] = {}
    if path is None:
        if target not in manager.all_subtasks:
            kind = "a group" if target in manager.all_groups else "a tag" if target in manager.all_tags else None
            if kind is not None:
                raise UserError(f"task {name}: {kind} of several tasks in lm-eval; name each of those you want")
            raise UserError(f"task {name}: lm-eval has no such task{suggest(target, manager.all_subtasks)}")
        told = manager.task_index[target].cfg or {}
        if (kind := told.get("output_type", _GENERATION)) != _GENERATION:
            raise _no_generation(name, kind)
        if told.get("unsafe_code"):
            raise _unsafe(name)
    # A task from a file may be local or not; where the hub is out of reach, its cache may still have the data.
    fault = None if path is not None or told.get("dataset_path") in _LOCAL else hub_out_of_reach()
    try:
        with offline() if fault else contextlib.nullcontext(), contextlib.chdir(path.parent if path else "."):
            (inner,) = manager.load(path.name if path else target)["tasks"].values()
    except Exception as error:  # lm-eval raises whatever its parts raise
        if fault is not None:
            raise EnvironmentFault(f"task {name}: its data could not be fetched from the hub ({fault})") from error
        raise UserError(f"task {name}: lm-eval cannot open it: {first_paragraph(error)}") from error
    return inner


def _no_generation(name: str, kind: object) -> UserError:
    return UserError(
        f"task {name}: lm-eval scores it by '{kind}', not by what a model writes, and only generation tasks "
        f"('{_GENERATION}') can be run; for MMLU there is the task mmlu with `scoring: likelihood`"
    )


def _unsafe(name: str) -> UserError:
    return UserError(
        f"task {name}: its metric runs what the model wrote, in no sandbox; the tasks humaneval and starter-code, and "
        "custom ones with `scorer: code`, run it in one"
    )


def _requests(name: str, inner: Any, options: LmEvalOptions) -> list[Any]:
    """lm-eval's requests, one a question, in its order."""
    if getattr(inner, "UNSAFE_CODE", False):
        raise _unsafe(name)
    if getattr(inner, "MULTIMODAL", False):
        raise UserError(f"task {name}: it shows pictures or sounds, which no engine here takes")
    if options.num_fewshot is not None:
        inner.set_config(key="num_fewshot", value=options.num_fewshot)
    if (inner.config.repeats or 1) != 1:
        raise UserError(f"task {name}: its filters want {inner.config.repeats} samples; use the reasoning `vote`")
    inner.set_fewshot_seed(FEW_SHOT_SEED)
    try:
        inner.build_all_requests(
            apply_chat_template=options.chat,
            fewshot_as_multiturn=options.chat,
            chat_template=_as_it_is if options.chat else None,
        )
    except Exception as error:  # lm-eval raises whatever its parts raise
        raise UserError(f"task {name}: lm-eval cannot write its prompts: {first_paragraph(error)}") from error
    return list(inner.instances)


def _as_it_is(messages: list[dict[str, str]], add_generation_prompt: bool = True) -> list[dict[str, str]]:
    """The messages, in place of a template: the engine applies the model's."""
    return messages


def _task(name: str, inner: Any, instances: Sequence[Any], options: LmEvalOptions) -> Task:
    split = inner.config.test_split or inner.config.validation_split
    ids = [f"{split}-{i}" for i in range(len(instances))]
    prompts, items = {}, []
    for question_id, instance in zip(ids, instances, strict=True):
        context, settings = instance.args[:2]
        messages = [Message("user", context)] if isinstance(context, str) else [_message(m) for m in context]
        prompts[question_id] = tuple(messages)
        category = None if options.category is None else instance.doc.get(options.category)
        if options.category is not None and category is None:
            raise UserError(
                f"task {name}: option 'category': no field '{options.category}' in its data"
                f"{suggest(options.category, sorted(instance.doc))}"
            )
        target = str(inner.doc_to_target(instance.doc))
        items.append(Question(question_id, messages[-1].content, target, None if category is None else str(category)))
    settings = instances[0].args[1]
    until = settings.get("until") or []
    taken_by, metric = _scoring(name, inner, instances[0], options)
    import lm_eval

    return HarnessTask(
        name=name,
        source=f"lm-eval {lm_eval.__version__}, task {inner.config.task} (version {inner.VERSION}), "
        f"{inner.config.num_fewshot or 0} examples shown, {metric} by the filter {taken_by}",
        max_new_tokens=int(next((settings[key] for key in _BUDGETS if settings.get(key)), MAX_NEW_TOKENS)),
        items=tuple(items),
        prompts=prompts,
        metric=metric,
        binary=metric == "exact_match" or metric.startswith("acc") or metric.endswith("_acc"),
        stops=tuple(stop for stop in ([until] if isinstance(until, str) else until) if stop),
        taken_by=taken_by,
        instances=dict(zip(ids, instances, strict=True)),
        inner=inner,
    )


def _message(message: Mapping[str, str]) -> Message:
    return Message(message["role"], message["content"])  # type: ignore[arg-type]


def _scoring(name: str, inner: Any, instance: Any, options: LmEvalOptions) -> tuple[str, str]:
    """The filter and the metric, found out on an empty answer."""
    try:
        _, results = _evaluated(inner, instance, "")
    except Exception as error:  # lm-eval raises whatever its parts raise
        raise UserError(f"task {name}: lm-eval cannot score an answer: {first_paragraph(error)}") from error
    taken_by = options.filter or next(iter(results))
    if taken_by not in results:
        raise UserError(f"task {name}: option 'filter': no filter '{taken_by}'{suggest(taken_by, list(results))}")
    means, better = inner.aggregation(), inner.higher_is_better()
    single = [
        metric
        for metric, value in results[taken_by].items()
        if isinstance(value, int | float)
        and "mean" in getattr(means.get(metric), "__name__", "mean")
        and better.get(metric, True)
    ]
    if not single:
        raise UserError(
            f"task {name}: its metrics ({', '.join(results[taken_by])}) score no single answers, only all of them "
            "together, or call less better; joules per answer need a score of each"
        )
    metric = options.metric or single[0]
    if metric not in single:
        raise UserError(
            f"task {name}: option 'metric': no metric '{metric}' of single answers{suggest(metric, single)}"
        )
    return taken_by, metric


def _evaluated(inner: Any, instance: Any, text: str) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """By filter: what it takes from a text, and lm-eval's metrics of that."""
    instance.resps, instance.filtered_resps = [text], {}
    inner._instances = [instance]
    inner.apply_filters()
    filtered = dict(instance.filtered_resps)
    return filtered, {name: dict(inner.process_results(instance.doc, [taken])) for name, taken in filtered.items()}


def _cut(text: str, stops: Sequence[str]) -> str:
    for stop in stops:
        text = text.partition(stop)[0]
    return text


@contextlib.contextmanager
def _hushed() -> Iterator[None]:
    """Keep lm-eval's bars and advice off the terminal; its errors are raised anyway."""
    logger = logging.getLogger("lm_eval")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)
