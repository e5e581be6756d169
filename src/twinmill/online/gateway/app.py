"""Gateway: the routes, who may use them, and how much is taken at once.

    GET    /health                             200 while it serves; 503 with the reason otherwise
    GET    /v1/models
    POST   /v1/chat/completions, /v1/completions
    POST   /v1/sessions                        opens one: {id, base_url, api_key, ...}
    GET    /v1/sessions/{id}
    POST   /v1/sessions/{id}/reward            ends it; it lands in the episodes log
    DELETE /v1/sessions/{id}                   ends it without a reward
    *      /v1/sessions/{id}/chat/completions  and completions, models: base_url is a harness's OpenAI API
    GET    /openapi.json

    task       consumes            produces             waits for            unblocked by
    call       a request           an answer            the engine           its deadline, the client's leaving
    sweep      open sessions       Attempts, Closes     the clock            -

Whatever a client sends, it gets an answer that says what was wrong; what raises none the less is a bug, and is told as one.
"""

import asyncio
import contextlib
import hmac
import math
import sys
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple, TypeVar

from msgspec import structs
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from twinmill.data.render import Renderer
from twinmill.engine.base import ContextTooLong, Engine, EngineError
from twinmill.records.engines import Phase
from twinmill.records.episodes import Boundary, DropReason, Failure, Score, StopReason, Verdict
from twinmill.store.blobs import Blobs
from twinmill.store.errors import StoreError
from twinmill.store.ledger import EpisodesLog

from . import refusals
from .config import GatewayConfig
from .prompts import Prompt
from .refusals import BadRequest, BodyTooLarge, Busy, Conflict, Refused, TooLong, Unavailable, Unknown, WrongKey
from .replies import DONE, Answer, Shape, error_event, event
from .requests import ChatRequest, CompletionRequest, RewardRequest, SessionRequest, read
from .schema import openapi
from .sessions import Session
from .slots import Slots
from .speech import Ask, Listener, Said, speak

T = TypeVar("T")
Answers = AsyncGenerator[Answer, None]
REMEMBERED = 4096
"""ends of sessions that are told again to a client that lost the answer"""


class Ended(NamedTuple):
    reward: float | None
    body: dict[str, Any]


