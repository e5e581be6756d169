"""The host's end of a machine's socket. What a frame is: see init_guest."""

import asyncio
import json
import socket
import struct
from typing import Any

Header = dict[str, Any]


class Refused(Exception):
    """Process 1 could not make its machine: the kernel, or a rule of the host, does not allow it."""


def frame(header: Header, body: bytes = b"") -> bytes:
    head = json.dumps({**header, "body": len(body)}).encode()
    return struct.pack(">I", len(head)) + head + body


async def _exactly(sock: socket.socket, count: int) -> bytes:
    loop, parts = asyncio.get_running_loop(), bytearray()
    while len(parts) < count:
        part = await loop.sock_recv(sock, min(count - len(parts), 1 << 20))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


async def read_frame(sock: socket.socket, head: bytes = b"") -> tuple[Header, bytes]:
    """`head`: the four length bytes, when they were read already. Raises EOFError when the other end is gone."""
    header = json.loads(await _exactly(sock, struct.unpack(">I", head or await _exactly(sock, 4))[0]))
    return header, await _exactly(sock, header["body"])


async def readable(fd: int) -> None:
    """Until `fd` has something to read, or was hung up."""
    loop, there = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(fd, there.set)
    try:
        await there.wait()
    finally:
        loop.remove_reader(fd)


def pair() -> tuple[socket.socket, socket.socket]:
    """(host's end, guest's end). The kernel is told now to attest who speaks: it does so at the moment of sending."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    return ours, theirs


async def greeting(sock: socket.socket) -> int:
    """Wait for process 1 to speak. Returns its pid on the host, which the kernel attests (the guest knows only its own
    numbers). Raises Refused, or EOFError when it died first."""
    await readable(sock.fileno())
    head, ancillary, _, _ = sock.recvmsg(4, socket.CMSG_SPACE(12))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
    if len(head) < 4:
        raise EOFError
    header, _ = await read_frame(sock, head)
    if "hello" not in header:
        raise Refused(header.get("refused", "no reason given"))
    return int(struct.unpack("3i", ancillary[0][2])[0])
