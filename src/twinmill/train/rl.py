"""The second mill: closed slots in, weight versions out, one optimizer step per version.

    for each step v                                              waits for                     unblocked by
      slots   = next_slots(...)                                  these slots to be closed      a rollout mill's Close
      groups  = their episodes and verdicts                      the store                     its deadline
      step    = samples, reference, credit, packing, gradient    nothing
      commit  = checkpoint, objects, manifest (in this order)    the store                     its deadline
    consumes: the episodes log.   produces: the weights log, StepReports.   Nobody calls anybody.

The manifest is the commit point: it names the slots, so a slot is trained exactly once over any sequence of
crashes. A trainer that comes back loads the newest checkpoint that a manifest names and redoes the steps behind it
from their manifests' slot lists; each must reach the digest that its manifest holds, or the run stops and says so.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import msgspec
import numpy.typing as npt
from msgspec import Struct

from twinmill.batch.alarm import HackAlarm, HackRate, hacked_G
from twinmill.batch.breaker import Breaker, tripped
from twinmill.batch.samples import ExpertLoader, MixtureShape, Rejected
from twinmill.batch.window import Window, next_slots
from twinmill.model.config import Parity
from twinmill.model.transformer import Decoder
from twinmill.records.episodes import Admit, Close, Group
from twinmill.records.samples import StepReport
from twinmill.records.weights import WeightVersion
from twinmill.store.errors import Corrupt, NotFound

from .checkpoint import Checkpoints
from .loss.policy_gradient import PolicyGradient, policy_gradient
from .optimizer import AdamW
from .reference import score
from .sources.groups import Preparation, prepare
from .step import Compute
from .supervised import Emit
from .trainer import Trainer


class Rl(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    steps: int = 40
    """optimizer steps; the run uses slots [0, steps * window.groups_per_step)"""
    window: Window = Window()
    """which slots a step takes, and how old their tokens may be"""
    preparation: Preparation = Preparation()
    """how groups become microbatches: credit, router replay, packing"""
    loss: PolicyGradient = PolicyGradient()
    """importance weights"""
    optimizer: AdamW = AdamW(lr=1e-4)
    """learning rate and schedule"""
    compute: Compute = Compute()
    """temperature, plausibility filter, load-balance loss"""
    parity: Parity = Parity.STRICT
    """strict: the engine's very bits (of its torch backend: in unpacked rows); off, batch: close to them (model/config.py)"""
    breaker: Breaker = Breaker()
    """when infrastructure's losses stop the run"""
    alarm: HackAlarm = HackAlarm()
    """when the audit's findings raise the alarm"""
    checkpoint_every: int = 10
    """steps between checkpoints; a crash costs redoing at most so many steps. 1 = nothing is ever redone"""
    checkpoints_kept: int = 2
    """newest checkpoints that stay on disk, besides the one that resuming needs"""
    starved_s: float = 600.0
    """seconds without a newly closed slot after which a waiting trainer stops the run, naming what it waits for"""
    poll_s: float = 0.05
    """seconds between two looks at the episodes log"""

    def __post_init__(self) -> None:
        if self.checkpoint_every < 1 or self.checkpoints_kept < 1:
            raise ValueError("checkpoint_every and checkpoints_kept must be at least 1: resuming needs a checkpoint")
        if self.starved_s <= 0 or self.poll_s <= 0:
            raise ValueError("starved_s and poll_s must be above 0: every wait has a deadline")


class Starved(RuntimeError):
    """No slot was closed for too long: the rollout mill stands still."""


class InfrastructureLost(RuntimeError):
    """Too many attempts were lost to infrastructure (batch/breaker.py)."""


class HackRateTooHigh(RuntimeError):
    """Too many attempts cheat (batch/alarm.py), and the run was told to stop then."""


class Diverged(RuntimeError):
    """A redone step did not reach the digest of its manifest: what was published cannot be reproduced here."""


class EpisodesView(Protocol):
    """What the trainer reads of the episodes log; store.ledger.EpisodesLog is one."""

    def close_of(self, slot: int) -> Close | None: ...

    def admit_of(self, slot: int) -> Admit | None: ...

    def group_of(self, close: Close) -> Group: ...


