"""An engine in another process, over its unix socket. Torch-free.

Loop: one task reads answers, one asks "how are you" while calls are open.

    consumes        answers; each resolves the call that waits for it
    waits for       the next frame, at most `silence_s` while a call is open: a stopped engine is noticed then
    unblocked by    the engine, the deadline of the call, or the loss of the connection (every open call raises
                    EngineError; the next call connects again)
"""

import asyncio
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import numpy.typing as npt

from twinmill.records.base import Record
from twinmill.records.engines import EngineState, GenerateRequest, Generation, KvPolicy, ScoreRequest, Scores
from twinmill.records.wire import WireError

from .base import ContextTooLong, EngineError, Flip
from .frames import Answer, Call, Drop, Refusal, RefusalKind, StateRequest, encode, read


class ClientConfig(Record):
    """Deadlines of an engine client, in seconds."""

    connect_s: float = 10.0
    """how long a call waits for the engine to listen (it may be starting again)"""
    silence_s: float = 10.0
    """no frame for so long while a call is open = the engine hangs"""
    generate_s: float = 120.0
    """one generate or score, queueing included"""
    state_s: float = 10.0
    """one state"""


class EngineClient:
    """Implements Engine. `async with` closes the connection; it is opened by the first call."""

    def __init__(self, path: Path | str, config: ClientConfig | None = None) -> None:
        self._path, self._config = Path(path), config or ClientConfig()
        self._numbers = itertools.count()
        self._connection: _Connection | None = None
        self._connecting = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close("the client was closed")
            self._connection = None

    async def generate(self, request: GenerateRequest) -> Generation:
        return await self._call(request, Generation, self._config.generate_s)

    async def score(self, request: ScoreRequest) -> Scores:
        return await self._call(request, Scores, self._config.generate_s)

    async def state(self) -> EngineState:
        return await self._call(StateRequest(), EngineState, self._config.state_s)

    async def stage(self, version: int, tensors: Mapping[str, npt.NDArray]) -> None:
        raise EngineError("weights reach an engine in another process through the weights log, not through this socket")

    async def flip(self, kv: KvPolicy) -> Flip:
        raise EngineError("an engine in another process flips by itself, when its subscriber has staged a version")

    async def _call(self, body, kind, deadline_s: float):  # type: ignore[no-untyped-def]
        connection = await self._connect()
        answer = await connection.call(Call(call=next(self._numbers), body=body), deadline_s)
        if isinstance(answer, Refusal):
            raise _ERRORS[answer.kind](f"{self._path.name}: {answer.message}")
        if not isinstance(answer, kind):
            raise EngineError(f"{self._path.name}: asked for {kind.__name__}, got {type(answer).__name__}")
        return answer

    async def _connect(self) -> "_Connection":
        async with self._connecting:
            if self._connection is not None and self._connection.lost is None:
                return self._connection
            end = asyncio.get_running_loop().time() + self._config.connect_s
            while True:
                try:
                    streams = await asyncio.open_unix_connection(self._path)
                    break
                except OSError as error:
                    if asyncio.get_running_loop().time() > end:
                        waited = self._config.connect_s
                        raise EngineError(f"no engine listens at {self._path} after {waited} s: {error}") from error
                    await asyncio.sleep(0.1)
            self._connection = _Connection(*streams, self._config, self._path.name)
            return self._connection


_ERRORS = {RefusalKind.LOST: EngineError, RefusalKind.TOO_LONG: ContextTooLong}


class _Connection:
    """One life of the socket. After its end `lost` says why, and nothing is sent on it any more."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, config: ClientConfig, name: str
    ) -> None:
        self._reader, self._writer, self._config, self._name = reader, writer, config, name
        self._open: dict[int, asyncio.Future[Record]] = {}
        self._heard = asyncio.get_running_loop().time()
        self.lost: str | None = None
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._watch())]

    async def call(self, call: Call, deadline_s: float) -> Record:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Record] = loop.create_future()
        if not self._open:
            self._heard = loop.time()  # silence counts from the first open call
        self._open[call.call] = answer
        try:
            async with asyncio.timeout(deadline_s):
                self._send(call)
                return await answer
        except TimeoutError:
            raise EngineError(f"{self._name}: no answer within {deadline_s} s") from None
        finally:
            del self._open[call.call]
            if self.lost is None and (not answer.done() or answer.cancelled()):
                self._send(Drop(call=call.call))

    def _send(self, message: Record) -> None:
        if self.lost is not None:
            raise EngineError(f"{self._name}: {self.lost}")
        self._writer.write(encode(message))

    async def _read(self) -> None:
        why = "the engine closed its socket"
        try:
            while (answer := await read(self._reader, Answer)) is not None:
                self._heard = asyncio.get_running_loop().time()
                assert isinstance(answer, Answer)
                waiting = self._open.get(answer.call)
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer.body)
        except WireError as error:
            why = f"the engine sent rubbish: {error}"
        self._lose(why)

    async def _watch(self) -> None:
        """While calls are open, make the engine say something every quarter of `silence_s`."""
        silence_s, loop = self._config.silence_s, asyncio.get_running_loop()
        while self.lost is None:
            asleep = loop.time()
            await asyncio.sleep(silence_s / 4)
            # time in which this very process stood still is not the engine's silence
            self._heard += max(loop.time() - asleep - silence_s / 2, 0.0)
            quiet_s = loop.time() - self._heard
            if not self._open or quiet_s < silence_s / 4:
                continue
            if quiet_s > silence_s:
                self._lose(f"the engine hangs: nothing heard for {quiet_s:.1f} s")
            else:
                self._send(Call(call=-1, body=StateRequest()))

    def _lose(self, why: str) -> None:
        if self.lost is not None:
            return
        self.lost = why
        self._writer.close()
        for waiting in self._open.values():
            if not waiting.done():
                waiting.set_exception(EngineError(f"{self._name}: {why}"))

    async def close(self, why: str) -> None:
        self._lose(why)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
