"""docs/FORMATS.md, read by hand: nothing of twinmill but its writers is used here."""

import json
import struct
from typing import Any

import msgspec
import zstandard
from blake3 import blake3

from twinmill.store.blobs import Blobs

from .toys import DTYPES, SHAPES, Trainer

M32, M64 = (1 << 32) - 1, (1 << 64) - 1
WIDTHS = {"BF16": 2, "F32": 4, "F8_E4M3": 1, "U32": 4}


def unsealed(blobs: Blobs, key: str) -> dict[str, Any]:
    data = blobs.get(key)
    magic, stored_bytes, payload_bytes = struct.unpack("<4sQQ", data[:20])
    stored = data[36:]
    assert len(stored) == stored_bytes
    assert blake3(key.encode() + b"\0" + data[:20] + stored).digest(length=16) == data[20:36]
    payload = zstandard.decompress(stored) if magic == b"TWZ1" else stored
    assert len(payload) == payload_bytes
    record: dict[str, Any] = msgspec.msgpack.decode(payload)
    return record


def tile_digest(data: bytes, width: int) -> bytes:
    bits = [int.from_bytes(data[i : i + width], "little") for i in range(0, len(data), width)]
    sums = [len(bits), width]
    for i, value in enumerate(bits):
        x = i ^ 0x9E3779B9
        x = ((x ^ x >> 16) * 0x85EBCA6B) & M32
        x = ((x ^ x >> 13) * 0xC2B2AE35) & M32
        k = x ^ x >> 16
        x = ((k ^ k >> 15) * 0x2C1B3C6D) & M32
        sums = [(sums[0] + value * k) & M64, (sums[1] + value * (x ^ x >> 12)) & M64]
    return struct.pack("<QQ", *sums)


def objects_of(blobs: Blobs, version: dict[str, Any]) -> list[tuple[bytes, bytes, bytes]]:
    """(digest before, digest after, payload) of every tile, in order."""
    tiles = []
    for part in version["parts"]:
        assert part["first_tile"] == len(tiles)
        data = blobs.get(part["object"]["key"])
        assert blake3(data).hexdigest() == part["object"]["digest"] == part["object"]["key"].split("/")[-1]
        assert blake3(data[: part["head_bytes"]]).hexdigest() == part["head_digest"]
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        body = {name: data[8 + size :][slice(*header[name]["data_offsets"])] for name in ("tables", "index", "body")}
        entries = [body["index"][i : i + 60] for i in range(0, len(body["index"]), 60)]
        starts = [int.from_bytes(entry[:8], "little") for entry in entries] + [len(body["body"])]
        for entry, start, end in zip(entries, starts, starts[1:]):
            payload = body["body"][start:end]
            assert blake3(payload).digest(length=16) == entry[40:56]
            tiles.append((entry[8:24], entry[24:40], payload))
        assert part["tiles"] == len(entries)
    return tiles


def cut(table: list[dict[str, Any]], grid: dict[str, Any]) -> list[tuple[str, list[tuple[str, int, int]]]]:
    """The tiles of the toy model: (dtype, (tensor, first element, end)). No tensor of it is cut by columns."""
    owners: dict[tuple[Any, ...], list[tuple[str, int, int]]] = {}
    for tensor in table:
        name, dtype, rows = tensor["name"], tensor["dtype"], ([*tensor["shape"], 1])[0]
        size = 1
        for length in tensor["shape"]:
            size *= length
        if dtype == "F64":
            dtype, size = "U32", 2 * size
        if ".experts." in name:
            owners.setdefault((1, int(name.split(".")[5]), 0, dtype), []).append((name, 0, size))
        elif "embed" in name:
            assert rows % grid["tp"] == 0
            step = size // grid["tp"]
            for block in range(grid["tp"]):
                key = (0, block, block + 1, dtype)
                owners.setdefault(key, []).append((name, block * step, (block + 1) * step))
        else:
            owners.setdefault((2, 0, 1, dtype), []).append((name, 0, size))
    first = {key: order for order, key in enumerate(owners)}
    return [(key[3], owners[key]) for key in sorted(owners, key=lambda key: (key[:3], first[key]))]


def bits(state: dict[str, Any], dtype: str, pieces: list[tuple[str, int, int]]) -> bytes:
    width = WIDTHS[dtype]
    return b"".join(state[name].tobytes()[first * width : end * width] for name, first, end in pieces)


def test_two_versions_can_be_read_by_hand(local: Blobs) -> None:
    """Published raw: the entropy coded kinds of tile have a reader of their own, in NumPy, in wdx/reference.py."""
    trainer = Trainer(local, codec="raw", object_bytes=2000)
    trainer.publish()
    trainer.publish(slots=(0, 1))
    first = unsealed(local, "weights/manifests/0000000000")
    second = unsealed(local, "weights/manifests/0000000001")
    heads = (first["record"], first["kind"], second["kind"], second["slots"], second["parent"], second["last_full"])
    assert heads == ("WeightVersion", "full", "delta", [0, 1], 0, 0)
    assert first["table"] == second["table"]
    packed = local.get(first["table"]["key"])
    table = msgspec.msgpack.decode(packed)["tensors"]
    assert [(t["name"], t["dtype"], tuple(t["shape"])) for t in table] == [(n, *SHAPES[n]) for n in sorted(DTYPES)]
    identity = blake3(packed + msgspec.msgpack.encode(first["grid"])).digest()

    tiles = cut(table, first["grid"])
    lineage, before = "", [bytes(16)] * len(tiles)
    for version, state in ((first, trainer.states[0]), (second, trainer.states[1])):
        found = objects_of(local, version)
        assert len(found) == len(tiles)
        assert version["payload_bytes"] == sum(part["object"]["bytes"] for part in version["parts"])
        for (dtype, pieces), (was, is_now, payload), base in zip(tiles, found, before):
            content = bits(state, dtype, pieces)
            assert (was, is_now) == (base, tile_digest(content, WIDTHS[dtype]))
            assert payload == (b"\0" if was == is_now else b"\1" + content) or payload[0] == 2
        before = [after for _, after, _ in found]
        assert version["model_digest"] == blake3(identity + b"".join(before)).hexdigest()
        chained = f"run\0{version['number']}\0{lineage}\0{version['model_digest']}"
        lineage = version["lineage"]
        assert blake3(chained.encode()).hexdigest() == lineage
    assert len(first["parts"]) > 1
    assert first["kind"] == "full" and second["changed"] > 0