class Versions(Protocol):
    """The trainer's end of the weights log."""

    def history(self) -> Sequence[WeightVersion]:
        """All versions of this run, from 0 on."""
        ...

    def publish(
        self,
        bits: Mapping[str, npt.NDArray],
        dtypes: Mapping[str, str],
        *,
        step: int,
        slots: tuple[int, ...],
        checkpoint: str | None,
    ) -> WeightVersion:
        """Objects, then the manifest. `step` = optimizer steps behind these weights = the version's number."""
        ...

    def wanted(self) -> bool:
        """Whether somebody cannot rebuild the newest version."""
        ...

    def mend(self, bits: Mapping[str, npt.NDArray], dtypes: Mapping[str, str]) -> bool:
        """Let the newest version be reached again, from the weights themselves. False = there was no need, or no way."""
        ...


@dataclass(frozen=True, kw_only=True)
class Ports:
    """Everything outside the trainer that the loop touches."""

    episodes: EpisodesView
    versions: Versions
    checkpoints: Checkpoints
    load_experts: ExpertLoader
    emit: Emit
    reject: Callable[[Rejected], None]
    """told of every sample that is left out for what it lacks"""
    warn: Callable[[str], None] = lambda text: None
    """told when the hack alarm fires"""
    reference: Decoder | None = None
    """the pinned reference; None = preparation.credit.kl must be 0"""
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def rl_trainer(config: Rl, decoder: Decoder) -> Trainer:
    """A trainer whose loss and optimizer are those of `config`. ValueError when they do not fit the model."""
    if config.preparation.replay and not decoder.config.experts:
        raise ValueError("preparation.replay is on, but the model is dense: it has no experts to replay; set it False")
    decoder.parity = config.parity
    return Trainer(decoder, partial(policy_gradient, config=config.loss), config.optimizer, config.compute)


MEND_S = 2.0
"""seconds between two looks whether the newest version has to be mended, while waiting for slots"""


def rl(config: Rl, trainer: Trainer, ports: Ports) -> None:
    """Train until `config.steps` versions exist. Raises Starved, InfrastructureLost, HackRateTooHigh, Diverged; each
    leaves a run that can be resumed."""
    step = resume(config, trainer, ports)
    taken = {slot for version in ports.versions.history() for slot in version.slots}
    lost: list[bool] = []  # since this process started: a mended run starts clean
    rate = HackRate(config.alarm)
    while step < config.steps:
        began = ports.now()
        closes = wait_for_slots(config, ports, step, taken, partial(mend, trainer, ports))
        waited = ports.now() - began
        groups = [ports.episodes.group_of(close) for close in closes]
        report = train(config, trainer, ports, groups, step, read_s=ports.now() - began - waited)
        step += 1
        committing = ports.now()
        commit(config, trainer, ports, step, report.slots)
        seconds = {"wait": waited, **report.seconds, "commit": ports.now() - committing}
        ports.emit(msgspec.structs.replace(report, seconds=seconds))
        taken.update(report.slots)
        watch(rate, groups, report, ports)
        lost.extend(flag for close in closes for flag in [True] * close.lost + [False] * len(close.entries_G))
        if problem := tripped(lost, config.breaker):
            raise InfrastructureLost(problem)


def watch(rate: HackRate, groups: Sequence[Group], report: StepReport, ports: Ports) -> None:
    """Feed the step's attempts to the hack alarm. Raises HackRateTooHigh where the run shall stop."""
    for frac in rate.feed([flag for group in groups if group.drop is None for flag in hacked_G(group)]):
        rules = ", ".join(f"{n} {rule}" for rule, n in report.hacked.items())
        text = (
            f"hack rate {frac:.1%} of the last {rate.alarm.attempts} attempts at step {report.step} (this step: {rules}); "
            "see `twinmill audit`"
        )
        ports.warn(text)
        if rate.alarm.stop:
            raise HackRateTooHigh(text)


def mend(trainer: Trainer, ports: Ports) -> None:
    """With a small window nobody can go on without the newest version, and no next one would come to replace it."""
    if ports.versions.wanted():
        ports.versions.mend(trainer.bits(), trainer.dtypes)


def wait_for_slots(
    config: Rl, ports: Ports, step: int, taken: set[int], idle: Callable[[], None] = lambda: None
) -> list[Close]:
    """The closes of the slots that `step` takes. Only slots that the window lets anybody start are looked at.

    `idle` is called every MEND_S while nothing comes."""
    window = config.window
    bound = min(step + window.window + 1, config.steps) * window.groups_per_step
    open_ = {slot for slot in range(bound) if slot not in taken}
    closed: dict[int, Close] = {}
    deadline, look = ports.now() + config.starved_s, ports.now() + MEND_S
    while True:
        choice = next_slots(window.policy, closed, open_, step, window.groups_per_step)
        if choice.slots:
            return [closed[slot] for slot in choice.slots]
        found = {slot: close for slot in choice.waits_for if (close := ports.episodes.close_of(slot)) is not None}
        closed |= found
        open_ -= found.keys()
        if found:
            deadline = ports.now() + config.starved_s
        elif ports.now() > deadline:
            raise Starved(_starved(config, ports, step, choice.waits_for))
        else:
            ports.sleep(config.poll_s)
        if ports.now() > look:
            idle()
            look = ports.now() + MEND_S


