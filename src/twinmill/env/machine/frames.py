"""The host's end of a machine's socket. A message is a list of byte strings, each with its length before it:

    u32 bytes of all that follows, u32 number of strings, then per string u32 length and its bytes; little-endian

Requests and their answers (both guests agree: launcher/init.c, and init_guest.py, its readable reference):

    put         (path, mode, content)*                       -> ok | error, errno, path
    list                                                     -> ok, (path, size)* of regular files, links not followed
    read        most bytes of one, path*                     -> ok, (path, content)* of those that can be read
    exec        milliseconds, cap, n, argv[n], stdin         -> ok, code, timed out, truncated, stdout, stderr
    background  log, argv*                                   -> ok, number | error, errno, argv[0]
    jobs                                                     -> ok, (number, "" or exit code)*
    stop        number                                       -> ok
    refresh                                                  -> ok    after a freeze (launcher/forge.c)

Process 1 speaks first: hello, what it put on itself*; or refused, step, reason.
"""

import asyncio
import socket
import struct

Field = bytes | str | int


class Refused(Exception):
    """Process 1 could not make its machine: the kernel, or a rule of the host, does not allow it."""


def pack(*fields: Field) -> bytes:
    parts = [field if isinstance(field, bytes) else str(field).encode() for field in fields]
    body = b"".join(part for field in parts for part in (struct.pack("<I", len(field)), field))
    return struct.pack("<II", len(body) + 4, len(parts)) + body


def unpack(data: bytes | bytearray) -> list[bytes]:
    """The strings of a whole message."""
    (count,), at, fields = struct.unpack_from("<I", data, 4), 8, []
    for _ in range(count):
        (length,) = struct.unpack_from("<I", data, at)
        fields.append(bytes(data[at + 4 : at + 4 + length]))
        at += 4 + length
    return fields


async def read_message(sock: socket.socket, head: bytes = b"") -> list[bytes]:
    """`head`: what was read already. Raises EOFError when the other end is gone."""
    loop, data, wanted = asyncio.get_running_loop(), bytearray(head), 8
    while len(data) < wanted:
        part = await loop.sock_recv(sock, min(max(wanted - len(data), 65536), 1 << 20))
        if not part:
            raise EOFError
        data += part
        if len(data) >= 8:
            wanted = 4 + struct.unpack_from("<I", data)[0]
    return unpack(data)


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


async def greeting(sock: socket.socket) -> tuple[int, tuple[str, ...]]:
    """Wait for process 1 to speak. Returns its pid on the host, which the kernel attests (the guest knows only its own
    numbers), and what it put on itself. Raises Refused, or EOFError when it died first."""
    await readable(sock.fileno())
    head, ancillary, _, _ = sock.recvmsg(4096, socket.CMSG_SPACE(12))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
    if not head:
        raise EOFError
    word, *rest = [field.decode(errors="replace") for field in await read_message(sock, head)]
    if word != "hello":
        raise Refused(": ".join(rest) or "no reason given")
    return int(struct.unpack("3i", ancillary[0][2])[0]), tuple(note for note in rest if note)
