"""Transfers against a real S3-protocol server that has every kind of bad day."""

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from msgspec import structs

from twinmill.records.base import Ref
from twinmill.store.blobs import Blobs, ObjectBlobs, digest_of, open_blobs
from twinmill.store.errors import Corrupt, StoreUnavailable, TransferFailed
from twinmill.store.flight import Progress, TransferConfig
from twinmill.store.proxy.faults import Fault, FaultProxy, FaultScript
from twinmill.store.sinks import Buffers
from twinmill.store.spans import Want
from twinmill.store.transfer import absent, download, upload

from .s3_server import BUCKET, S3Server

PARTS = [random.Random(i).randbytes(20_000 + i) for i in range(12)]
KEYS = {f"o/{digest_of(part)}" for part in PARTS}
STURDY = TransferConfig(
    request_bytes=8000, backoff_s=0.005, backoff_max_s=0.05, retries=15, deadline_s=2.0, silence_s=1.0, seed=1
)
BRIEF = structs.replace(STURDY, retries=2, deadline_s=0.4, silence_s=0.3)


@contextmanager
def behind(s3: S3Server, name: str, script: FaultScript) -> Iterator[tuple[FaultProxy, ObjectBlobs, ObjectBlobs]]:
    """The proxy, the store through it, and the same store without. Equal names meet equal faults."""
    port = int(s3.config.endpoint.rpartition(":")[2])
    plain = open_blobs(f"s3://{BUCKET}/faults/{name}", config=s3.config)
    with FaultProxy(("127.0.0.1", port), script, stall_s=30.0) as proxy:
        yield proxy, open_blobs(plain.url, config=structs.replace(s3.config, endpoint=proxy.url)), plain


def got(blobs: Blobs, refs: list[Ref], config: TransferConfig) -> list[bytes]:
    sink = Buffers()
    download(blobs, refs, sink, config)
    return [bytes(sink[Want.of(ref)]) for ref in refs]


@pytest.mark.parametrize("fault", list(Fault))
def test_transfers_come_through_every_fault(s3: S3Server, fault: Fault) -> None:
    """Now and then, the same one."""
    rate = 0.06 if fault in (Fault.STALL, Fault.STALL_MIDWAY) else 0.3
    with behind(s3, f"every-{fault.value}", FaultScript(seed=2, rates={fault: rate}, in_a_row=3)) as (
        proxy,
        blobs,
        plain,
    ):
        refs = upload(blobs, PARTS, STURDY, prefix="o")
        assert [plain.get_ref(ref) for ref in refs] == PARTS
        assert got(blobs, refs, STURDY) == PARTS
        assert proxy.met[fault] >= 2, "it did happen"
        assert proxy.met.total() == proxy.met[fault]


@pytest.mark.parametrize("seed", range(3))
def test_transfers_come_through_all_of_them_at_once(s3: S3Server, seed: int) -> None:
    rates = {fault: 0.01 if fault in (Fault.STALL, Fault.STALL_MIDWAY) else 0.06 for fault in Fault}
    with behind(s3, f"all-{seed}", FaultScript(seed=seed, rates=rates)) as (proxy, blobs, plain):
        seen: list[Progress] = []
        refs = upload(blobs, PARTS, STURDY, seen.append, prefix="o")
        assert [plain.get_ref(ref) for ref in refs] == PARTS
        assert got(blobs, refs, STURDY) == PARTS
        assert len(proxy.met) >= 4
        assert seen[-1].done_bytes == seen[-1].total_bytes
        assert seen[-1].retries > 0


CAUSES = {
    Fault.SLOW_DOWN: "503",
    Fault.SERVER_ERROR: "500",
    Fault.RESET: "error sending request",
    Fault.LOST_ANSWER: "error sending request",
    Fault.SHORT: "is not what was sent",
    Fault.FLIPPED: "is not what was sent",
    Fault.STALL: "not through within",
}


@pytest.mark.parametrize("fault", list(CAUSES))
def test_an_upload_gives_up_by_name(s3: S3Server, fault: Fault) -> None:
    with behind(s3, f"up-{fault.value}", FaultScript(good=0, end=fault, methods=("PUT",))) as (proxy, blobs, _):
        started = time.monotonic()
        with pytest.raises(TransferFailed) as e:
            upload(blobs, PARTS[:1], BRIEF, prefix="o")
        assert time.monotonic() - started < 60
        assert e.value.key in KEYS and e.value.key in str(e.value)
        assert e.value.attempts == 3 and "3 attempts" in str(e.value)
        assert CAUSES[fault] in e.value.cause
        # the client below tries nothing by itself: this many requests and no more
        assert proxy.met[fault] == 3


