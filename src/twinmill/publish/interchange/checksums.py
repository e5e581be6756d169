"""Checksums of a tensor's stored bytes, under the names that slime gives them.

Ours is blake3 by default: it is a dependency already, and cryptographic. xxh3-128 (slime's own default, six times as fast) needs
the package `xxhash`, which is not installed with twinmill: `pip install twinmill[interchange]`. adler32 is refused: it does not
see edits that cancel out.
"""

from collections.abc import Callable, Mapping

from blake3 import blake3

from ..errors import Refused
from ..tensors import Array, bits_of


def _blake3(data: memoryview) -> str:
    return blake3(data).hexdigest()


def _xxh3_128(data: memoryview) -> str:
    try:
        from xxhash import xxh3_128_hexdigest
    except ImportError as error:
        raise Refused("checksum xxh3-128 needs the package xxhash: pip install 'twinmill[interchange]'") from error
    return str(xxh3_128_hexdigest(data))


CHECKSUMS: Mapping[str, Callable[[memoryview], str]] = {"blake3": _blake3, "xxh3-128": _xxh3_128}


def checksum(kind: str, array: Array) -> str:
    """Hex. Refused for a kind that is none of CHECKSUMS."""
    if kind not in CHECKSUMS:
        raise Refused(f"checksum {kind!r} is not read nor written; want one of {', '.join(CHECKSUMS)}")
    return CHECKSUMS[kind](bits_of(array).view("u1").data)
