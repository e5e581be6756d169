"""Process role `trainer`: mid-training, SFT, then the second mill; each phase is resumed from what it left behind."""

import io
import time
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from twinmill.batch.samples import Rejected
from twinmill.cli.config import RunConfig, from_json
from twinmill.data.chats import read_chats
from twinmill.data.corpus import read_corpus
from twinmill.data.render import open_renderer
from twinmill.model import hf
from twinmill.model.transformer import Decoder
from twinmill.publish.manifest import WeightsLog
from twinmill.publish.publisher import Publisher
from twinmill.records.base import Ref
from twinmill.records.samples import StepReport
from twinmill.records.weights import WeightVersion
from twinmill.store.blobs import Blobs
from twinmill.store.ledger import EpisodesLog
from twinmill.train.checkpoint import Checkpoints
from twinmill.train.midtrain import midtrain
from twinmill.train.rl import Ports, rl, rl_trainer
from twinmill.train.sft import sft

from .base import Role, enter

CHATS_WAIT_S = 900.0
"""how long SFT waits for the expert's transcripts"""


def main(role: Role) -> None:
    config = from_json(role.run.config_path.read_bytes())
    torch.set_num_threads(config.trainer_threads)
    torch.manual_seed(config.seed)
    folder = Path(config.model)
    if config.midtrain is not None and config.midtrain.steps:
        folder = phase(role, "midtrain", folder, lambda decoder: run_midtrain(role, config, decoder))
    if config.sft is not None and config.sft.steps:
        folder = phase(role, "sft", folder, lambda decoder: run_sft(role, config, decoder))
    if config.rl is not None:
        role.metrics.write("phase", name="rl", state="start")
        run_rl(role, config, folder)
        role.metrics.write("phase", name="rl", state="end")


def phase(role: Role, name: str, base: Path, train) -> Path:  # type: ignore[no-untyped-def]
    """Train a copy of `base`, or find that a run before this one has done so already. Returns its folder."""
    out = role.run.path / "models" / name
    if (out / "config.json").exists():
        return out
    role.metrics.write("phase", name=name, state="start")
    started = time.time()
    decoder, _ = hf.load_folder(base)
    train(decoder)
    staging = out.with_name(f".{name}")
    staging.mkdir(parents=True, exist_ok=True)
    hf.save_folder(decoder, staging)
    (staging / "tokenizer.json").write_bytes((base / "tokenizer.json").read_bytes())
    staging.rename(out)
    role.metrics.write("busy", lane="train", start=started, end=time.time(), what=name)
    role.metrics.write("phase", name=name, state="end")
    return out


def emit_to(role: Role):  # type: ignore[no-untyped-def]
    def emit(report: StepReport) -> None:
        role.heart.beat()
        role.metrics.write("train", **msgspec.to_builtins(report))

    return emit


def run_midtrain(role: Role, config: RunConfig, decoder: Decoder) -> None:
    assert config.midtrain is not None
    role.heart.beat()
    train, heldout = read_corpus(config.corpus, open_renderer(config.model))
    checkpoints = Checkpoints(role.run, "checkpoints/midtrain")
    found = midtrain(config.midtrain, decoder, train, heldout, emit_to(role), checkpoints)
    role.metrics.write("heldout", stage="before", loss=found.before)
    role.metrics.write("heldout", stage="after", loss=found.after)
    print(f"held-out loss per token: {found.before:.3f} before, {found.after:.3f} after mid-training", flush=True)


def run_sft(role: Role, config: RunConfig, decoder: Decoder) -> None:
    assert config.sft is not None
    path = role.run.path / "chats.jsonl"
    deadline = time.monotonic() + CHATS_WAIT_S
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no transcripts at {path} after {CHATS_WAIT_S:.0f} s; see logs/expert.log")
        role.heart.beat()
        time.sleep(0.2)
    sft(config.sft, decoder, read_chats(path), emit_to(role), Checkpoints(role.run, "checkpoints/sft"))


class Versions:
    """The trainer's end of the weights log: train.rl.Versions on a Publisher."""

    def __init__(self, role: Role, blobs: Blobs, config: RunConfig, folder: Path) -> None:
        self._role, self._log = role, WeightsLog(blobs)
        self._publisher = Publisher(blobs, role.run.record.run_id, config.publish)
        self._files = {
            "config": (folder / "config.json").read_bytes(),
            "tokenizer": (folder / "tokenizer.json").read_bytes(),
        }

    def history(self) -> list[WeightVersion]:
        return [self._log.get(n) for n in range(self._log.newest() + 1)]

    def publish(self, bits, dtypes, *, step, slots, checkpoint) -> WeightVersion:  # type: ignore[no-untyped-def]
        started = time.time()
        first = self._publisher.latest is None
        version = self._publisher.publish(
            bits, dtypes, step=step, slots=slots, checkpoint=checkpoint, **(self._files if first else {})
        )
        changed = sum(patch.changed for patch in version.tensors)
        total = sum(array.size for array in bits.values())
        self._role.metrics.write(
            "publish",
            version=version.number,
            version_kind=version.kind.value,
            delta_bytes=version.object.bytes,
            full_bytes=version.full_bytes,
            seconds=time.time() - started,
            changed_frac=changed / total,
        )
        for slot in slots:
            self._role.metrics.write("slot", slot=slot, cluster="", event="train", version=version.number)
        return version


def run_rl(role: Role, config: RunConfig, folder: Path) -> None:
    assert config.rl is not None
    blobs = role.blobs()
    decoder, _ = hf.load_folder(folder)
    reference = hf.load_folder(folder)[0] if config.rl.preparation.credit.kl > 0 else None
    report = emit_to(role)

    def emit(step: StepReport) -> None:
        """A step's report, and the span in which the trainer was busy with it."""
        end = time.time()
        busy = sum(s for phase, s in step.seconds.items() if phase not in ("wait", "total"))
        role.metrics.write("busy", lane="train", start=end - busy, end=end, what="step")
        report(step)

    def load_experts(ref: Ref) -> npt.NDArray[np.uint16]:
        return np.load(io.BytesIO(blobs.get_ref(ref)), allow_pickle=False)

    def reject(rejected: Rejected) -> None:
        role.metrics.write("event", level="warning", what="sample rejected", text=str(rejected))

    def sleep(seconds: float) -> None:
        role.heart.beat()
        time.sleep(seconds)

    ports = Ports(
        episodes=EpisodesLog(blobs),
        versions=Versions(role, blobs, config, folder),
        checkpoints=Checkpoints(role.run),
        load_experts=load_experts,
        emit=emit,
        reject=reject,
        reference=reference,
        sleep=sleep,
    )
    rl(config.rl, rl_trainer(config.rl, decoder), ports)


if __name__ == "__main__":
    main(enter())
