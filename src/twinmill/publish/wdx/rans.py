"""The entropy coder, as a specification: interleaved range asymmetric numeral systems (rANS) and a bit stream.

A payload is read from both ends. From its front, after the kind: one 32-bit state per lane, then 16-bit words, taken
whenever a state falls below 2^16. From its back: single bits, lowest bit of the last byte first. Both must end at the same
byte, with every state at 2^16 and the unused bits of the last byte read zero.

The decoder's step, with f the frequency and s the start of the symbol whose range holds x mod 2^11:
    x = f * (x >> 11) + x mod 2^11 - s;  if x < 2^16: x = x << 16 | next word
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from ..errors import CodecError
from .layout import PROB_BITS, Ints

LOW: Final = 1 << 16
LANES: Final = 4
_MASK: Final = (1 << PROB_BITS) - 1


class Row:
    """One row of frequencies, ready to code with."""

    def __init__(self, frequencies: npt.NDArray[np.uint16]) -> None:
        ends = np.cumsum(frequencies.astype(np.int64))
        self.frequency: list[int] = frequencies.tolist()
        self.start: list[int] = (ends - frequencies).tolist()
        self.symbol = np.repeat(np.arange(len(frequencies), dtype=np.uint8), frequencies).tobytes()
        """slot -> symbol"""


def encode(steps: Sequence[tuple[Row, int, int]], lanes: int) -> bytes:
    """States and words for (row, symbol, lane) in the order in which they are to be decoded."""
    states = [LOW] * lanes
    words = []
    for row, symbol, lane in reversed(steps):
        frequency, x = row.frequency[symbol], states[lane]
        if x >= frequency << (32 - PROB_BITS):
            words.append(x & 0xFFFF)
            x >>= 16
        states[lane] = ((x // frequency) << PROB_BITS) + x % frequency + row.start[symbol]
    return np.array(states, "<u4").tobytes() + np.array(words[::-1], "<u2").tobytes()


class Decoder:
    """Reads the states and words from `data[at:]`. Each call starts with lane 0 and gives symbol i to lane i mod lanes."""

    def __init__(self, data: bytes, at: int, lanes: int) -> None:
        self.at = at + 4 * lanes
        if self.at > len(data):
            raise CodecError(f"{len(data)} bytes cannot hold {lanes} states")
        self._data = data
        self._states = np.frombuffer(data, "<u4", lanes, at).tolist()

    def take(self, rows: Sequence[Row]) -> Ints:
        """One symbol per row, u8."""
        data, states, lanes = self._data, self._states, len(self._states)
        out = bytearray(len(rows))
        for i, row in enumerate(rows):
            x = states[i % lanes]
            slot = x & _MASK
            symbol = row.symbol[slot]
            x = row.frequency[symbol] * (x >> PROB_BITS) + slot - row.start[symbol]
            if x < LOW:
                if self.at + 2 > len(data):
                    raise CodecError("the words end too early")
                x = x << 16 | data[self.at] | data[self.at + 1] << 8
                self.at += 2
            states[i % lanes] = x
            out[i] = symbol
        return np.frombuffer(bytes(out), np.uint8)

    def finish(self) -> int:
        """Where the words end; CodecError unless the states are what the encoder began with."""
        if any(x != LOW for x in self._states):
            raise CodecError("the states do not end where they must")
        return self.at


def pack_bits(fields: Sequence[tuple[Ints, Ints]]) -> bytes:
    """(numbers, bits of each) one behind the other, as they stand at the end of a payload."""
    numbers = np.concatenate([np.asarray(number, np.uint64) for number, _ in fields])
    counts = np.concatenate([np.asarray(count, np.int64) for _, count in fields])
    place = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    bits = np.repeat(numbers, counts) >> place.astype(np.uint64) & np.uint64(1)
    return np.packbits(bits.astype(np.uint8), bitorder="little").tobytes()[::-1]


class BitReader:
    """Reads what pack_bits wrote from the end of `data` backwards."""

    def __init__(self, data: bytes) -> None:
        self._bits = np.unpackbits(np.frombuffer(data, np.uint8)[::-1], bitorder="little")
        self._at = 0

    def take(self, counts: Ints) -> Ints:
        """u64 numbers of so many bits each."""
        counts = np.asarray(counts, np.int64)
        ends = self._at + np.cumsum(counts)
        total = int(ends[-1]) if len(ends) else self._at
        if total > len(self._bits):
            raise CodecError("the bits end too early")
        numbers = np.zeros(len(counts), np.uint64)
        for place in range(int(counts.max(initial=0))):
            there = counts > place
            numbers[there] |= self._bits[(ends - counts)[there] + place].astype(np.uint64) << np.uint64(place)
        self._at = total
        return numbers

    def one(self, count: int) -> int:
        return int(self.take(np.array([count]))[0])

    def finish(self) -> int:
        """How many bytes were read; CodecError unless the rest of the last one is zero."""
        whole = -(-self._at // 8) * 8
        if self._bits[self._at : whole].any():
            raise CodecError("bits behind the end")
        return whole // 8
