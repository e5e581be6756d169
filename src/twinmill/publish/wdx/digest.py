"""A 128-bit digest of a tile that follows its changes: D += key(i) * (new[i] - old[i]).

It finds what goes wrong by itself: flipped bits, exchanged elements or blocks, a patch applied twice, to the wrong base, or
not at all. It is no signature: whoever can choose bits can make two tiles collide. Authenticity comes from the BLAKE3 of
the objects.
"""

from typing import Final

from . import native
from .layout import Bits
from .patch import Patch

DIGEST_BYTES: Final = 16


def digest(bits: Bits) -> bytes:
    """Of a flat tile of u8, u16 or u32."""
    return native.engine().digest(bits)


def advance(before: bytes, patch: Patch) -> bytes:
    """The digest after `patch`, from the digest before it. `patch.undo()` leads back."""
    if len(before) != DIGEST_BYTES:
        raise ValueError(f"a digest of {len(before)} bytes, want {DIGEST_BYTES}")
    return native.engine().advance(before, patch)