class Gateway:
    """`app` is an ASGI application; its lifespan starts and ends what belongs to it."""

    def __init__(
        self,
        engine: Engine,
        renderer: Renderer,
        config: GatewayConfig,
        *,
        blobs: Blobs | None = None,
        keys: Sequence[str] = (),
    ) -> None:
        """blobs: where sessions land; None = there are none. keys: () = whoever can connect may use everything."""
        self._engine, self._renderer, self._config = engine, renderer, config
        self._blobs, self._keys = blobs, [key.encode() for key in keys]
        self._slots = None
        if blobs is not None:
            self._slots = Slots(EpisodesLog(blobs), cluster=config.cluster, seed=config.seed)
        self._sessions: dict[str, Session] = {}
        self._ended: OrderedDict[str, Ended] = OrderedDict()
        self._calls = 0
        self._started = int(time.time())
        self.draining = False
        self.app = Starlette(
            routes=self._routes(),
            exception_handlers={
                Refused: _refusal, HTTPException: _http_refusal, EngineError: _no_answer, StoreError: _no_answer,
                ClientDisconnect: _gone, Exception: _bug,
            },
            lifespan=self._lifespan,
        )  # fmt: skip

    def _routes(self) -> list[Route]:
        inside = "/v1/sessions/{session}"
        return [
            Route("/health", self.health),
            Route("/openapi.json", self.openapi),
            Route("/v1/models", self.models),
            Route("/v1/models/{model:path}", self.one_model),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/sessions", self.open_session, methods=["POST"]),
            Route(inside, self.show_session),
            Route(inside, self.abandon, methods=["DELETE"]),
            Route(f"{inside}/reward", self.reward, methods=["POST"]),
            Route(f"{inside}/models", self.models),
            Route(f"{inside}/chat/completions", self.chat, methods=["POST"]),
            Route(f"{inside}/completions", self.completions, methods=["POST"]),
        ]

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        if self._slots is None:
            yield
            return
        await self._slots.start()
        tasks = [asyncio.create_task(self._sweep()), asyncio.create_task(self._beats())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)  # no beat may follow the last word
            await self._drain()

    # Models, health

    async def health(self, request: Request) -> Response:
        try:
            state = await self._engine.state()
        except EngineError as error:
            return JSONResponse({"status": "lost", "why": str(error)}, 503)
        status = (
            "draining" if self.draining else "ok" if state.phase in (Phase.READY, Phase.SWAPPING) else state.phase.value
        )
        body = {
            "status": status, "model": self._config.model, "version": state.serving, "calls": self._calls,
            "sessions": len(self._sessions),
        }  # fmt: skip
        return JSONResponse(body, 200 if status == "ok" else 503)

    async def openapi(self, request: Request) -> Response:
        return JSONResponse(openapi())

    async def models(self, request: Request) -> Response:
        self._admitted(request, calls=True)
        return JSONResponse({"object": "list", "data": [self._model_body()]})

    async def one_model(self, request: Request) -> Response:
        self._admitted(request)
        self._check_model(request.path_params["model"])
        return JSONResponse(self._model_body())

    def _model_body(self) -> dict[str, Any]:
        return {
            "id": self._config.model, "object": "model", "created": self._started, "owned_by": "twinmill",
            "max_model_len": self._config.context_tokens,
        }  # fmt: skip

    # Calls of the model

    async def chat(self, request: Request) -> Response:
        session = self._admitted(request, calls=True)
        asked = read(await self._body(request), ChatRequest)
        shape = self._shape(asked, chat=True, logprobs=bool(asked.logprobs))
        prompt = asked.prompt()
        most = asked.max_completion_tokens or asked.max_tokens

        def listener() -> Listener:
            return Listener(self._renderer, prompt.tools, asked.stops, asked.parallel_tool_calls is False)

        return await self._answer(request, asked, [prompt], most, session, shape, listener)

    async def completions(self, request: Request) -> Response:
        session = self._admitted(request, calls=True)
        asked = read(await self._body(request), CompletionRequest)
        shape = self._shape(asked, chat=False, logprobs=asked.logprobs is not None)
        most = 16 if asked.max_tokens is None else asked.max_tokens

        def listener() -> Listener:
            return Listener(self._renderer, None, asked.stops, False)

        return await self._answer(request, asked, asked.prompts(), most, session, shape, listener)

    def _shape(self, asked: ChatRequest | CompletionRequest, *, chat: bool, logprobs: bool) -> Shape:
        return Shape(self._renderer, self._config.model, chat=chat, logprobs=logprobs, token_ids=asked.return_token_ids)

    async def _answer(
        self,
        request: Request,
        asked: ChatRequest | CompletionRequest,
        prompts: list[Prompt],
        most: int | None,
        session: Session | None,
        shape: Shape,
        listener: Callable[[], Listener],
    ) -> Response:
        n = asked.n or 1
        if session is None:
            self._check_model(asked.model)
        elif n * len(prompts) > 1:
            raise BadRequest("a session is one attempt: one prompt and n = 1 a call", "n")
        if n * len(prompts) > self._config.choices:
            raise BadRequest(f"{n * len(prompts)} answers in one call; at most {self._config.choices}", "n")
        if asked.stream and n * len(prompts) > 1:
            raise BadRequest(
                "one answer can be streamed at a time: leave out stream, or n and further prompts", "stream"
            )
        slices = self._config.slice_tokens if asked.stream or asked.stops else 0

        def start(prompt: Prompt, choice: int) -> Answers:
            if session is not None:
                return self._in_session(session, prompt, most, asked.stops, slices, listener())
            ids = prompt.opening_ids(self._renderer)
            ask = Ask(
                context=ids,
                engine_session=f"call-{id(request)}-{choice}",
                group=f"call-{id(request)}-{choice // n}" if n > 1 else "",
                temperature=1.0 if asked.temperature is None else asked.temperature,
                top_p=1.0 if asked.top_p is None else asked.top_p,
                max_tokens=self._room(len(ids), most),
                seed=((time.time_ns() if asked.seed is None else asked.seed) + choice % n) % 2**63,
                stops=asked.stops,
                slice_tokens=slices,
                last=True,
            )
            return _alone(self._engine, ask, self._renderer, listener())

        with contextlib.ExitStack() as at_work:
            at_work.callback(self._begin())
            started = [start(prompt, i * n + k) for i, prompt in enumerate(prompts) for k in range(n)]
            if asked.stream:
                # what is refused before the first token has a status of its own
                first = await _unless_gone(request, _first(started[0]))
                usage = asked.stream_options is not None and asked.stream_options.include_usage
                return _Stream(_events(shape, first, started[0], usage), started[0], at_work.pop_all().close)
            answers = await _unless_gone(request, _together(started))
        return JSONResponse(shape.whole(answers, len(prompts)))

    async def _in_session(
        self,
        session: Session,
        prompt: Prompt,
        most: int | None,
        stops: tuple[str, ...],
        slices: int,
        listener: Listener,
    ) -> Answers:
        async with session.lock:
            self._still_open(session)
            opened = session.open(prompt, self._renderer)
            length = len(opened.context.ids) + len(opened.appended)
            room = self._room(length, most)
            ask = session.ask(opened, max_tokens=room, stops=stops, slice_tokens=slices)
            facts = {
                "session": session.id, "segment": opened.context.index, "turn": len(opened.context.turns),
                "new_segment": opened.why, "temperature": session.temperature,
            }  # fmt: skip
            said = session.speak(opened, ask, prompt, listener, self._engine, self._renderer)
            async with aclosing(said) as slices_:
                async for so_far, text in slices_:
                    yield Answer(ask.context, so_far, listener, text, facts)

    def _room(self, context: int, most: int | None) -> int:
        """Tokens that may be sampled."""
        room = self._config.context_tokens - context
        if most is not None and most > self._config.turn_tokens:
            raise TooLong(f"max_tokens = {most}: at most {self._config.turn_tokens} in one call here", "max_tokens")
        if room < (most or 1):
            raise TooLong(
                f"the context has room for {self._config.context_tokens} tokens; the prompt has {context}, and "
                f"{most or 'at least 1'} were asked for: shorten the messages, or ask for fewer",
                "messages",
            )
        return most or min(room, self._config.turn_tokens)

    # Sessions

    async def open_session(self, request: Request) -> Response:
        self._admitted(request)
        slots = self._kept()
        asked = read(await self._body(request), SessionRequest)
        if len(self._sessions) >= self._config.sessions:
            raise Busy(f"{len(self._sessions)} sessions are open, the most that this server keeps; end some")
        version = (await self._engine.state()).serving
        if version < 0:
            raise Unavailable("the engine serves no version yet; come again")

        async def open_() -> Session:
            # A group that nobody named is the session's own.
            name = asked.group or f"alone-{time.time_ns()}-{len(self._sessions)}"
            place = await slots.open(asked.task, name, asked.attempts, version)
            seed = place.seed if asked.seed is None else asked.seed
            config = self._config
            session = Session(place, asked.task, asked.temperature, seed, config.experts, config.cluster)
            self._sessions[session.id] = session
            return session

        session = await _unbroken(open_())
        return JSONResponse(self._session_body(session, request) | {"api_key": session.key}, 201)

    async def show_session(self, request: Request) -> Response:
        self._admitted(request)
        return JSONResponse(self._session_body(self._session(request), request))

    async def reward(self, request: Request) -> Response:
        self._admitted(request)
        asked = read(await self._body(request), RewardRequest)
        if not all(math.isfinite(x) for x in (asked.reward or 0.0, *asked.scores.values())):
            raise BadRequest("reward and scores must be finite numbers", "reward")
        told = self._ended.get(request.path_params["session"])
        if told is not None:  # the answer was lost, perhaps
            if told.reward != asked.reward:
                raise Conflict(f"the session has ended with reward {told.reward}; nothing changes it any more")
            return JSONResponse(told.body)
        session = self._session(request)
        if asked.reward is not None and not session.turns:
            raise Conflict("nothing was said in this session, so there is nothing to reward; DELETE it")
        return JSONResponse(await _unbroken(self._end(session, asked)))

    async def abandon(self, request: Request) -> Response:
        self._admitted(request)
        return JSONResponse(await _unbroken(self._end(self._session(request), RewardRequest(reward=None))))

    async def _end(self, session: Session, asked: RewardRequest, error: Failure | None = None) -> dict[str, Any]:
        """Log the session's episode. A call that is at work is waited for."""
        slots, blobs = self._slots, self._blobs
        assert slots is not None and blobs is not None
        async with session.lock:
            if session.id in self._ended:
                return self._ended[session.id].body
            try:
                episode = await asyncio.to_thread(session.episode, asked.stop, blobs, error)
            except EngineError as lost:
                error = Failure(boundary=Boundary.ENGINE, type=type(lost).__name__, message=str(lost))
                asked = structs.replace(asked, reward=None, scores={}, stop=StopReason.ERROR)
                episode = await asyncio.to_thread(session.episode, asked.stop, blobs, error)
            scores = {name: Score(value=value, grader="posted") for name, value in asked.scores.items()}
            missing = Failure(boundary=Boundary.GRADER, type="NoReward", message="the session ended without a reward")
            verdict = Verdict(
                episode_id=episode.id,
                scores=scores
                or ({} if asked.reward is None else {"reward": Score(value=asked.reward, grader="posted")}),
                reward=asked.reward,
                graded_at=time.time(),
                error=error or (missing if asked.reward is None else None),
            )
            pos = await slots.land(session.place, episode, verdict)
            session.ended = True
            body = {
                "id": session.id, "object": "session", "status": "ended", "reward": asked.reward, "episode_id": episode.id,
                "lane": pos.lane, "index": pos.index, "slot": session.place.slot,
                "group_complete": slots.closed(session.place), "segments": session.segments, "turns": session.turns,
            }  # fmt: skip
            self._ended[session.id] = Ended(asked.reward, body)
            while len(self._ended) > REMEMBERED:
                self._ended.popitem(last=False)
            self._sessions.pop(session.id, None)
            return body

    async def claim(self) -> None:
        """OSError when another gateway of this name is at work in the store: this one would take it for its dead predecessor, and
        close what it has open."""
        if self._slots is None:
            return
        config = self._config
        if await self._slots.rival(3 * config.beat_s):
            raise OSError(
                f"another server named {config.cluster} is at work in this store, and a lane of the log has one writer: stop "
                "it, or give this one a store of its own (--store)"
            )

    async def _beats(self) -> None:
        assert self._slots is not None
        while True:
            try:
                state = await self._engine.state()
                await _unbroken(self._slots.beat(state.serving))
            except (EngineError, StoreError) as error:
                print(f"warning: no sign of life could be left in the store: {error}", file=sys.stderr)
            await asyncio.sleep(self._config.beat_s)

    async def _sweep(self) -> None:
        """End what nobody came back to."""
        assert self._slots is not None
        idle_s = self._config.idle_s
        while True:
            await asyncio.sleep(min(idle_s / 4, 30.0))
            try:
                for session in list(self._sessions.values()):
                    if not session.lock.locked() and time.monotonic() - session.touched > idle_s:
                        await _unbroken(self._end(session, RewardRequest(reward=None, stop=StopReason.DEADLINE)))
                await _unbroken(self._slots.drop_idle(idle_s, DropReason.UNGRADABLE))
            except StoreError as error:
                print(f"warning: idle sessions stay open, the store does not answer: {error}", file=sys.stderr)

    async def _drain(self) -> None:
        """Sessions end with the server: infrastructure, never a reward."""
        assert self._slots is not None
        lost = Failure(
            boundary=Boundary.ENGINE, type="Drained", message="the gateway was stopped before the reward came"
        )
        try:
            for session in list(self._sessions.values()):
                await self._end(session, RewardRequest(reward=None, stop=StopReason.ERROR), lost)
            await self._slots.drop_idle(0.0, DropReason.INFRASTRUCTURE)
            await self._slots.end()
        except StoreError as error:
            left = len(self._sessions)
            print(f"warning: {left} sessions could not be logged, the store does not answer: {error}", file=sys.stderr)

    def _kept(self) -> Slots:
        if self._slots is None:
            raise Unavailable("this server keeps no episodes, so it has no sessions; start it with a store")
        return self._slots

    def _session(self, request: Request) -> Session:
        self._kept()
        name = request.path_params["session"]
        if name in self._sessions:
            return self._sessions[name]
        gone = "has ended" if name in self._ended else "is not known: it has ended, or this server was started after it"
        raise Unknown(f"session {name!r} {gone}; open one with POST /v1/sessions", "session")

    def _still_open(self, session: Session) -> None:
        if session.ended:
            raise Conflict(f"session {session.id} has ended; open one with POST /v1/sessions")

    def _session_body(self, session: Session, request: Request) -> dict[str, Any]:
        base_url = str(request.base_url).rstrip("/") + f"/v1/sessions/{session.id}"
        place = session.place
        return {
            "id": session.id, "object": "session", "status": "open", "base_url": base_url, "task": session.task_id,
            "slot": place.slot, "attempt": place.attempt, "seed": session.seed, "temperature": session.temperature,
            "segments": session.segments, "turns": session.turns,
        }  # fmt: skip

    # Keys and limits

    def _admitted(self, request: Request, *, calls: bool = False) -> Session | None:
        """Refuse who has no key. calls: this is part of a harness's API; then the session whose base_url it came by, None =
        by none. A session's own key opens its calls and nothing else."""
        name = request.path_params.get("session")
        if self._keys:
            scheme, _, given = request.headers.get("Authorization", "").partition(" ")
            key = given.strip().encode() if scheme.lower() == "bearer" else b""
            known = self._sessions.get(name) if calls and name else None
            good = [*self._keys, *([known.key.encode()] if known else [])]
            if not any([hmac.compare_digest(key, k) for k in good]):  # a list: all are compared, whichever fits
                raise WrongKey(
                    "no valid key: send Authorization: Bearer KEY with one that this server was started with"
                )
        if self.draining and request.method == "POST" and name is None:
            raise Unavailable("this server is being stopped; go to another one")
        return self._session(request) if calls and name is not None else None

    async def _body(self, request: Request) -> bytes:
        most = self._config.body_bytes
        length = request.headers.get("Content-Length", "")
        too_large = BodyTooLarge(f"the body may have {most} bytes; send less")
        if length.isdecimal() and int(length[:18]) > most:
            raise too_large
        parts, size = [], 0
        try:
            async with asyncio.timeout(self._config.body_s):
                async for part in request.stream():
                    size += len(part)
                    if size > most:
                        raise too_large
                    parts.append(part)
        except TimeoutError:
            raise refusals.TooSlow(f"the body did not come within {self._config.body_s:g} s") from None
        return b"".join(parts)

    def _check_model(self, name: str) -> None:
        if name != self._config.model:
            raise refusals.UnknownModel(f"no model {name!r} here; this server has {self._config.model!r}", "model")

    def _begin(self) -> Callable[[], None]:
        """Count one call more; what is returned counts it off."""
        if self._calls >= self._config.calls:
            raise Busy(f"{self._calls} calls are at work, the most at once; come again in a second")
        self._calls += 1

        def end() -> None:
            self._calls -= 1

        return end


