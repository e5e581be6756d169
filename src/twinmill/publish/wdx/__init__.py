"""wdx1: exact deltas of weights, near the smallest possible. Bytes: docs/FORMATS.md, section wdx1.

The reader holds the old weights, and the old exponent tells it where changes are: a step of the optimizer moves a weight
by about lr, which is many units in the last place of a tiny weight and a thousandth of one of a large weight. So positions
and differences are coded by class of the old exponent, with tables made once per version.

    statistics = Statistics.empty("BF16")          gathered by many processes, merged, made into
    tables = statistics.tables()                   the integers that go into the version's object
    payload = encode_tile(before, after, tables)   one tile: up to 2^20 elements, flat unsigned bits
    patch = decode_tile(before, payload, tables)   positions, old and new bits; nothing is touched yet
    digest_after = advance(digest_before, patch)   compare with the manifest's, and only then
    apply(patch, target)                           write; idempotent

layout.py     dtypes, classes, alphabets
tables.py     Tables: the integers, their bytes
statistics.py        Statistics -> Tables
tile.py       kinds of tile, encode, decode, compare, apply
patch.py      Patch
digest.py     a digest that follows the changes
rans.py, reference.py   the specification in NumPy and Python
native.py, _wdx.c       the same bytes, fast; backend() and slow() say which it is
bounds.py     h0, h1: what no codec of this family can beat

Left out: dtypes of 64 bits (view them as pairs of U32), tiles above 2^20 elements, state from earlier steps (7 % smaller,
but memory per weight on both sides).
"""

from ..errors import CodecError
from .digest import DIGEST_BYTES, advance, digest
from .layout import LAYOUTS, TILE_MAX
from .native import backend, backends, slow, using
from .patch import Patch
from .statistics import Statistics, fit
from .tables import Tables
from .tile import ALLOWED, Kind, apply, compare, compare_and_advance, decode_tile, encode_patch, encode_tile, write

__all__ = [
    "ALLOWED",
    "DIGEST_BYTES",
    "LAYOUTS",
    "TILE_MAX",
    "CodecError",
    "Kind",
    "Patch",
    "Statistics",
    "Tables",
    "advance",
    "apply",
    "backend",
    "backends",
    "compare",
    "compare_and_advance",
    "decode_tile",
    "digest",
    "encode_patch",
    "encode_tile",
    "fit",
    "slow",
    "using",
    "write",
]
