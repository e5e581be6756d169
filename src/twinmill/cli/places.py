"""Which run a command means."""

from pathlib import Path

from twinmill.cli.blocks import Blocks
from twinmill.store.runs import RunFolder


def open_run(run: str, root: Path) -> tuple[RunFolder, Blocks]:
    """`run` = a folder, the name of one below `root`, or "latest"."""
    if run == "latest":
        folder = RunFolder.latest(root)
    else:
        folder = RunFolder.open(Path(run) if (Path(run) / "run.json").exists() else root / run)
    return folder, Blocks(folder.config_path)
