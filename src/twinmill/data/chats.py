"""Chats: transcripts to learn from by SFT. Made from episodes that somebody (a scripted expert) played in the harness.

What the expert sampled is what is learned, id by id; nothing is rendered or tokenized again. Files:

    *.jsonl      one chat per line, for people
    *.msgpack    4 bytes of length (little-endian) and one packed chat each, for long transcripts
"""

import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from twinmill.records import wire
from twinmill.records.chats import Chat
from twinmill.records.episodes import Episode, Verdict


class ChatError(ValueError):
    """A file that holds no chats, or a chat that contradicts itself: which file, which chat, what is wrong."""


def chats_of(episode: Episode, verdict: Verdict | None = None) -> list[Chat]:
    """One chat per segment in which anything was sampled; each sampled token carries loss."""
    chats = []
    for segment in episode.segments:
        ids: list[int] = []
        runs: list[tuple[int, int]] = []
        for turn in segment.turns:
            ids += turn.input_ids
            if turn.sampled_ids:
                runs.append((len(ids), len(turn.sampled_ids)))
            ids += turn.sampled_ids
        if runs:
            chats.append(
                Chat(
                    id=f"{episode.id}/{segment.index}",
                    token_ids=ids,
                    sampled=tuple(runs),
                    task_id=episode.task_id,
                    reward=None if verdict is None else verdict.reward,
                )
            )
    return chats


def check(chat: Chat) -> None:
    """ChatError unless the sampled runs lie in order within the ids, behind at least one token of context."""
    end = 1
    for start, count in chat.sampled:
        if start < end or count < 1 or start + count > len(chat.token_ids):
            raise ChatError(
                f"chat {chat.id}: sampled run ({start}, {count}) among {len(chat.token_ids)} ids, where it may start "
                f"at {end} at the earliest"
            )
        end = start + count


def write_chats(path: str | Path, chats: Iterable[Chat]) -> int:
    """Write them, whole or not at all; returns how many. The suffix chooses the form."""
    path = Path(path)
    form, count = _form(path), 0
    staging = path.with_name(f"{path.name}#{os.getpid()}")
    try:
        with open(staging, "wb") as file:
            for chat in chats:
                check(chat)
                file.write(form.pack(chat))
                count += 1
        os.replace(staging, path)
    finally:
        staging.unlink(missing_ok=True)
    return count


def read_chats(path: str | Path) -> list[Chat]:
    """All chats of a file. ChatError names the file and the place of what cannot be read."""
    path = Path(path)
    form, chats = _form(path), []
    try:
        for chat in form.unpack(path.read_bytes()):
            check(chat)
            chats.append(chat)
    except ValueError as error:  # WireError, or a chat that contradicts itself
        raise ChatError(f"{path}, chat {len(chats)} (from 0): {error}") from error
    return chats


def _pack_line(chat: Chat) -> bytes:
    return wire.to_json(chat) + b"\n"


def _unpack_lines(data: bytes) -> Iterator[Chat]:
    for line in data.splitlines():
        if line.strip():
            yield wire.from_json(line, Chat)


_LENGTH = struct.Struct("<I")


def _pack_framed(chat: Chat) -> bytes:
    body = wire.pack(chat)
    return _LENGTH.pack(len(body)) + body


def _unpack_framed(data: bytes) -> Iterator[Chat]:
    at = 0
    while at < len(data):
        if at + _LENGTH.size > len(data):
            raise ChatError("the file ends within a length")
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if at + length > len(data):
            raise ChatError(f"the file ends {at + length - len(data)} bytes too early")
        yield wire.unpack(data[at : at + length], Chat)
        at += length


class _Form(NamedTuple):
    pack: Callable[[Chat], bytes]
    unpack: Callable[[bytes], Iterator[Chat]]


_FORMS: Mapping[str, _Form] = {
    ".jsonl": _Form(_pack_line, _unpack_lines),
    ".msgpack": _Form(_pack_framed, _unpack_framed),
}


def _form(path: Path) -> _Form:
    if path.suffix not in _FORMS:
        raise ChatError(f"{path}: no chat file; want a name that ends in {' or '.join(_FORMS)}")
    return _FORMS[path.suffix]
