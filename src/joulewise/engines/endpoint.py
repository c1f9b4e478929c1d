"""Engine ``endpoint``: a model in a server, one request after the other, through its OpenAI-compatible API."""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
import urllib.parse
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import psutil

from joulewise.decoding.spec import Decoding
from joulewise.energy.part import Part
from joulewise.energy.sources import nvml, prometheus
from joulewise.engines.endpoint_spec import EndpointSpec
from joulewise.engines.engine import (
    THINKING_SWITCH,
    EngineInfo,
    Generation,
    LosslessCheck,
    Message,
    Request,
)
from joulewise.engines.servers import open_recipe
from joulewise.engines.servers.counters import Asked
from joulewise.engines.servers.served import Served, meet, shown, start, wait_until_loaded
from joulewise.engines.servers.server import Launch, ServerRecipe, gpu_environment
from joulewise.engines.serving import Counted, Sending
from joulewise.errors import ContextLengthError, EnvironmentFault, JoulewiseError, ServerError, UserError

if find_spec("aiohttp") is None:
    raise EnvironmentFault("The engine `endpoint` needs aiohttp: pip install 'joulewise[endpoint]'")

from joulewise.engines.endpoint_request import Api, body_of, generation_of
from joulewise.engines.openai_api.answer import Answer
from joulewise.engines.openai_api.client import Endpoint, Patience, ask, list_models, open_session
from joulewise.engines.openai_api.errors import EndpointError, Refused, WrongAddress

if TYPE_CHECKING:
    from joulewise.energy.source import SourceSpec

MOST_DEATHS = 2
"""A server that has ended so often is not started again."""

BY_TEXT = "the server does not tell token ids: outputs are compared by their text"
IN_BLOCKS = (
    "the servers of its decodings ran one after the other, in blocks, and not interleaved: drift in temperature and "
    "clocks does not fall on all alike; more `repeats` make them take turns"
)
SIDE_BY_SIDE = "the servers of its decodings ran side by side, those that were not asked idle"
ELSEWHERE = "the server runs on another machine, and no meter is there"
ONLY_GPUS = "the server's machine tells the joules of its GPUs alone"
NO_USAGE = (
    "The server sent no usage, so the tokens of its answers are not known, and under load they are not counted here: "
    "take a server that tells them (`stream_options: {include_usage: true}`)"
)
COUNTED_HERE = "the server sent no usage: its tokens were counted here, by a tokenizer"

_SHORTEST = Request((Message("user", "1"),), max_new_tokens=1)
_LIST = Patience(first_s=30.0, idle_s=30.0)
_Result = TypeVar("_Result")


