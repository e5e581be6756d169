"""docs/FORMATS.md, read by hand: nothing of twinmill but its writers is used here."""

import json
import struct
from typing import Any

import msgspec
import zstandard
from blake3 import blake3

from twinmill.store.blobs import Blobs

from .toys import DTYPES, Trainer


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


def from_gaps(before: bytes, payload: bytes, width: int) -> bytes:
    gap_width, count = struct.unpack("<BQ", payload[:9])
    body = zstandard.decompress(payload[9:])
    assert len(body) == count * (gap_width + width)
    planes = [body[i * count : (i + 1) * count] for i in range(gap_width + width)]
    after = [int.from_bytes(before[i : i + width], "little") for i in range(0, len(before), width)]
    position = -1
    for change in range(count):
        position += 1 + sum(planes[j][change] << 8 * j for j in range(gap_width))
        folded = sum(planes[gap_width + j][change] << 8 * j for j in range(width))
        difference = (folded >> 1) ^ -(folded & 1)
        after[position] = (after[position] + difference) % (1 << 8 * width)
    return b"".join(value.to_bytes(width, "little") for value in after)


def test_two_versions_can_be_read_by_hand(local: Blobs) -> None:
    trainer = Trainer(local)
    trainer.publish()
    trainer.publish(slots=(0, 1))
    first = unsealed(local, "weights/manifests/0000000000")
    second = unsealed(local, "weights/manifests/0000000001")
    assert (first["record"], first["kind"], second["kind"], second["slots"]) == (
        "WeightVersion",
        "full",
        "delta",
        [0, 1],
    )

    model = local.get(first["object"]["key"])
    assert blake3(model).hexdigest() == first["object"]["digest"] == first["object"]["key"].split("/")[-1]
    header = json.loads(model[8 : 8 + int.from_bytes(model[:8], "little")])
    delta = local.get(second["object"]["key"])
    was = {patch["name"]: patch for patch in first["tensors"]}
    lines = []
    for patch in second["tensors"]:
        name, base = patch["name"], was[patch["name"]]
        assert header[name]["dtype"] == DTYPES[name] == patch["dtype"]
        before = model[base["offset"] : base["offset"] + base["bytes"]]
        payload = delta[patch["offset"] : patch["offset"] + patch["bytes"]]
        width = len(before) // max(1, trainer.states[0][name].size)
        after = {"raw": payload, "same": before}.get(patch["codec"]) or from_gaps(before, payload, width)
        assert after == trainer.states[1][name].tobytes()
        assert blake3(before).hexdigest(length=16) == base["after"] == patch["before"]
        assert blake3(after).hexdigest(length=16) == patch["after"]
        lines.append(f"{name}\0{patch['dtype']}\0{','.join(map(str, patch['shape']))}\0{patch['after']}\n")
    assert "gaps" in {patch["codec"] for patch in second["tensors"]}
    assert blake3("".join(sorted(lines)).encode()).hexdigest() == second["model_digest"]
    chained = f"run\0{1}\0{first['lineage']}\0{second['model_digest']}"
    assert blake3(chained.encode()).hexdigest() == second["lineage"]
    assert blake3(f"run\0{0}\0\0{first['model_digest']}".encode()).hexdigest() == first["lineage"]
