"""Which run, or which model, a command means."""

from pathlib import Path

from twinmill.cli.blocks import Blocks, ConfigError
from twinmill.store.runs import RunFolder


def open_run(run: str, root: Path) -> tuple[RunFolder, Blocks]:
    """`run` = a folder, the name of one below `root`, or "latest"."""
    if run == "latest":
        folder = RunFolder.latest(root)
    else:
        folder = RunFolder.open(Path(run) if (Path(run) / "run.json").exists() else root / run)
    return folder, Blocks(folder.config_path)


class model_folder:
    """A model folder as it is, or a version of a run materialized for as long as it is needed."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._made = None

    def __enter__(self) -> Path:
        import tempfile

        run, at, version = self._model.rpartition("@")
        if not at:
            if not (Path(self._model) / "config.json").exists():
                raise ConfigError(f"{self._model} is no Hugging Face folder (no config.json), and no RUN@VERSION")
            return Path(self._model)
        if not version.isdecimal():
            raise ConfigError(f"{self._model}: write RUN@VERSION with a number, e.g. latest@40")
        from twinmill.cli.proc.base import open_store
        from twinmill.publish.materialize import materialize

        self._made = tempfile.TemporaryDirectory(prefix="twinmill-")
        materialize(open_store(*open_run(run, Path("runs"))), int(version), Path(self._made.name) / "model")
        return Path(self._made.name) / "model"

    def __exit__(self, *_: object) -> None:
        if self._made is not None:
            self._made.cleanup()
