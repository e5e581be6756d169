"""How much of a far and narrow link uploads and downloads use while they are busy. A part of regions.py; also by itself:

    python bench/_link.py [--mb-per-s 20] [--rtt-ms 80] [--mb 64] [--objects 32] [--streams 16]

A real S3-protocol server (moto's) stands behind the shaping proxy; the proxy counts what crossed in each direction, and
from when to when. `wall` also counts connecting, the questions whether objects are there, and hashing.
"""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from msgspec import structs

from _result import finish

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.store.s3_server import BUCKET, serving

from twinmill.store.blobs import open_blobs
from twinmill.store.flight import TransferConfig
from twinmill.store.proxy.shaping import Shape, ShapingProxy
from twinmill.store.sinks import Folder
from twinmill.store.transfer import download, upload


def measure(bytes_per_s: float, rtt_s: float, parts: list[bytes], streams: int) -> dict[str, float]:
    shape = Shape(up_bytes_per_s=bytes_per_s, down_bytes_per_s=bytes_per_s, rtt_s=rtt_s)
    config = TransferConfig(streams=streams)
    alone_s = sum(map(len, parts)) / bytes_per_s
    with serving() as server, tempfile.TemporaryDirectory() as folder:
        port = int(server.config.endpoint.rpartition(":")[2])
        with ShapingProxy(("127.0.0.1", port), shape) as link:
            blobs = open_blobs(f"s3://{BUCKET}/link", config=structs.replace(server.config, endpoint=link.url))
            started = time.monotonic()
            refs = upload(blobs, parts, config, prefix="o")
            up_s = time.monotonic() - started
            up = link.up.use(bytes_per_s)
            link.forget()
            started = time.monotonic()
            download(blobs, refs, Folder(folder), config)
            down_s = time.monotonic() - started
            down = link.down.use(bytes_per_s)
        assert [(Path(folder) / ref.key).read_bytes() for ref in refs] == parts
    return {
        "link_use_up": up,
        "link_use_down": down,
        "up_wall_over_link": up_s / alone_s,
        "down_wall_over_link": down_s / alone_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb-per-s", type=float, default=20.0, help="of the link, in each direction")
    parser.add_argument("--rtt-ms", type=float, default=80.0)
    parser.add_argument("--mb", type=float, default=64.0, help="to send, in all")
    parser.add_argument("--objects", type=int, default=32)
    parser.add_argument("--streams", type=int, default=16)
    given = parser.parse_args()
    rng = random.Random(0)
    parts = [rng.randbytes(int(given.mb * 1e6 / given.objects)) for _ in range(given.objects)]
    measured = measure(given.mb_per_s * 1e6, given.rtt_ms / 1e3, parts, given.streams)
    finish("link", dict(measured), {"link_use_up": ">= 0.9", "link_use_down": ">= 0.9"})


if __name__ == "__main__":
    main()
