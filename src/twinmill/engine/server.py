"""An engine on a unix socket.

One connection carries many calls at once; a caller that goes away takes its calls along.
"""

import asyncio
import contextlib
from pathlib import Path
from typing import Self

from twinmill.records.base import Record
from twinmill.records.engines import GenerateRequest, ScoreRequest
from twinmill.records.wire import WireError

from .base import ContextTooLong, Engine, EngineError
from .frames import Answer, Call, Drop, Refusal, RefusalKind, encode, read


class EngineServer:
    """`async with EngineServer(engine, path): ...` serves until the block ends. The socket's file is removed after."""

    def __init__(self, engine: Engine, path: Path | str) -> None:
        self._engine, self._path = engine, Path(path)
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        # a socket that a killed predecessor left behind would make bind fail
        self._path.unlink(missing_ok=True)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._server = await asyncio.start_unix_server(self._accept, self._path)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        self._path.unlink(missing_ok=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._serve(reader, writer)
        except asyncio.CancelledError:
            pass  # the server is closing
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        calls: dict[int, asyncio.Task[None]] = {}
        try:
            while True:
                try:
                    message = await read(reader, Call | Drop)  # type: ignore[arg-type]
                except WireError:
                    return  # not a client of ours; what it already asked is dropped with it
                if message is None:
                    return
                if isinstance(message, Drop):
                    if task := calls.get(message.call):
                        task.cancel()
                elif isinstance(message, Call):
                    task = asyncio.create_task(self._answer(message, writer))
                    calls[message.call] = task
                    task.add_done_callback(lambda _, call=message.call: calls.pop(call, None))
        finally:
            for task in list(calls.values()):
                task.cancel()

    async def _answer(self, call: Call, writer: asyncio.StreamWriter) -> None:
        body: Record
        try:
            body = await self._perform(call)
        except ContextTooLong as error:
            body = Refusal(kind=RefusalKind.TOO_LONG, message=str(error))
        except EngineError as error:
            body = Refusal(kind=RefusalKind.LOST, message=str(error))
        except Exception as error:  # a bug in an engine must reach the caller, not its deadline
            body = Refusal(kind=RefusalKind.LOST, message=f"{type(error).__name__}: {error}")
        with contextlib.suppress(ConnectionError):
            writer.write(encode(Answer(call=call.call, body=body)))  # type: ignore[arg-type]
            await writer.drain()

    async def _perform(self, call: Call) -> Record:
        if isinstance(call.body, GenerateRequest):
            return await self._engine.generate(call.body)
        if isinstance(call.body, ScoreRequest):
            return await self._engine.score(call.body)
        return await self._engine.state()