class _Stream(StreamingResponse):
    """`ended` is called when the client has everything, or has left; `answers` are closed then, begun or not."""

    def __init__(self, events: AsyncGenerator[bytes, None], answers: Answers, ended: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        self._sources, self._ended = (events, answers), ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended()
            for source in self._sources:
                await source.aclose()


async def _alone(engine: Engine, ask: Ask, renderer: Renderer, listener: Listener) -> Answers:
    """A call that belongs to no session."""
    said: Said
    async for said in speak(engine, ask, renderer):
        yield Answer(ask.context, said, listener, listener.hear(said))


async def _last(stream: Answers) -> Answer:
    async with aclosing(stream) as answers:
        return [answer async for answer in answers][-1]


async def _events(shape: Shape, first: Answer, stream: Answers, usage: bool) -> AsyncGenerator[bytes, None]:
    answer = first
    try:
        async with aclosing(stream) as answers:
            yield event(shape.chunk(first, True))
            async for answer in answers:
                yield event(shape.chunk(answer, False))
        if usage:
            yield event(shape.usage_chunk(answer))
        yield DONE
    except Refused as error:
        yield error_event(error)
    except (EngineError, StoreError) as error:
        yield error_event(_unavailable(error))


async def _together(streams: Sequence[Answers]) -> list[Answer]:
    """All to their ends. The first failure ends them all."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_last(stream)) for stream in streams]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


async def _first(answers: Answers) -> Answer:
    return await anext(answers)


async def _unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client leaves: nobody would hear it."""
    task = asyncio.create_task(work)

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    watch = asyncio.create_task(gone())
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        watch.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))