class EndpointEngine:
    """See the module. The spec says where the server is, or what to start."""

    def __init__(self, spec: EndpointSpec) -> None:
        self._spec = spec
        self._servers: dict[str, Served] = {}
        self._deaths: dict[str, list[str]] = {}
        self._current: Served | None = None
        self._loop: _Loop | None = None
        self._api: Api | None = None
        self._note: str | None = None
        self._folder: Path | None = None
        self._first: Decoding | None = None
        self._tell: Callable[[str], None] = lambda _: None
        self._order: list[str] = []

    def attach(self, folder: Path, first: Decoding, tell: Callable[[str], None]) -> None:
        """See ``Serving``."""
        self._folder, self._first, self._tell = folder, first, tell

    def refuses(self, decoding: Decoding) -> str | None:
        """What the server has not, by its true name."""
        spec = self._spec
        if spec.server is None:
            if decoding.label in spec.addresses:
                return None
            return (
                f"a server that runs already speculates as it was started, and no address is given for {decoding.label}"
                f" (`url: {{{decoding.label}: http://...}}`)"
            )
        recipe = open_recipe(spec.server.kind)
        if reason := recipe.lacks.get(decoding.kind):
            return reason
        if decoding.kind not in recipe.ways:
            return f"nobody has told Joulewise how {recipe.name} does it"
        if reason := recipe.refuses(decoding, spec.server):
            return reason
        if (decoding.needs_draft or decoding.needs_head) and self._speculator(decoding) is None:
            key = "draft" if decoding.needs_draft else f"heads: {{{decoding.kind}: ...}}"
            return f"nothing is named that drafts; name it with `{key}` of the engine, as {recipe.name} names models"
        return None

    def _speculator(self, decoding: Decoding) -> str | None:
        if decoding.needs_draft:
            return decoding.draft or self._spec.draft
        if decoding.needs_head:
            heads: Mapping[Any, str] = self._spec.heads
            return getattr(decoding, "head", None) or heads.get(decoding.kind)
        return None

    def load(self, decodings: Sequence[Decoding]) -> EngineInfo:
        """Start the servers, or meet them. See ``Engine``."""
        spec = self._spec
        self._order = [decoding.label for decoding in decodings]
        self._loop = self._loop or _Loop()
        if spec.server is not None and (reason := open_recipe(spec.server.kind).missing(spec.server)):
            raise EnvironmentFault(f"The server of {spec.label} cannot be started: {reason}")
        try:
            self._open_all(sorted(decodings, key=lambda decoding: decoding != self._first))
        except JoulewiseError:
            self.close()
            raise
        return self._info(decodings)

    def _open_all(self, decodings: Sequence[Decoding]) -> None:
        """All servers, or the first that comes up; Trials of those that do not fail, and say why.

        Raises:
            ServerError: none comes up.
        """
        faults = []
        for decoding in decodings:
            try:
                self._servers[decoding.label] = self._open(decoding)
            except ServerError as error:
                faults.append(error)
                self._deaths.setdefault(decoding.label, []).append(str(error))
                self._tell(f"{decoding.label} did not come up")
                continue
            if self._spec.one_at_a_time:
                return
        if not self._servers:
            raise faults[0]

    def _open(self, decoding: Decoding) -> Served:
        spec = self._spec
        if spec.server is None:
            return self._met(decoding)
        launch = self._launch(decoding)
        recipe = open_recipe(spec.server.kind)
        gpus = gpu_environment(spec.gpus, recipe.gpu_count(spec.server), len(nvml.local_uuids()))
        return start(recipe, launch, {**os.environ, **gpus}, self._log(decoding), self._tell)

    def _launch(self, decoding: Decoding) -> Launch:
        server = self._spec.server
        assert server is not None
        port = server.port or 0
        if port and not self._spec.one_at_a_time:
            port += self._order.index(decoding.label)
        return Launch(server, decoding, self._speculator(decoding), port, self._spec.model)

    def _log(self, decoding: Decoding) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="joulewise-servers-"))
        return self._folder / f"{self._spec.label}-{decoding.label}.log".replace("/", "_")

    def _met(self, decoding: Decoding) -> Served:
        base, key = self._spec.addresses[decoding.label], self._spec.key()
        endpoint = self._endpoint(base)
        wait_until_loaded(base, key, self._spec.timeout_s, self._tell)
        there: Mapping[str, Any] | None = None
        with suppress(WrongAddress):
            there = self._run(lambda session: list_models(session, endpoint, _LIST))
        if there and self._spec.model not in there:
            names = ", ".join(sorted(there)[:10])
            raise UserError(f"{base}: the server has no model {self._spec.model}; it lists {names}")
        served = meet(decoding, base, key)
        if there is None:
            self._answer(served, _SHORTEST)  # nor does any web server list models: this one is to answer once
        return served

    def _endpoint(self, base: str) -> Endpoint:
        return Endpoint(base, self._spec.model, self._spec.key())

    def _run(self, asking: Callable[[Any], Coroutine[Any, Any, _Result]]) -> _Result:
        assert self._loop is not None
        return self._loop.run(asking)

    def _info(self, decodings: Sequence[Decoding]) -> EngineInfo:
        spec = self._spec
        served = next(iter(self._servers.values()))
        recipe, about = served.recipe, served.about
        notes = [BY_TEXT]
        if len(decodings) > 1 and spec.server is not None:
            notes.append(IN_BLOCKS if spec.one_at_a_time else SIDE_BY_SIDE)
        cache = {True: "on: repeated prompts cost less", False: "off", None: "not told by the server"}
        notes.append(f"prefix caching: {cache[about.prefix_cache]}")
        if spec.server is not None:
            for decoding in decodings:
                command = shown(recipe.command(self._launch(decoding)), spec.server)
                notes.append(f"{decoding.label}: {command} (log: servers/{self._log(decoding).name})")
        if about.thinking_switch:
            notes.append(THINKING_SWITCH)
        if about.quantisation is None and spec.quantisation is not None:
            notes.append(f"quantisation: {spec.quantisation} as the plan gives it, not told by the server")
        where = "this machine" if self._where() == "here" else urllib.parse.urlsplit(served.base).hostname or "?"
        packages = recipe.packages(spec.server) if spec.server is not None else ()
        return EngineInfo(
            engine="endpoint",
            model=spec.model,
            model_class=": ".join(filter(None, (recipe.name, about.model or about.model_class))),
            parameters=about.parameters,
            dtype="unknown",
            devices=tuple(f"gpu {gpu}" for gpu in spec.gpus or ()) or (where,),
            context_length=about.context_length,
            versions={recipe.name: about.version or "unknown"}
            | {package: metadata.version(package) for package in packages},
            drafts={d.label: self._drafts(recipe, d) for d in decodings if d.kind != "vanilla"},
            notes=tuple(notes),
            quantisation=about.quantisation or spec.quantisation,
        )

    def _drafts(self, recipe: ServerRecipe, decoding: Decoding) -> str:
        way = recipe.ways.get(decoding.kind, "as the server was started")
        speculator = self._speculator(decoding)
        return f"{recipe.name}: {way}" + (f"; {speculator}" if speculator else "")

    def part(self, sources: Sequence[SourceSpec]) -> Part:
        """See ``Serving``."""
        remote = frozenset(s.source_id for s in sources if s.source_id.startswith("prometheus:"))
        where = self._spec.meter if self._spec.meter != "auto" else self._where()
        if where == "none":
            return Part(frozenset(), {"gpu": ELSEWHERE, "cpu": ELSEWHERE, "dram": ELSEWHERE})
        if where == "remote":
            if not remote:
                raise UserError(
                    f"engine {self._spec.label}: `meter: remote` needs GPUs that {prometheus.SETTING} tells of, and "
                    "there are none: set it to the address of an exporter or Prometheus server, or use `meter: none`"
                )
            return Part(remote, {"cpu": ONLY_GPUS, "dram": ONLY_GPUS})
        here = frozenset(s.source_id for s in sources) - remote
        chosen = self._chosen_gpus()
        if chosen is None:
            return Part(here if remote else None)
        if missing := sorted(chosen - here):
            raise UserError(
                f"engine {self._spec.label}: {', '.join(missing)} of its GPUs cannot be read here; see `joulewise "
                "doctor`, and whether CUDA_VISIBLE_DEVICES hides it"
            )
        return Part(frozenset(i for i in here if not i.startswith("nvml:") or i in chosen))

    def _where(self) -> str:
        hosts = {urllib.parse.urlsplit(address).hostname for address in self._spec.addresses.values()}
        if hosts <= {"localhost", "127.0.0.1", "::1", os.uname().nodename}:
            return "here"
        return "remote" if os.environ.get(prometheus.SETTING) else "none"

    def _chosen_gpus(self) -> frozenset[str] | None:
        """The sources of the server's GPUs; None for all."""
        spec = self._spec
        uuids = nvml.local_uuids()
        count = open_recipe(spec.server.kind).gpu_count(spec.server) if spec.server else None
        env = gpu_environment(spec.gpus, count, len(uuids))
        if not env:
            return None
        chosen = set()
        for entry in env["CUDA_VISIBLE_DEVICES"].split(","):
            if entry.isdecimal():
                found = uuids[int(entry) : int(entry) + 1]
            else:
                found = [uuid for uuid in uuids if uuid.lower().startswith(entry.lower())]
            if len(found) != 1:
                raise UserError(f"engine {spec.label}: there is no GPU {entry} here; there are {len(uuids)}")
            chosen.add(f"nvml:{found[0]}")
        return frozenset(chosen)

    def refuses_request(self, request: Request, decoding: Decoding) -> str | None:
        """See ``Serving``. What Joulewise starts is of a kind that can be asked everything."""
        served = self._servers.get(decoding.label)
        if served is None:
            return None
        try:
            body_of(request, served.recipe, self._api_of(served))
        except UserError as error:
            return str(error)
        return None

    def prepare(self, decoding: Decoding) -> bool:
        """See ``Serving``."""
        self._current, self._note = None, None
        served = self._servers.get(decoding.label)
        if served is not None and served.process is not None and not served.process.running:
            self._deaths.setdefault(decoding.label, []).append(str(served.process.died()))
            del self._servers[decoding.label]
            served.stop()
            served = None
        self._current = served or self._again(decoding)
        was_cold, self._current.cold = self._current.cold, False
        self._current.begin()
        return was_cold

    def _again(self, decoding: Decoding) -> Served:
        """Start a server that is not there, and stop the others where there is room for one."""
        deaths = self._deaths.get(decoding.label, [])
        if len(deaths) >= MOST_DEATHS:
            raise ServerError(f"It was not started again, as it has ended {len(deaths)} times. {deaths[-1]}")
        if self._spec.one_at_a_time:
            for other in self._servers.values():
                other.stop()
            self._servers.clear()
        try:
            self._servers[decoding.label] = self._open(decoding)
        except ServerError as error:
            self._deaths.setdefault(decoding.label, []).append(str(error))
            raise
        return self._servers[decoding.label]

    def generate(self, request: Request, decoding: Decoding) -> Generation:
        """See ``Engine``."""
        served = self._servers.get(decoding.label)
        if served is None:
            raise ServerError(f"There is no server for {decoding.label}")
        answer = self._answer(served, request)
        if answer.usage is not None:
            prompt, output = answer.usage.prompt_tokens, answer.usage.output_tokens
        else:
            prompt, output = self._count(request, answer)
        generation = generation_of(request, answer, prompt, output)
        cached = answer.usage.cached_tokens if answer.usage is not None else None
        served.asked.append(Asked(output, cached, served.recipe.drafted(answer.extra)))
        return generation

    @asynccontextmanager
    async def sending(self, decoding: Decoding) -> AsyncIterator[Sending]:
        """See ``ManyAtOnce``."""
        served = self._servers.get(decoding.label)
        if served is None:
            raise ServerError(f"There is no server for {decoding.label}")
        endpoint, api = self._endpoint(served.base), self._api_of(served)
        patience = Patience(first_s=self._spec.timeout_s, idle_s=self._spec.timeout_s)
        sums = [0, 0]

        async def send(request: Request) -> Answer:
            try:
                answer = await ask(session, endpoint, body_of(request, served.recipe, api), patience)
                if answer.usage is None:
                    raise ServerError(NO_USAGE)
                generation_of(request, answer, answer.usage.prompt_tokens, answer.usage.output_tokens)
            except BaseException:  # a request that was cut off, too
                served.before = None  # what the server counted of this request is not known, so totals tell nothing
                raise
            told = served.recipe.drafted(answer.extra)
            if told is not None:
                sums[0] += told.drafted
                sums[1] += told.accepted
            served.asked.append(Asked(answer.usage.output_tokens, answer.usage.cached_tokens, told))
            return answer

        def ended() -> str | None:
            return str(served.process.died()) if served.process is not None and not served.process.running else None

        async with open_session() as session:
            yield Sending(send, ended, lambda: (sums[0], sums[1]) if sums[0] else None)

    def _api_of(self, served: Served) -> Api:
        if self._spec.api == "auto" and served.about.chat is False:
            return "completions"
        return self._api or ("completions" if self._spec.api == "completions" else "chat")

    def _answer(self, served: Served, request: Request) -> Answer:
        api = self._api_of(served)
        endpoint = self._endpoint(served.base)
        patience = Patience(first_s=self._spec.timeout_s, idle_s=self._spec.timeout_s)
        body = body_of(request, served.recipe, api)
        try:
            answer = self._run(lambda session: ask(session, endpoint, body, patience))
        except (WrongAddress, Refused) as error:
            if self._spec.api == "auto" and self._api is None and _has_no_chat(error):
                self._api = "completions"
                return self._answer(served, request)
            if isinstance(error, WrongAddress):
                raise
            raise ServerError(str(error)) from error
        except (ContextLengthError, UserError):
            raise
        except EndpointError as error:
            raise self._failed(served, error) from error
        self._api = api
        return answer

    def _failed(self, served: Served, error: EndpointError) -> ServerError:
        """What to tell of a request without an answer: where the server has ended, its log's last lines."""
        if served.process is not None and served.process.ends_soon():
            return ServerError(f"{error}. {served.process.died()}")
        return ServerError(str(error))

    def _count(self, request: Request, answer: Answer) -> tuple[int, int]:
        if self._spec.tokenizer is None:
            raise ServerError(
                "The server sent no usage, so its tokens are not known: name the model's tokenizer with `tokenizer`, "
                "and they are counted here"
            )
        from joulewise.engines.token_counting import count_tokens

        self._note = COUNTED_HERE
        return count_tokens(self._spec.tokenizer, request, answer.reasoning + answer.text, answer.finish_reason)

    def counted(self) -> Counted:
        """See ``Serving``."""
        if self._current is None or self._current.dead:
            return Counted(known=False)
        found = self._current.counted()
        if self._note is None:
            return found
        return replace(found, note="; ".join(note for note in (found.note, self._note) if note))

    def processes(self) -> list[psutil.Process] | None:
        """See ``Serving``."""
        if self._spec.server is None and self._where() != "here":
            return []
        found = [served.processes() for served in self._servers.values()]
        return None if None in found else [process for of_one in found for process in of_one or ()]

    def check_lossless(
        self, request: Request, decoding: Decoding, reference: Sequence[int], output: Sequence[int]
    ) -> LosslessCheck:
        """A server cannot be asked how near two tokens were."""
        return LosslessCheck("not_checked", note="a server does not tell whether outputs part at a near-tie")

    def close(self) -> None:
        """Stop what was started. Idempotent."""
        for served in self._servers.values():
            served.stop()
        self._servers.clear()
        self._current = None
        if self._loop is not None:
            self._loop.close()
            self._loop = None


def _has_no_chat(error: EndpointError) -> bool:
    return "has no chat/completions" in str(error) or "chat template" in str(error)


class _Loop:
    """An event loop in a thread of its own, with one session: callers wait for what they ask."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._stack = AsyncExitStack()
        self._thread = threading.Thread(target=self._loop.run_forever, name="joulewise-endpoint", daemon=True)
        self._thread.start()
        self._session = self._wait(self._stack.enter_async_context(open_session()))

    def run(self, asking: Callable[[Any], Coroutine[Any, Any, _Result]]) -> _Result:
        """Run what asks with the session; cancelled where the caller is interrupted."""
        return self._wait(asking(self._session))

    def _wait(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:  # Ctrl-C too: what nobody waits for must not go on
            future.cancel()
            raise

    def close(self) -> None:
        """Close the session and end the thread."""
        with suppress(RuntimeError):
            self._wait(self._stack.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
