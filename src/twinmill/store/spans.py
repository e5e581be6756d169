"""Which ranges of which objects are wanted, and by which few requests they are read."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from twinmill.records.base import Ref


class Span(NamedTuple):
    """Bytes [offset, offset + bytes)."""

    offset: int
    bytes: int


class Want(NamedTuple):
    """A range of an object."""

    key: str
    offset: int
    bytes: int
    digest: str = ""
    """BLAKE3 hex of just these bytes; "" = it is not known here: the reader checks what it makes of them"""
    whole: bool = False
    """they are all bytes of the object"""

    @classmethod
    def of(cls, ref: Ref) -> "Want":
        return cls(ref.key, 0, ref.bytes, ref.digest, whole=True)


class Take(NamedTuple):
    """The part of a request's bytes that belongs to one want."""

    want: Want
    at: int
    """where it lies in the want"""
    start: int
    """where it lies in the request"""
    bytes: int


class Request(NamedTuple):
    key: str
    offset: int
    bytes: int
    takes: tuple[Take, ...]
    """by rising start; two may share bytes, and bytes between them may be nobody's"""

    @property
    def whole(self) -> int | None:
        """Size that the object must have; None = not known."""
        return next((take.want.bytes for take in self.takes if take.want.whole), None)


class _Piece(NamedTuple):
    offset: int
    bytes: int
    want: Want
    at: int


def plan(missing: Iterable[tuple[Want, Sequence[Span]]], request_bytes: int, gap_bytes: int) -> list[Request]:
    """Requests of at most `request_bytes` that together read the missing spans (relative to their wants).

    Spans of one object at most `gap_bytes` apart share a request. Objects keep their order.
    """
    pieces: dict[str, list[_Piece]] = {}
    for want, spans in missing:
        for span in spans:
            for at in range(span.offset, span.offset + span.bytes, request_bytes):
                size = min(request_bytes, span.offset + span.bytes - at)
                pieces.setdefault(want.key, []).append(_Piece(want.offset + at, size, want, at))
    return [
        request for key, found in pieces.items() for request in _joined(key, sorted(found), request_bytes, gap_bytes)
    ]


def _joined(key: str, pieces: Sequence[_Piece], request_bytes: int, gap_bytes: int) -> Iterable[Request]:
    """`pieces` by rising offset."""
    first = 0
    end = pieces[0].offset + pieces[0].bytes
    for i, piece in enumerate(pieces):
        after = max(end, piece.offset + piece.bytes)
        if piece.offset - end > gap_bytes or after - pieces[first].offset > request_bytes:
            yield _request(key, pieces[first:i], end)
            first, after = i, piece.offset + piece.bytes
        end = after
    yield _request(key, pieces[first:], end)


def _request(key: str, pieces: Sequence[_Piece], end: int) -> Request:
    offset = pieces[0].offset
    takes = tuple(Take(piece.want, piece.at, piece.offset - offset, piece.bytes) for piece in pieces)
    return Request(key, offset, end - offset, takes)
