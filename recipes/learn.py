"""What `twinmill bench learn` runs: the laptop recipe without evaluations in between."""

import runpy
from pathlib import Path

import msgspec

from twinmill.cli.config import RunConfig

laptop = runpy.run_path(str(Path(__file__).with_name("laptop.py")))["recipe"]


def recipe() -> RunConfig:
    config = laptop()
    assert config.rl is not None
    rl = msgspec.structs.replace(config.rl, checkpoint_every=16)
    return msgspec.structs.replace(config, name="learn", rl=rl, evaluation=None)
