import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from safetensors import safe_open

from twinmill.publish.container import NOTHING, Coded, Opened, make_part, pack, read_head, read_part
from twinmill.records.weights import Part
from twinmill.store.blobs import Blobs, open_blobs
from twinmill.store.errors import Corrupt

TILES = [
    Coded(NOTHING, b"a" * 16, 3, b"payload of the first"),
    Coded(b"b" * 15 + b"\0", b"c" * 16, 0, b""),
    Coded(b"\0" + b"d" * 15, b"e" * 16, (1 << 32) - 1, b"x" * 5000),
]


def stored(blobs: Blobs, tiles: list[Coded] = TILES, first: int = 7) -> Part:
    packed = pack([b"tab", b"les"], tiles)
    part = make_part("weights/objects", packed, first, tiles)
    blobs.put(part.object.key, packed.data)
    return part


def test_what_was_packed_is_read(blobs: Blobs) -> None:
    part = stored(blobs)
    assert (part.tiles, part.first_tile, part.changed) == (3, 7, 3 + (1 << 32) - 1)
    whole, head = read_part(blobs, part), read_head(blobs, part)
    for opened in (whole, head):
        assert opened.tables == [b"tab", b"les"]
        assert [opened.digests(7 + i) for i in range(3)] == [(tile.before, tile.after) for tile in TILES]
        assert [opened.changed(7 + i) for i in range(3)] == [tile.changed for tile in TILES]
    for i, tile in enumerate(TILES):
        assert bytes(whole.payload(7 + i)) == bytes(head.fetch_payload(blobs, 7 + i)) == tile.payload
    with pytest.raises(ValueError, match="only the head"):
        head.payload(7)


def test_any_safetensors_tool_opens_it(tmp_path: Path) -> None:
    blobs = open_blobs(str(tmp_path))
    part = stored(blobs)
    with safe_open(tmp_path / part.object.key, "np") as file:
        assert set(file.keys()) == {"tables", "index", "body"}
        assert file.get_tensor("tables").tobytes() == b"\3\0\0\0tab\3\0\0\0les"
        assert file.get_tensor("index").nbytes == 3 * 60
        assert file.get_tensor("body").tobytes() == b"".join(tile.payload for tile in TILES)


def test_tiles_without_payloads_are_an_object() -> None:
    blobs = open_blobs("memory://")
    part = stored(blobs, [Coded(b"a" * 16, b"a" * 16, 0, b"")])
    assert bytes(read_part(blobs, part).payload(7)) == b""
    assert bytes(read_head(blobs, part).fetch_payload(blobs, 7)) == b""


def test_equal_tiles_give_equal_bytes() -> None:
    assert pack([b"tab", b"les"], TILES) == pack([b"tab", b"les"], list(TILES))


@given(st.data())
def test_no_changed_byte_is_read(data: st.DataObject) -> None:
    """Every byte is under a digest: of the object, or of its head and its payloads."""
    blobs = open_blobs("memory://")
    part = stored(blobs)
    content = bytearray(blobs.get(part.object.key))
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    blobs.put(part.object.key, bytes(content))
    with pytest.raises(Corrupt):
        read_part(blobs, part)
    with pytest.raises(Corrupt):  # noqa: PT012
        head = read_head(blobs, part)
        for i in range(3):
            head.fetch_payload(blobs, 7 + i)


@pytest.mark.parametrize("cut", [0, 1, 9, 200, 1000])
def test_a_cut_object_is_not_read(blobs: Blobs, cut: int) -> None:
    part = stored(blobs)
    blobs.put(part.object.key, blobs.get(part.object.key)[:cut])
    with pytest.raises(Corrupt):
        read_part(blobs, part)
    with pytest.raises(Corrupt):
        read_head(blobs, part).fetch_payload(blobs, 9)


def lie(data: bytes, **offsets: object) -> bytes:
    """The object with another header of the same length."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    for name, value in offsets.items():
        header[name]["data_offsets"] = value
    text = json.dumps(header, separators=(",", ":")).encode()
    return data[:8] + text.ljust(length)[:length] + data[8 + length :]


PACKED = pack([b"tab", b"les"], TILES).data
HEAD = pack([b"tab", b"les"], TILES).head_bytes
OFFSET_1 = HEAD - 2 * 60
LIES = {
    "header behind the end": (1 << 40).to_bytes(8, "little") + PACKED[8:],
    "no json": PACKED[:8] + b"[" + PACKED[9:],
    "deep json": PACKED[:8] + (b"[" * 2000)[: HEAD - 8] + PACKED[HEAD:],
    "index before tables": lie(PACKED, index=[0, 180]),
    "half an entry": lie(PACKED, index=[14, 104], body=[104, 5214]),
    "tables that go on behind their end": PACKED[: HEAD - 194] + b"\4" + PACKED[HEAD - 193 :],
    "fractions": lie(PACKED, tables=[0, 14.0]),
    "words": lie(PACKED, tables=["a", "b"]),
    "a huge body": lie(PACKED, body=[194, 1 << 60]),
    "a negative end": lie(PACKED, tables=[0, -4]),
    "offsets that fall": PACKED[:OFFSET_1] + (6000).to_bytes(8, "little") + PACKED[OFFSET_1 + 8 :],
    "huge offsets": PACKED[:OFFSET_1] + b"\xff" * 8 + PACKED[OFFSET_1 + 8 :],
}


@pytest.mark.parametrize("name", LIES)
def test_a_well_sealed_lie_is_corrupt(name: str) -> None:
    """Whoever writes the manifest may be wrong, too: the digests match, the content does not add up."""
    part = make_part("k", pack([b"tab", b"les"], TILES)._replace(data=LIES[name]), 0, TILES)
    with pytest.raises(Corrupt):
        Opened(part, LIES[name])


@pytest.mark.parametrize(
    "wrong", [{"tiles": 2}, {"tiles": 0}, {"head_bytes": HEAD - 1}, {"head_bytes": 0}, {"head_bytes": 1 << 40}]
)
def test_a_manifest_that_lies_about_a_part_is_found(wrong: dict[str, int]) -> None:
    blobs = open_blobs("memory://")
    part = structs.replace(stored(blobs), **wrong)
    with pytest.raises(Corrupt):
        read_part(blobs, part)
    with pytest.raises(Corrupt):
        read_head(blobs, part)
