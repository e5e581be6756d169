"""As much of HTTP/1.1 as stands between an S3 client and an S3 server: whole messages with a stated length."""

import asyncio
from typing import NamedTuple

MOST_BYTES = 1 << 30
_HEAD_BYTES = 1 << 16


class Message(NamedTuple):
    """A request or a response."""

    first: str
    """its first line"""
    headers: tuple[tuple[str, str], ...]
    body: bytes = b""

    def header(self, name: str) -> str:
        """ "" when it is not there."""
        return next((value for key, value in self.headers if key.lower() == name), "")

    def with_header(self, name: str, value: str) -> "Message":
        kept = tuple((key, old) for key, old in self.headers if key.lower() != name)
        return self._replace(headers=(*kept, (name, value)))

    @property
    def method(self) -> str:
        return self.first.split(" ", 1)[0]

    @property
    def path(self) -> str:
        """Of a request, without its query."""
        return self.first.split(" ")[1].partition("?")[0]

    @property
    def query(self) -> str:
        return self.first.split(" ")[1].partition("?")[2]

    @property
    def head(self) -> bytes:
        lines = [self.first, *(f"{key}: {value}" for key, value in self.headers)]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")


async def read_request(reader: asyncio.StreamReader) -> Message | None:
    """The next one of a connection; None at its end."""
    try:
        found = await _read_head(reader)
    except asyncio.IncompleteReadError as error:
        if not error.partial:
            return None
        raise
    return found._replace(body=await reader.readexactly(_length(found)))


async def ask(upstream: tuple[str, int], request: Message) -> Message:
    """The answer to `request`, over a connection of its own. Its Content-Length is that of its body (except for HEAD)."""
    reader, writer = await asyncio.open_connection(*upstream, limit=_HEAD_BYTES)
    try:
        writer.write(request.with_header("connection", "close").head + request.body)
        await writer.drain()
        found = await _read_head(reader)
        bodiless = request.method == "HEAD" or found.first.split(" ")[1] in ("204", "304")
        if not bodiless and found.header("transfer-encoding"):
            raise ConnectionError(f"cannot pass on {found.first!r}: it states no length")
        body = b"" if bodiless else await reader.readexactly(_length(found))
    finally:
        writer.close()
    kept = tuple((key, value) for key, value in found.headers if key.lower() != "connection")
    return found._replace(headers=kept, body=body)


async def _read_head(reader: asyncio.StreamReader) -> Message:
    text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = text.removesuffix("\r\n\r\n").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return Message(first, tuple((key, value.strip()) for key, _, value in pairs))


def _length(message: Message) -> int:
    length = int(message.header("content-length") or 0)
    if not 0 <= length <= MOST_BYTES:
        raise ConnectionError(f"{message.first!r} states {length} bytes; at most {MOST_BYTES} are passed on")
    return length