@pytest.mark.parametrize("fault", [Fault.SLOW_DOWN, Fault.RESET, Fault.TRUNCATED, Fault.STALL, Fault.STALL_MIDWAY])
def test_a_download_gives_up_by_name(s3: S3Server, fault: Fault) -> None:
    causes = {**CAUSES, Fault.TRUNCATED: "response body", Fault.STALL_MIDWAY: "silent for 0.3 s after"}
    causes[Fault.STALL] = "silent for 0.3 s after 0 of"
    with behind(s3, f"down-{fault.value}", FaultScript(good=0, end=fault, methods=("GET",))) as (proxy, blobs, plain):
        refs = upload(plain, PARTS[:1], prefix="o")
        with pytest.raises(TransferFailed) as e:
            got(blobs, refs, structs.replace(BRIEF, request_bytes=1 << 20))
        assert e.value.key in KEYS
        assert e.value.attempts == 3
        assert causes[fault] in e.value.cause
        assert proxy.met[fault] == 3


def test_bits_that_always_flip_are_never_handed_out(s3: S3Server) -> None:
    with behind(s3, "bits", FaultScript(good=0, end=Fault.FLIPPED, methods=("GET",))) as (_, blobs, plain):
        refs = upload(plain, PARTS, prefix="o")
        sink = Buffers()
        with pytest.raises(Corrupt, match=r"fetched 3 times from s3://.*never with its digest"):
            download(blobs, refs[:1], sink, BRIEF)
        with pytest.raises(KeyError):
            sink[Want.of(refs[0])]


def test_the_budget_holds_whatever_the_store_does(s3: S3Server) -> None:
    with behind(s3, "budget", FaultScript(good=0, end=Fault.STALL)) as (_, blobs, plain):
        refs = upload(plain, PARTS, prefix="o")
        config = TransferConfig(budget_s=0.5)
        for transfer in (
            lambda: upload(blobs, PARTS, config, prefix="o"),
            lambda: got(blobs, refs, config),
            lambda: absent(blobs, refs, config),
        ):
            started = time.monotonic()
            with pytest.raises(TransferFailed, match=r"budget of 0\.5 s is used up"):
                transfer()
            assert 0.4 < time.monotonic() - started < 30.0


def test_an_upload_goes_on_after_the_store_was_down(s3: S3Server) -> None:
    with behind(s3, "resume", FaultScript(good=20, end=Fault.SERVER_ERROR)) as (proxy, blobs, plain):
        with pytest.raises(TransferFailed):
            upload(blobs, PARTS, BRIEF, prefix="o")
        there = len(plain.list("o"))
        assert 0 < there < len(PARTS)
        proxy.change(FaultScript())
        refs = upload(blobs, PARTS, BRIEF, prefix="o")
        assert proxy.requests["HEAD"] == len(PARTS)
        assert 0 < proxy.requests["PUT"] <= len(PARTS) - there
        assert [plain.get_ref(ref) for ref in refs] == PARTS


def test_create_if_absent_is_not_fooled_by_a_lost_answer(s3: S3Server) -> None:
    """The small writes of the logs."""
    with behind(
        s3, "claim", FaultScript(seed=1, rates={Fault.LOST_ANSWER: 0.5, Fault.SLOW_DOWN: 0.2}, in_a_row=2)
    ) as world:
        proxy, blobs, plain = world
        for i in range(6):
            assert claimed(blobs, f"k{i}", b"mine")
            assert plain.get(f"k{i}") == b"mine"
            assert not claimed(blobs, f"k{i}", b"theirs")
        assert proxy.met[Fault.LOST_ANSWER] > 2


def claimed(blobs: Blobs, key: str, data: bytes) -> bool:
    """The client does not repeat a write whose answer was lost: only we know that this one may be."""
    for _ in range(6):
        try:
            return blobs.claim(key, data)
        except StoreUnavailable:
            continue
    raise AssertionError("never through")


def test_what_a_script_does_depends_on_its_seed_alone() -> None:
    def days(seed: int) -> list[Fault | None]:
        script = FaultScript(seed=seed, rates={Fault.RESET: 0.3, Fault.STALL: 0.2}, good=90)
        return [script.fault(i, f"GET /o/{i % 7}", i // 7, 0) for i in range(100)]

    assert days(1) == days(1) != days(2)
    assert days(1)[90:] == [Fault.SLOW_DOWN] * 10
    assert {*days(1)[:90]} == {None, Fault.RESET, Fault.STALL}