def train(
    config: Rl, trainer: Trainer, ports: Ports, groups: Sequence[Group], step: int, *, read_s: float = 0.0
) -> StepReport:
    """One step on `groups`, at version `step`. Nothing is committed. `read_s`: seconds that reading them took."""
    began = time.perf_counter()
    scorer = None
    if ports.reference is not None:
        packing, temperature = config.preparation.packing, config.compute.temperature
        scorer = partial(score, ports.reference, packing=packing, temperature=temperature)
    model = trainer.decoder.config
    mixture = MixtureShape(len(model.moe_layers), model.top_k, model.experts)
    prepared = prepare(groups, step, config.preparation, ports.load_experts, config.window.oldest, scorer, mixture)
    for rejected in prepared.rejected:
        ports.reject(rejected)
    read = read_s + time.perf_counter() - began
    report = trainer.run(prepared.microbatches, step=step, version=step, source="groups")
    slots = tuple(group.slot for group in groups)
    seconds = {"read": read, **report.seconds}
    return msgspec.structs.replace(report, slots=slots, seconds=seconds, **prepared.facts)


def commit(config: Rl, trainer: Trainer, ports: Ports, step: int, slots: tuple[int, ...]) -> None:
    """Checkpoint, objects, manifest. A crash between any two leaves the step undone, to be done again."""
    due = step % config.checkpoint_every == 0 or step == config.steps
    key = ports.checkpoints.save(step, trainer.take()) if due else None
    version = ports.versions.publish(trainer.bits(), trainer.dtypes, step=step, slots=slots, checkpoint=key)
    if version.number != step:
        raise RuntimeError(f"step {step} became version {version.number}: this weights log is not this run's alone")
    if key is not None:
        ports.checkpoints.prune(config.checkpoints_kept, {key})


def resume(config: Rl, trainer: Trainer, ports: Ports) -> int:
    """Bring the trainer to the newest version; steps behind it. A new run publishes its version 0 here."""
    history = list(ports.versions.history())
    if not history:
        commit(config, trainer, ports, 0, ())
        return 0
    base = _load_newest(trainer, ports.checkpoints, history)
    _must_match(trainer, base)
    for version in [v for v in history if v.number > base.number]:
        closes = [close for slot in version.slots if (close := ports.episodes.close_of(slot)) is not None]
        if len(closes) != len(version.slots):
            raise Diverged(
                f"version {version.number} was trained on slots {version.slots}, not all of which are closed"
            )
        train(config, trainer, ports, [ports.episodes.group_of(close) for close in closes], version.step - 1)
        _must_match(trainer, version)
    return history[-1].step


def _load_newest(trainer: Trainer, checkpoints: Checkpoints, history: Sequence[WeightVersion]) -> WeightVersion:
    """Put back the newest checkpoint that can be read. An older one only means that more is redone and compared."""
    problems: list[str] = []
    for version in reversed(history):
        if version.checkpoint is None:
            continue
        try:
            trainer.put_back(checkpoints.load(version.checkpoint).tensors)
        except (Corrupt, NotFound) as error:
            problems.append(str(error))
        else:
            return version
    raise Corrupt("checkpoints", "; ".join(problems) or "no version names one")


def _must_match(trainer: Trainer, version: WeightVersion) -> None:
    if (digest := trainer.digest(version.grid)) != version.model_digest:
        raise Diverged(
            f"version {version.number} was published with model digest {version.model_digest[:12]}, but resuming "
            f"leads to {digest[:12]}: other code, threads or machine? Start a new run from that version's weights"
        )


def _starved(config: Rl, ports: Ports, step: int, slots: Sequence[int]) -> str:
    owners: dict[str, list[int]] = {}
    for slot in slots[:8]:
        admit = ports.episodes.admit_of(slot)
        owners.setdefault("nobody yet" if admit is None else f"cluster {admit.cluster}", []).append(slot)
    held = "; ".join(f"{who} has {', '.join(map(str, which))}" for who, which in owners.items())
    return (
        f"step {step} waits for {len(slots)} slots and none was closed in {config.starved_s:.0f} s ({held}); "
        "see the logs of those rollout processes, then resume the run"
    )
