"""The formats of others: exact both ways, readable with the stock library alone, and nothing that lies is used."""

import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import zstandard
from blake3 import blake3
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from twinmill.publish.errors import BadFile, Refused
from twinmill.publish.interchange.checksums import CHECKSUMS
from twinmill.publish.interchange.files import TensorFile, write_tensors
from twinmill.publish.interchange.folder import INDEX, read_folder, write_folder
from twinmill.publish.interchange.sparse import read_sparse, write_sparse
from twinmill.publish.interchange.xor import ENCODINGS, read_xor, write_xor
from twinmill.publish.tensors import pack_safetensors

from .toys import DTYPES, State, first_state, moved, same

Change = tuple[State, State]


# ---- what changes can be


def _nothing(bits: Any, rng: Any) -> None:
    pass


def _few(bits: Any, rng: Any) -> None:
    where = rng.choice(bits.size, max(1, bits.size // 50), replace=False)
    bits[where] += rng.choice(np.array([1, -1, 3]), len(where)).astype(bits.dtype)


def _everything(bits: Any, rng: Any) -> None:
    bits ^= bits.dtype.type(1)


def _signs(bits: Any, rng: Any) -> None:
    bits[rng.random(bits.size) < 0.3] ^= bits.dtype.type(1 << bits.itemsize * 8 - 1)


def _anything(bits: Any, rng: Any) -> None:
    bits[:] = rng.integers(0, np.iinfo(bits.dtype).max, bits.size, bits.dtype, endpoint=True)


CHANGES = (_nothing, _few, _everything, _signs, _anything)


@st.composite
def changes(draw: st.DrawFn) -> Change:
    """Two states of the toy model: zeros and negative zeros, NaNs of many payloads, each tensor changed in its own way."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    before = first_state(int(rng.integers(1 << 30)))
    for array in before.values():
        special = [0, 1 << array.itemsize * 8 - 1, np.iinfo(array.dtype).max, np.iinfo(array.dtype).max >> 1]
        flat = array.reshape(-1)
        where = rng.random(flat.size) < 0.2
        flat[where] = rng.choice(np.array(special, array.dtype), int(where.sum()))
    after = {name: array.copy() for name, array in before.items()}
    for array in after.values():
        draw(st.sampled_from(CHANGES))(array.reshape(-1), rng)
    return before, after


def kept(state: State) -> State:
    return {name: array.copy() for name, array in state.items()}


FRESH = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def place(tmp_path: Path) -> Callable[[], Path]:
    """A new path at each call: hypothesis runs one test many times."""
    numbers = iter(range(1 << 30))
    return lambda: tmp_path / str(next(numbers))


# ---- exactness


@FRESH
@given(change=changes())
def test_a_sparse_patch_is_exact(change: Change, place: Callable[[], Path]) -> None:
    before, after = change
    held = kept(before)
    changed = write_sparse(path := place(), before, after, DTYPES, model_version=7)
    assert changed == sum(int((before[name] != after[name]).sum()) for name in before)
    assert same(read_sparse(path, before, DTYPES), after)
    assert same(before, held)


@FRESH
@given(change=changes(), encoding=st.sampled_from(sorted(ENCODINGS)), shard_bytes=st.sampled_from([1, 700, 1 << 30]))
def test_xor_and_overwrite_are_exact(
    change: Change, encoding: str, shard_bytes: int, place: Callable[[], Path]
) -> None:
    before, after = change
    held = kept(before)
    write_xor(
        folder := place(),
        before,
        after,
        DTYPES,
        version=8,
        base_version=7,
        encoding=encoding,
        shard_bytes=shard_bytes,
    )
    assert same(read_xor(folder, before, DTYPES, base_version=7), after)
    assert same(before, held)


@FRESH
@given(change=changes(), shard_bytes=st.sampled_from([1, 1100, 1 << 30]))
def test_a_folder_is_exact(change: Change, shard_bytes: int, place: Callable[[], Path]) -> None:
    _, state = change
    names = write_folder(folder := place(), state, DTYPES, files={"config.json": b"{}"}, shard_bytes=shard_bytes)
    found = read_folder(folder)
    assert same(found.state, state)
    assert found.dtypes == DTYPES
    assert sorted(p.name for p in folder.iterdir()) == sorted([*names, "config.json", *([INDEX] * (len(names) > 1))])
    assert len(names) == {1: len(state), 1100: 4, 1 << 30: 1}[shard_bytes]


def test_a_change_of_nothing_is_a_version(tmp_path: Path) -> None:
    state = first_state()
    assert write_sparse(tmp_path / "patch", state, state, DTYPES, model_version=1) == 0
    assert same(read_sparse(tmp_path / "patch", state, DTYPES), state)
    assert write_xor(tmp_path / "v1", state, state, DTYPES, version=1, base_version=0) == 0
    assert [p.name for p in (tmp_path / "v1").iterdir()] == [INDEX]
    assert same(read_xor(tmp_path / "v1", state, DTYPES), state)


def test_unchanged_tensors_are_shared_not_copied(tmp_path: Path) -> None:
    before = first_state()
    after = moved(before, 1)
    write_sparse(tmp_path / "patch", before, after, DTYPES, model_version=1)
    write_xor(tmp_path / "v1", before, after, DTYPES, version=1, base_version=0)
    idle = "model.layers.0.mlp.experts.1.up_proj.weight"
    for found in (read_sparse(tmp_path / "patch", before, DTYPES), read_xor(tmp_path / "v1", before, DTYPES)):
        assert found[idle] is before[idle]
        assert found["model.norm.weight"] is not before["model.norm.weight"]


# ---- with the stock library alone


def stock(path: Path) -> dict[str, Any]:
    """Name -> (bytes, dtype): the library's own reader, no framework."""
    return {name: (bytes(view["data"]), view["dtype"]) for name, view in safetensors.deserialize(path.read_bytes())}


def test_a_sparse_patch_with_the_stock_library_and_ten_lines(tmp_path: Path) -> None:
    before = first_state()
    after = moved(before, 1)
    write_sparse(path := tmp_path / "delta.safetensors", before, after, DTYPES, model_version=7)
    parts, applied = stock(path), {name: array.copy().reshape(-1) for name, array in before.items()}
    for name in [part.removesuffix(".indices") for part in parts if part.endswith(".indices")]:
        indices = np.frombuffer(parts[name + ".indices"][0], np.int32)
        applied[name][indices] = np.frombuffer(parts[name + ".values"][0], applied[name].dtype)
    assert all(applied[name].tobytes() == after[name].tobytes() for name in after)
    assert {dtype for name, (_, dtype) in parts.items() if name.endswith(".indices")} == {"I32"}
    with safetensors.safe_open(path, "np") as file:
        metadata = file.metadata()
    assert (metadata["sparse"], metadata["model_version"]) == ("True", "7")
    assert int(metadata["changed_elements"]) == sum(int((before[n] != after[n]).sum()) for n in before)


def test_an_xor_folder_with_the_stock_library_and_ten_lines(tmp_path: Path) -> None:
    before = first_state()
    after = moved(before, 1)
    write_xor(folder := tmp_path / "v", before, after, DTYPES, version=8, base_version=7, shard_bytes=100)
    index, applied = json.loads((folder / INDEX).read_text()), {n: a.tobytes() for n, a in before.items()}
    for name, place in index["weight_map"].items():
        with safetensors.safe_open(folder / place, "np") as file:
            diff = np.frombuffer(zstandard.decompress(file.get_tensor(name).tobytes()), np.uint8)
            applied[name] = (np.frombuffer(applied[name], np.uint8) ^ diff).tobytes()
            assert blake3(applied[name]).hexdigest() == file.metadata()[name]
    assert all(applied[name] == after[name].tobytes() for name in after)
    want = {"version": "000008", "base_version": "000007", "delta_encoding": "xor", "compression_format": "zstd"}
    assert want.items() <= index["metadata"].items()
    assert len(set(index["weight_map"].values())) > 1
    assert "model-00000-of-" in min(index["weight_map"].values())


def test_a_folder_with_the_stock_library(tmp_path: Path) -> None:
    state = first_state()
    names = write_folder(folder := tmp_path / "model", state, DTYPES, shard_bytes=1100)
    index = json.loads((folder / INDEX).read_text())
    assert index["metadata"]["total_size"] == sum(array.nbytes for array in state.values())
    assert names[0] == "model-00001-of-00004.safetensors"
    for name, place in index["weight_map"].items():
        assert stock(folder / place)[name] == (state[name].tobytes(), DTYPES[name])


def test_what_the_stock_library_writes_is_read(tmp_path: Path) -> None:
    """As slime and TRL do it: safetensors.numpy for the one, safetensors.torch for the other."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("xxhash")
    from safetensors.torch import save_file

    before, name = {"w": np.arange(300, dtype=np.uint16).reshape(3, 100)}, "w"
    after = {"w": before["w"] ^ np.uint16(0x8001)}
    frame = np.frombuffer(zstandard.ZstdCompressor(1).compress((before[name] ^ after[name]).tobytes()), np.uint8)
    sums = {name: CHECKSUMS["xxh3-128"](memoryview(after[name].tobytes()))}
    (folder := tmp_path / "weight_v000002").mkdir()
    (folder / "model-00000-of-00001.safetensors").write_bytes(safetensors.numpy.save({name: frame}, metadata=sums))
    metadata = {"version": "000002", "base_version": "000001", "delta_encoding": "xor", "compression_format": "zstd"}
    index = {
        "metadata": metadata | {"checksum_format": "xxh3-128"},
        "weight_map": {name: "model-00000-of-00001.safetensors"},
    }
    (folder / INDEX).write_text(json.dumps(index))
    assert same(read_xor(folder, before, {"w": "BF16"}, base_version=1), after)

    values = torch.from_numpy(after["w"].reshape(-1).view(np.int16)[5:9].copy()).view(torch.bfloat16)
    parts = {"w.indices": torch.arange(5, 9, dtype=torch.int32), "w.values": values}
    save_file(parts, tmp_path / "delta.safetensors", {"sparse": "True", "model_version": "1"})
    with pytest.raises(BadFile, match="no digests"):
        read_sparse(tmp_path / "delta.safetensors", before, {"w": "BF16"})
    found = read_sparse(tmp_path / "delta.safetensors", before, {"w": "BF16"}, unchecked=True)
    assert np.array_equal(found["w"].reshape(-1)[5:9], after["w"].reshape(-1)[5:9])
    assert (found["w"] != before["w"]).sum() == 4

    save_file({"w": values}, tmp_path / "model.safetensors")
    assert np.array_equal(read_folder(tmp_path).state["w"], after["w"].reshape(-1)[5:9])


def test_xxh3_is_that_of_the_package() -> None:
    xxhash = pytest.importorskip("xxhash")
    assert CHECKSUMS["xxh3-128"](memoryview(b"abc")) == xxhash.xxh3_128(b"abc").hexdigest()


def test_equal_states_give_equal_files_and_the_header_is_that_of_the_log(tmp_path: Path) -> None:
    state = first_state()
    size = write_tensors(tmp_path / "a", state, DTYPES, {"format": "pt"})
    data = (tmp_path / "a").read_bytes()
    assert (data, size) == (pack_safetensors(state, DTYPES)[0], len(data))
    assert all(np.array_equal(TensorFile(tmp_path / "a")[name], array) for name, array in state.items())


# ---- what is refused


@pytest.fixture
def patch(tmp_path: Path) -> tuple[Path, State]:
    before = first_state()
    write_sparse(path := tmp_path / "patch.safetensors", before, moved(before, 1), DTYPES, model_version=1)
    return path, before


@pytest.fixture
def delta(tmp_path: Path) -> tuple[Path, State]:
    before = first_state()
    write_xor(folder := tmp_path / "v1", before, moved(before, 1), DTYPES, version=1, base_version=0)
    return folder, before


def test_a_wrong_base_is_refused(patch: tuple[Path, State], delta: tuple[Path, State]) -> None:
    other = moved(patch[1], 5)
    with pytest.raises(BadFile, match="another one"):
        read_sparse(patch[0], other, DTYPES)
    with pytest.raises(BadFile, match="on this base"):
        read_xor(delta[0], other, DTYPES)
    with pytest.raises(BadFile, match="base_version is '000000'; want one of 000003"):
        read_xor(delta[0], delta[1], DTYPES, base_version=3)
    untouched = kept(delta[1])
    untouched["model.layers.0.mlp.experts.1.up_proj.weight"][0, 0] ^= 1
    with pytest.raises(BadFile, match="leaves alone differ"):
        read_xor(delta[0], untouched, DTYPES)


def rewritten(path: Path, edit: Callable[[dict[str, Any], dict[str, Any]], None]) -> None:
    """Edit parts and metadata of a patch as a faulty writer would: the file itself stays sound."""
    file = TensorFile(path)
    parts = {name: (file[name].copy(), info.dtype) for name, info in file.tensors.items()}
    metadata: dict[str, Any] = dict(file.metadata)
    edit(parts, metadata)
    write_tensors(path, {n: a for n, (a, _) in parts.items()}, {n: d for n, (_, d) in parts.items()}, metadata)


EMBED = "model.embed_tokens.weight"


def _set(name: str, at: int, value: int) -> Callable[[Any, Any], None]:
    return lambda parts, metadata: parts[name][0].__setitem__(at, value)


def _swap(parts: Any, metadata: Any) -> None:
    parts[EMBED + ".indices"][0][:2] = parts[EMBED + ".indices"][0][1::-1]


LIES: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "an index behind the end": (_set(EMBED + ".indices", -1, 1024), "do not rise, or leave 0 .. 1023"),
    "a negative index": (_set(EMBED + ".indices", 0, 0xFFFFFFFF), "do not rise, or leave"),
    "indices that do not rise": (_swap, "do not rise"),
    "a value of another": (_set(EMBED + ".values", 0, 1), "does not lead to digest"),
    "values without indices": (lambda p, m: p.pop(EMBED + ".indices"), "has only .values"),
    "one value too few": (
        lambda p, m: p.update({EMBED + ".values": (p[EMBED + ".values"][0][1:], "BF16")}),
        r"of shape \(20,\), values of shape \(19,\)",
    ),
    "values of another dtype": (
        lambda p, m: p.update({EMBED + ".values": (p[EMBED + ".values"][0], "F16")}),
        "F16 values; want I32 and BF16",
    ),
    "indices of another dtype": (
        lambda p, m: p.update({EMBED + ".indices": (p[EMBED + ".indices"][0], "U32")}),
        "U32 indices",
    ),
    "a tensor that the base has not": (
        lambda p, m: p.update({"x" + s: p.pop(EMBED + s) for s in (".indices", ".values")}),
        "no such tensor",
    ),
    "a name of no kind": (lambda p, m: p.update({"x": p.pop(EMBED + ".values")}), "want only names that end"),
    "no sparse patch": (lambda p, m: m.update(sparse="False"), "no sparse patch"),
    "no digest": (lambda p, m: m.pop("digest"), "unchecked=True"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_sparse_patch_that_lies_is_refused(lie: str, patch: tuple[Path, State]) -> None:
    path, before = patch
    held = kept(before)
    edit, message = LIES[lie]
    rewritten(path, edit)
    with pytest.raises(BadFile, match=message):
        read_sparse(path, before, DTYPES)
    assert same(before, held)


def _index(folder: Path, edit: Callable[[Any], Any]) -> None:
    index = json.loads((folder / INDEX).read_text())
    edit(index)
    (folder / INDEX).write_text(json.dumps(index))


INDEX_LIES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "adler32": (lambda i: i["metadata"].update(checksum_format="adler32"), "checksum_format is 'adler32'"),
    "lz4": (lambda i: i["metadata"].update(compression_format="lz4"), "compression_format is 'lz4'; want one of zstd"),
    "arc_v3": (lambda i: i["metadata"].update(delta_encoding="arc_v3"), "want one of xor, overwrite"),
    "a list": (lambda i: i["metadata"].update(delta_encoding=["xor"]), r"delta_encoding is \['xor'\]"),
    "overwrite": (lambda i: i["metadata"].update(delta_encoding="overwrite"), "its frame is damaged"),
    "a path": (lambda i: i["weight_map"].update({EMBED: "../x.safetensors"}), "no plain file name"),
    "a pickle": (lambda i: i["weight_map"].update({EMBED: "pytorch_model.bin"}), "only safetensors files are read"),
    "a file too many": (lambda i: i["weight_map"].update({EMBED: "y.safetensors"}), "index disagree"),
    "a tensor too few": (lambda i: i["weight_map"].pop(EMBED), "index disagree"),
    "no metadata": (lambda i: i.pop("metadata"), "compression_format is None"),
    "no map": (lambda i: i.pop("weight_map"), "want an object with weight_map"),
    "another model": (lambda i: i["metadata"].update(model_digest="00"), "does not lead to model digest"),
}


@pytest.mark.parametrize("lie", INDEX_LIES)
def test_an_index_that_lies_is_refused(lie: str, delta: tuple[Path, State]) -> None:
    edit, message = INDEX_LIES[lie]
    _index(delta[0], edit)
    with pytest.raises(BadFile, match=message):
        read_xor(delta[0], delta[1], DTYPES)


def test_an_index_that_is_none_is_refused(delta: tuple[Path, State]) -> None:
    for text, message in (("{", "no sound JSON"), ("[]", "want an object"), ("[" * 10**5, "no sound JSON")):
        (delta[0] / INDEX).write_text(text)
        with pytest.raises(BadFile, match=message):
            read_xor(delta[0], delta[1], DTYPES)
    (delta[0] / INDEX).unlink()
    with pytest.raises(BadFile, match="there is no index"):
        read_xor(delta[0], delta[1], DTYPES)


def test_a_frame_that_would_fill_the_memory_is_refused_unread(delta: tuple[Path, State]) -> None:
    folder, before = delta
    [path] = folder.glob("*.safetensors")
    bomb = np.frombuffer(zstandard.ZstdCompressor().compress(bytes(64 << 20)), np.uint8)
    silent = np.frombuffer(zstandard.ZstdCompressor(write_content_size=False).compress(bytes(2048)), np.uint8)
    for frame, message in ((bomb, "claims 67108864 bytes, at most 2048"), (silent, "at most 2048 are possible")):
        rewritten(path, lambda parts, metadata, frame=frame: parts.update({EMBED: (frame, "U8")}))  # type: ignore[misc]
        with pytest.raises(BadFile, match=message):
            read_xor(folder, before, DTYPES)


def test_a_tensor_without_a_checksum_is_refused(delta: tuple[Path, State]) -> None:
    [path] = delta[0].glob("*.safetensors")
    rewritten(path, lambda parts, metadata: metadata.pop(EMBED))
    with pytest.raises(BadFile, match="no checksum"):
        read_xor(delta[0], delta[1], DTYPES)


class Trap:
    """What a pickle can do: this one would be seen."""

    def __reduce__(self) -> Any:
        return (pytest.fail, ("a pickle was loaded",))


@pytest.mark.parametrize("protocol", range(2, 6))
def test_pickles_are_refused_by_name(protocol: int, tmp_path: Path) -> None:
    trap = pickle.dumps(Trap(), protocol)
    for head, message in ((b"", "this is a pickle"), (b"ARC3_ENVELOPE\0", "arc_v3"), (b"PK\x03\x04", "torch.save")):
        (tmp_path / "model.safetensors").write_bytes(head + trap)
        with pytest.raises(BadFile, match=message):
            read_folder(tmp_path)
        with pytest.raises(BadFile, match=message):
            read_sparse(tmp_path / "model.safetensors", first_state(), DTYPES)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(BadFile, match=r"only pickles \(pytorch_model.bin\)"):
        read_folder(tmp_path)


def forged(header: Any, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def entry(dtype: Any = "U8", shape: Any = (4,), offsets: Any = (0, 4)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


FILES = {
    "empty": (b"", "0 bytes are no safetensors file"),
    "header cut": (forged({"w": entry()})[:20], "truncated"),
    "header of 2^60 bytes": (struct.pack("<Q", 1 << 60) + bytes(100), "truncated, or no safetensors"),
    "no JSON": (forged(b"{]"), "no sound JSON"),
    "no text": (forged(b"\xff\xfe\x00"), "no sound JSON"),
    "deep": (forged(b"[" * 100_000), "no sound JSON"),
    "no object": (forged(b"[]"), "no JSON object"),
    "a name twice": (forged(b'{"w":1,"w":2}'), "occurs twice"),
    "unknown dtype": (forged({"w": entry("F8_E4M3FNUZ")}, bytes(4)), "unknown dtype 'F8_E4M3FNUZ'"),
    "dtype of no kind": (forged({"w": entry(["U8"])}, bytes(4)), "dtype"),
    "a field too many": (forged({"w": entry() | {"x": 1}}, bytes(4)), "want exactly"),
    "a negative size": (forged({"w": entry(shape=[-4])}, bytes(4)), "no sizes"),
    "a size of truth": (forged({"w": entry(shape=[True, 4])}, bytes(4)), "no sizes"),
    "a size of 2^70": (forged({"w": entry(shape=[1 << 70, 0], offsets=[0, 0])}), "no sizes"),
    "too many dimensions": (forged({"w": entry(shape=[1] * 40, offsets=[0, 1])}, b"x"), "no sizes"),
    "a length that lies": (forged({"w": entry(shape=[5])}, bytes(4)), "4 bytes for a tensor of 5"),
    "an overlap": (forged({"a": entry(), "b": entry()}, bytes(4)), "starts at byte"),
    "a hole": (forged({"a": entry(), "b": entry(offsets=[5, 9])}, bytes(9)), "starts at byte"),
    "truncated": (forged({"w": entry()}, bytes(3)), "truncated"),
    "bytes behind the end": (forged({"w": entry()}, bytes(5)), "not all of it"),
    "metadata of no kind": (forged({"__metadata__": {"a": 1}}), "map names to strings"),
}


@pytest.mark.parametrize("lie", FILES)
def test_files_that_do_not_add_up_are_refused(lie: str, tmp_path: Path) -> None:
    data, message = FILES[lie]
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(BadFile, match=message):
        TensorFile(tmp_path / "model.safetensors")


def test_tensors_that_do_not_align_are_read(tmp_path: Path) -> None:
    header = {"a": entry("U8", [1], [0, 1]), "b": entry("F32", [2], [1, 9])}
    (tmp_path / "f").write_bytes(forged(header, bytes(range(9))))
    found = TensorFile(tmp_path / "f")["b"]
    assert found.flags.aligned
    assert found.tobytes() == bytes(range(1, 9))


@FRESH
@given(data=st.data())
def test_damage_is_seen_or_harmless(data: st.DataObject, place: Callable[[], Path]) -> None:
    """Any byte of a patch or a delta set to anything, any cut: BadFile, or the very state that was written."""
    before = first_state()
    after, held = moved(before, 1), kept(before)
    write_sparse(patch := place(), before, after, DTYPES, model_version=1)
    write_xor(folder := place(), before, after, DTYPES, version=1, base_version=0)
    whole = place()
    write_folder(whole, after, DTYPES)
    reads: dict[Path, Callable[[], Any]] = {
        patch: lambda: read_sparse(patch, before, DTYPES),
        next(folder.glob("*.safetensors")): lambda: read_xor(folder, before, DTYPES),
        whole / "model.safetensors": lambda: read_folder(whole).state,
    }
    for path, read in reads.items():
        sound = path.read_bytes()
        damaged = bytearray(sound)
        for _ in range(data.draw(st.integers(1, 3))):
            damaged[data.draw(st.integers(0, len(sound) - 1))] = data.draw(st.integers(0, 255))
        path.write_bytes(damaged[: data.draw(st.sampled_from([len(sound), len(sound) // 2, len(sound) - 1]))])
        try:
            found = read()
        except BadFile:
            continue
        finally:
            assert same(before, held)
        assert same(found, after)


def test_states_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    before = first_state()
    fewer = {name: array for name, array in before.items() if name != "scale"}
    other = before | {"scale": np.zeros(6, np.uint8)}
    for after, message in ((fewer, "'scale' is in one state only"), (other, r"\(5,\) before and uint8\(6,\) after")):
        with pytest.raises(Refused, match=message):
            write_sparse(tmp_path / "p", before, after, DTYPES, model_version=1)
        with pytest.raises(Refused, match=message):
            write_xor(tmp_path / "v", before, after, DTYPES, version=1, base_version=0)
    with pytest.raises(Refused, match="want one of xor, overwrite"):
        write_xor(tmp_path / "v", before, before, DTYPES, version=1, base_version=0, encoding="gaps")
    with pytest.raises(Refused, match="adler32"):
        write_xor(
            tmp_path / "v", before, moved(before, 1), DTYPES, version=1, base_version=0, checksum_format="adler32"
        )
    with pytest.raises(FileExistsError, match="name a new folder"):
        write_folder(tmp_path, before, DTYPES)
    with pytest.raises(BadFile, match="no plain file name"):
        write_folder(tmp_path / "m", before, DTYPES, files={"../config.json": b""})
    assert [p.name for p in tmp_path.iterdir()] == [], "what fails leaves nothing behind"


def test_a_folder_without_a_model_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="has neither model"):
        read_folder(tmp_path)
    write_folder(tmp_path / "m", first_state(), DTYPES, shard_bytes=1100)
    (tmp_path / "m" / "model-00002-of-00004.safetensors").unlink()
    with pytest.raises(BadFile, match=r"names model-00002-of-00004\.safetensors, which is not there"):
        read_folder(tmp_path / "m")


def test_a_header_that_begins_like_a_pickle_is_read(tmp_path: Path) -> None:
    """640 bytes of header are 0x80 0x02 in the file, as a pickle of protocol 2 begins."""
    header = b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    (tmp_path / "x.safetensors").write_bytes((640).to_bytes(8, "little") + header.ljust(640) + b"\x07")
    assert TensorFile(tmp_path / "x.safetensors")["a"].tolist() == [7]
