"""Images: made once in a machine, kept as one file on disk, and held as a template that machines are forked from.

The file's name says version and recipe, its first line the digest of the rest; one that is damaged is made again, with a
warning. The template is a machine that runs nothing and whose files are frozen: a fork shares them and copies only what
it writes. It lives as long as its forge, and where that is gone the next one is made from the file.
"""

import asyncio
import hashlib
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Protocol
from weakref import WeakKeyDictionary

import zstandard

from twinmill.env.machine.base import MachineStartError, Snapshotable
from twinmill.env.machine.cells import Cell, serves
from twinmill.records.tasks import MachineSpec

from .base import Image, Serving

SPEC = MachineSpec(memory_bytes=512 << 20, disk_bytes=256 << 20)
folder: Path | None = None
"""where images are kept; one is some 4 MB. None = in the user's cache"""
_templates: dict[str, Cell] = {}
_making: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


class Mould(Serving, Snapshotable, Protocol):
    """A native machine that is not started yet."""

    async def as_template(self) -> Cell: ...


async def template(image: Image, new: Callable[[MachineSpec], Mould]) -> Cell:
    """What to fork from. Raises InfrastructureError."""
    name = f"{image.name}-{hashlib.sha256(image.recipe.encode()).hexdigest()[:12]}"
    async with _making.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
        cell = _templates.get(name)
        if cell is None or not serves(cell):
            cell = _templates[name] = await _made(image, name, new)
        return cell


async def _made(image: Image, name: str, new: Callable[[MachineSpec], Mould]) -> Cell:
    machine = new(SPEC)
    try:
        path = (folder or Path("~/.cache/twinmill/services").expanduser()) / f"{name}.tar.zst"
        await machine.start()
        kept = await asyncio.to_thread(_read, path)
        if kept is not None:
            await machine.restore(kept)
        else:
            await image.make(machine)
            await asyncio.to_thread(_write, path, await machine.snapshot())
        return await machine.as_template()
    except BaseException as error:
        await machine.close()
        if isinstance(error, OSError | RuntimeError):  # RuntimeError: whose home is it?
            raise MachineStartError(f"the image of {image.name} cannot be kept: {error}") from error
        raise


def _read(path: Path) -> bytes | None:
    """None = there is none that is sound."""
    try:
        digest, _, packed = path.read_bytes().partition(b"\n")
    except FileNotFoundError:
        return None
    if hashlib.sha256(packed).hexdigest().encode() != digest:
        warnings.warn(f"{path} is damaged: its digest does not match; it is made again", RuntimeWarning, stacklevel=2)
        return None
    return zstandard.decompress(packed)


def _write(path: Path, snapshot: bytes) -> None:
    """Aside first: another process reads all of it or none."""
    packed = zstandard.compress(snapshot, 3)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    aside.write_bytes(hashlib.sha256(packed).hexdigest().encode() + b"\n" + packed)
    aside.replace(path)