async def _unbroken(work: Coroutine[Any, Any, T]) -> T:
    """What touches the log goes on to its end, also when its client leaves: who writes next must know the lane's end."""
    return await asyncio.shield(asyncio.create_task(work))


def _unavailable(error: Exception) -> Refused:
    if isinstance(error, ContextTooLong):
        return TooLong(f"the engine has no room for this context: {error}", "messages")
    what = "engine" if isinstance(error, EngineError) else "store"
    return Unavailable(f"the {what} does not do it: {error}; nothing of this call was recorded, send it again")


def _say(refused: Refused) -> Response:
    return JSONResponse(refused.body(), refused.status, headers=refused.headers)


async def _refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return _say(error)


async def _no_answer(request: Request, error: Exception) -> Response:
    return _say(_unavailable(error))


async def _http_refusal(request: Request, error: Exception) -> Response:
    """Paths and methods that there are not."""
    assert isinstance(error, HTTPException)
    text = f"{request.method} {request.url.path}: {error.detail.lower()}; GET /openapi.json lists what there is"
    body = refusals.error_body(text, "invalid_request_error", None, "not_found" if error.status_code == 404 else None)
    return JSONResponse(body, error.status_code, headers=dict(error.headers or {}))


async def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it


async def _bug(request: Request, error: Exception) -> Response:
    text = f"a bug of this server: {type(error).__name__}: {error}; its log has the traceback"
    return JSONResponse(refusals.error_body(text, "server_error", None, "bug"), 500)
