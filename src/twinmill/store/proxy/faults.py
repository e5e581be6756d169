"""An S3 server's bad days, in front of a good one. Which request meets which fault is a pure function of a seed.

Bodies of objects are damaged, listings are not. A fault that a kind of
request cannot meet (half a body of a HEAD) leaves it alone, and is not counted.
"""

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum

from msgspec import Struct

from .http import Message, ask, read_request
from .serving import Proxy, reset


class Fault(Enum):
    SLOW_DOWN = "slow_down"
    """503 SlowDown; the server never saw the request"""
    SERVER_ERROR = "server_error"
    """500 InternalError; the server never saw the request"""
    RESET = "reset"
    """connection reset; the server never saw the request"""
    LOST_ANSWER = "lost_answer"
    """the server did it, then the connection was reset"""
    TRUNCATED = "truncated"
    """half of a body, then the end, where more was announced"""
    SHORT = "short"
    """half of a body (sent or received) under a length that agrees with it: only the reader can know"""
    FLIPPED = "flipped"
    """one bit of a body, sent or received, is another"""
    STALL = "stall"
    """no answer at all"""
    STALL_MIDWAY = "stall_midway"
    """half of a body, then silence"""


class FaultScript(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    seed: int = 0
    rates: Mapping[Fault, float] = {}
    """share of the requests that meet each fault; together at most 1"""
    methods: tuple[str, ...] = ("GET", "PUT", "HEAD", "DELETE", "POST")
    """other requests are left alone"""
    in_a_row: int = 0
    """most faults in a row for one method and object; 0 = as the dice fall"""
    good: int = -1
    """requests after which every one meets `end`; -1 = the end never comes"""
    end: Fault = Fault.SLOW_DOWN

    def fault(self, number: int, request: str, times: int, in_a_row: int) -> Fault | None:
        """What meets request `number` (from 0) of the proxy, the `times`-th (from 0) of its method and object."""
        if 0 <= self.good <= number:
            return self.end
        if self.in_a_row and in_a_row >= self.in_a_row:
            return None
        dice = random.Random(f"{self.seed} {request} {times}").random()
        for fault, rate in self.rates.items():
            if dice < rate:
                return fault
            dice -= rate
        return None


class FaultProxy(Proxy):
    """`met` counts the faults that happened, `requests` everything that was asked, by method."""

    def __init__(self, upstream: tuple[str, int], script: FaultScript, *, port: int = 0, stall_s: float = 60.0) -> None:
        """stall_s: longest silence, after which the connection is reset."""
        super().__init__(upstream, port=port)
        self.script = script
        self.met: Counter[Fault] = Counter()
        self.requests: Counter[str] = Counter()
        self._stall_s = stall_s
        self._times: Counter[str] = Counter()
        self._in_a_row: Counter[str] = Counter()
        self._counts = threading.Lock()

    def change(self, script: FaultScript) -> None:
        """Another script from the next request on; its `good` counts from here."""
        with self._counts:
            self.script = script
            self.requests.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (request := await read_request(reader)) is not None:
            fault = self._next(request)
            act = _pass_on if fault is None else _ACTS[fault]
            if not await act(self, request, writer):
                return
            await writer.drain()

    def _next(self, request: Message) -> Fault | None:
        name = f"{request.method} {request.path}"
        with self._counts:
            fault = self.script.fault(self.requests.total(), name, self._times[name], self._in_a_row[name])
            if request.method not in self.script.methods or not (fault is None or _can_meet(request, fault)):
                fault = None
            self.requests[request.method] += 1
            self._times[name] += 1
            self._in_a_row[name] = 0 if fault is None else self._in_a_row[name] + 1
            if fault is not None:
                self.met[fault] += 1
        return fault

    def dice(self, request: Message) -> random.Random:
        """Others each time that an object is asked for."""
        name = f"{request.method} {request.path}"
        return random.Random(f"{self.script.seed} {name} {self._times[name]}")

    async def stall(self, writer: asyncio.StreamWriter) -> bool:
        await writer.drain()
        await asyncio.sleep(self._stall_s)
        reset(writer)
        return False


_BODIES = {
    Fault.TRUNCATED: ("GET",),
    Fault.STALL_MIDWAY: ("GET",),
    Fault.SHORT: ("GET", "PUT"),
    Fault.FLIPPED: ("GET", "PUT"),
}
"""faults of a body -> the requests that have one, there or back"""


def _can_meet(request: Message, fault: Fault) -> bool:
    return fault not in _BODIES or (request.method in _BODIES[fault] and not request.query)


async def _pass_on(proxy: FaultProxy, request: Message, writer: asyncio.StreamWriter) -> bool:
    """True = the connection stays."""
    answer = await ask(proxy.upstream, request)
    writer.write(answer.head + answer.body)
    return True


def _refuse(status: str, code: str) -> "_Act":
    async def act(proxy: FaultProxy, request: Message, writer: asyncio.StreamWriter) -> bool:
        text = f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code></Error>'.encode()
        head = Message(
            f"HTTP/1.1 {status}", (("Content-Type", "application/xml"), ("Content-Length", str(len(text))))
        ).head
        writer.write(head if request.method == "HEAD" else head + text)
        return True

    return act


async def _reset(proxy: FaultProxy, request: Message, writer: asyncio.StreamWriter) -> bool:
    reset(writer)
    return False


async def _lose_answer(proxy: FaultProxy, request: Message, writer: asyncio.StreamWriter) -> bool:
    await ask(proxy.upstream, request)
    reset(writer)
    return False


async def _truncate(proxy: FaultProxy, request: Message, writer: asyncio.StreamWriter) -> bool:
    answer = await ask(proxy.upstream, request)
    writer.write(answer.head + _half(answer.body))
    return False


async def _shorten(proxy: FaultProxy, request: Message, writer: asyncio.StreamWriter) -> bool:
    half = _half(request.body)
    if request.method == "PUT":
        request = request.with_header("content-length", str(len(half)))._replace(body=half)
    answer = await ask(proxy.upstream, request)
    if request.method == "GET":
        half = _half(answer.body)
        answer = answer.with_header("content-length", str(len(half)))._replace(body=half)
    writer.write(answer.head + answer.body)
    return True


async def _flip(proxy: FaultProxy, request: Message, writer: asyncio.StreamWriter) -> bool:
    dice = proxy.dice(request)
    if request.method == "PUT":
        request = request._replace(body=_flipped(request.body, dice))
    answer = await ask(proxy.upstream, request)
    writer.write(answer.head + (_flipped(answer.body, dice) if request.method == "GET" else answer.body))
    return True


def _half(body: bytes) -> bytes:
    return body[: len(body) // 2]


def _flipped(body: bytes, dice: random.Random) -> bytes:
    if not body:
        return body
    at = dice.randrange(len(body))
    return body[:at] + bytes([body[at] ^ 1 << dice.randrange(8)]) + body[at + 1 :]


async def _stall(proxy: FaultProxy, request: Message, writer: asyncio.StreamWriter) -> bool:
    return await proxy.stall(writer)


async def _stall_midway(proxy: FaultProxy, request: Message, writer: asyncio.StreamWriter) -> bool:
    answer = await ask(proxy.upstream, request)
    writer.write(answer.head + _half(answer.body))
    return await proxy.stall(writer)


_Act = Callable[[FaultProxy, Message, asyncio.StreamWriter], Awaitable[bool]]
_ACTS: Mapping[Fault, _Act] = {
    Fault.SLOW_DOWN: _refuse("503 Slow Down", "SlowDown"),
    Fault.SERVER_ERROR: _refuse("500 Internal Server Error", "InternalError"),
    Fault.RESET: _reset,
    Fault.LOST_ANSWER: _lose_answer,
    Fault.TRUNCATED: _truncate,
    Fault.SHORT: _shorten,
    Fault.FLIPPED: _flip,
    Fault.STALL: _stall,
    Fault.STALL_MIDWAY: _stall_midway,
}
