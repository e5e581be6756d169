"""Process role `trainer`: mid-training, SFT, then the second mill; each phase is resumed from what it left behind."""

import time
from pathlib import Path

import msgspec
import torch
from tokenizers import Tokenizer

from twinmill.batch.samples import Rejected
from twinmill.cli.config import RunConfig, from_json
from twinmill.data.chats import read_chats
from twinmill.data.corpus import read_corpus
from twinmill.data.render import open_renderer
from twinmill.engine.embedded import EngineConfig
from twinmill.engine.embedded.config import backend_of
from twinmill.model import hf
from twinmill.model.config import ModelConfig, Parity
from twinmill.model.memory import keep_freed_memory
from twinmill.model.transformer import Decoder
from twinmill.publish.errors import PublishError
from twinmill.records.samples import StepReport
from twinmill.records.weights import WeightVersion
from twinmill.store.errors import StoreError
from twinmill.store.ledger import EpisodesLog
from twinmill.train.checkpoint import Checkpoints
from twinmill.train.midtrain import midtrain
from twinmill.train.recorded import expert_loader
from twinmill.train.rl import Ports, rl, rl_trainer
from twinmill.train.sft import sft
from twinmill.train.versions import RunVersions

from .base import Role, perform

CHATS_WAIT_S = 900.0
"""how long SFT waits for the expert's transcripts"""


def main(role: Role) -> None:
    keep_freed_memory()
    config = from_json(role.run.config_path.read_bytes())
    torch.set_num_threads(config.trainer_threads)
    torch.manual_seed(config.seed)
    folder = Path(config.model)
    if config.midtrain is not None and config.midtrain.steps:
        steps = config.midtrain.steps
        folder = phase(role, "midtrain", folder, steps, lambda decoder: run_midtrain(role, config, decoder))
    if config.sft is not None and config.sft.steps:
        folder = phase(role, "sft", folder, config.sft.steps, lambda decoder: run_sft(role, config, decoder))
    if config.rl is not None:
        role.metrics.write("phase", name="rl", state="start", steps=config.rl.steps)
        run_rl(role, config, folder)
        role.metrics.write("phase", name="rl", state="end")


def phase(role: Role, name: str, base: Path, steps: int, train) -> Path:  # type: ignore[no-untyped-def]
    """Train a copy of `base`, or find that a run before this one has done so already. Returns its folder."""
    out = role.run.path / "models" / name
    if (out / "config.json").exists():
        return out
    role.metrics.write("phase", name=name, state="start", steps=steps)
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


PHASE_OF = {"corpus": "midtrain", "chats": "sft", "groups": "rl"}
"""a step's source -> the phase that people know"""


def emit_to(role: Role):  # type: ignore[no-untyped-def]
    def emit(report: StepReport) -> None:
        role.heart.beat()
        report = msgspec.structs.replace(report, source=PHASE_OF.get(report.source, report.source))
        role.metrics.write("train", **msgspec.to_builtins(report, str_keys=True))

    return emit


def run_midtrain(role: Role, config: RunConfig, decoder: Decoder) -> None:
    assert config.midtrain is not None
    role.heart.beat()
    tokenizer = Tokenizer.from_file(str(Path(config.model) / "tokenizer.json"))
    corpus = read_corpus(config.corpus, tokenizer, open_renderer(config.model).start_id)
    checkpoints = Checkpoints(role.run, "checkpoints/midtrain")
    found = midtrain(config.midtrain, decoder, corpus.train, corpus.heldout, emit_to(role), checkpoints)
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


class Noted:
    """RunVersions that also says what it published."""

    def __init__(self, role: Role, versions: RunVersions) -> None:
        self._role, self._versions = role, versions
        self.history, self.wanted = versions.history, versions.wanted

    def mend(self, bits, dtypes) -> bool:  # type: ignore[no-untyped-def]
        mended = self._versions.mend(bits, dtypes)
        if mended:
            text = f"version {self.history()[-1].number}: it or what it stands on was damaged or gone; it can be reached again"
            self._role.metrics.write("event", level="warning", what="mended", text=text)
            print(text, flush=True)
        return mended

    def publish(self, bits, dtypes, *, step, slots, checkpoint) -> WeightVersion:  # type: ignore[no-untyped-def]
        started = time.time()
        version = self._versions.publish(bits, dtypes, step=step, slots=slots, checkpoint=checkpoint)
        self._role.metrics.write(
            "publish",
            version=version.number,
            version_kind=version.kind.value,
            delta_bytes=version.payload_bytes,
            full_bytes=version.full_bytes,
            seconds=time.time() - started,
            changed_frac=version.changed / sum(array.size for array in bits.values()),
        )
        for slot in slots:
            self._role.metrics.write("slot", slot=slot, cluster="", event="train", version=version.number)
        self._collect()
        return version

    def _collect(self) -> None:
        """What goes wrong here costs nobody a version: the next round does the rest."""
        try:
            done = self._versions.collect()
        except (StoreError, PublishError) as error:
            self._role.metrics.write("event", level="warning", what="collect", text=str(error))
            return
        if done is not None and done.removed:
            freed = sum(one.bytes for one in done.removed)
            text = f"{len(done.removed)} objects of {freed} bytes that no reader needs were removed"
            self._role.metrics.write("event", level="info", what="collect", text=text)


def run_rl(role: Role, config: RunConfig, folder: Path) -> None:
    assert config.rl is not None
    blobs = role.blobs()
    decoder, model = hf.load_folder(folder)
    settings = msgspec.structs.replace(config.rl, parity=parity_with(config.rl.parity, config.engine, model))
    reference = hf.load_folder(folder, settings.parity)[0] if settings.preparation.credit.kl > 0 else None
    report = emit_to(role)
    started = time.monotonic()

    def emit(step: StepReport) -> None:
        """A step's report, the span in which the trainer was busy with it, and the processor time since its start."""
        end = time.time()
        busy = sum(s for phase, s in step.seconds.items() if phase not in ("wait", "total"))
        role.metrics.write("busy", lane="train", start=end - busy, end=end, what="step")
        role.metrics.write("cpu", lane=role.name, cpu_s=time.process_time(), wall_s=time.monotonic() - started)
        report(step)

    def reject(rejected: Rejected) -> None:
        role.metrics.write("event", level="warning", what="sample rejected", text=str(rejected))

    def warn(text: str) -> None:
        role.metrics.write("event", level="alarm", what="hack rate", text=text)
        print(f"alarm: {text}", flush=True)

    def sleep(seconds: float) -> None:
        role.heart.beat()
        time.sleep(seconds)

    ports = Ports(
        episodes=EpisodesLog(blobs),
        versions=Noted(
            role,
            RunVersions(
                blobs,
                role.run.record.run_id,
                hf.plain_config(folder),
                (folder / "tokenizer.json").read_bytes(),
                config.publish,
                config.collect,
            ),
        ),
        checkpoints=Checkpoints(role.run, "checkpoints/rl"),
        load_experts=expert_loader(blobs),
        emit=emit,
        reject=reject,
        warn=warn,
        reference=reference,
        sleep=sleep,
    )
    rl(settings, rl_trainer(settings, decoder), ports)


def parity_with(parity: Parity, engine: EngineConfig, model: ModelConfig) -> Parity:
    """Strict means the engine's own bits, so whoever computes there computes here."""
    return Parity.CORE if parity is Parity.STRICT and backend_of(engine, model).backend == "core" else parity


if __name__ == "__main__":
    perform(main)
