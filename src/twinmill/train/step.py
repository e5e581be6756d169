"""The one optimizer step. Mid-training, SFT and RL feed it microbatches; it neither knows nor asks which of them did.

    consumes      microbatches (of corpora, chats or groups; credit is already in them) and the model's weights
    produces      changed weights and a StepReport
    waits for     nothing

A step without microbatches (every group dropped, or none with variance) changes nothing at all, not even by the
momentum of earlier ones. Deterministic: the same weights, state, microbatches and number of threads give the same
bits. With several threads, as many microbatches are computed at once (workers.py).
"""

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from msgspec import Struct
from torch import Tensor

from twinmill.batch.mismatch import fresh_and_stale
from twinmill.model.transformer import Decoder
from twinmill.records.samples import Microbatch, StepReport

from .loss.base import Loss, Tokens
from .optimizer import NotFinite, Optimizer
from .workers import in_order


class Compute(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    temperature: float = 1.0
    """at which the engine sampled; log-probabilities of both sides are of that distribution"""
    replay_floor: float = 0.0
    """a recorded expert stays iff its score is at least so many times the router's own k-th best; 0 = always"""
    aux: float = 0.0
    """weight of the experts' load-balance loss, over the positions that are computed; 0 = none"""


class TrainStep:
    """decoder + optimizer + loss. Holds no state of its own."""

    def __init__(self, decoder: Decoder, optimizer: Optimizer, loss: Loss, compute: Compute) -> None:
        self.decoder, self.optimizer, self.loss, self.compute = decoder, optimizer, loss, compute

    def run(self, microbatches: Sequence[Microbatch], *, step: int, version: int, source: str) -> StepReport:
        """One update. `step` fixes the learning rate; `version` is what tokens count as fresh against.

        Raises NotFinite, naming the step and the samples, with weights and optimizer as they were.
        """
        started = time.perf_counter()
        tally = _Tally()
        all_tokens = sum(len(m.token_ids) for m in microbatches)
        self.optimizer.zero()
        for part in in_order(lambda m: self._compute(m, len(m.token_ids) / all_tokens, step), microbatches):
            self.optimizer.add(part.gradients)
            tally.add(part)
            del part  # or its gradients would be held while the next ones are made
        computed = time.perf_counter()
        applied = self.optimizer.step(step) if microbatches else None
        return tally.report(
            step=step,
            version=version,
            source=source,
            grad_norm=applied.grad_norm if applied else 0.0,
            lr=applied.lr if applied else 0.0,
            seconds={"compute": computed - started, "update": time.perf_counter() - computed},
        )

    def _compute(self, microbatch: Microbatch, share: float, step: int) -> "_Part":
        """Forward and backward of one. Changes nothing: several run at once."""
        output = self.decoder(**inputs_of(microbatch), replay_floor=self.compute.replay_floor)
        rows = torch.from_numpy(np.flatnonzero(microbatch.mask))
        logprobs = logprobs_at(self.decoder, output.hidden, microbatch, rows, self.compute.temperature)
        value = self.loss(_tokens(microbatch, rows, logprobs))
        loss = value.loss + self.compute.aux * share * output.aux_loss if self.compute.aux else value.loss
        if not torch.isfinite(loss):
            raise NotFinite(f"step {step}: the loss is {float(loss.detach())} on {', '.join(microbatch.sample_ids)}")
        gradients = torch.autograd.grad(loss, self.optimizer.parameters, allow_unused=True)
        aux = share * float(output.aux_loss.detach())
        return _Part(microbatch, gradients, value.sums, value.log_ratio, aux, output.replayed, output.refused)


def inputs_of(microbatch: Microbatch) -> dict[str, Any]:
    """Arguments of Decoder.forward by name."""
    return {
        "token_ids": torch.from_numpy(microbatch.token_ids),
        "positions": torch.from_numpy(microbatch.positions),
        "segment_lens": microbatch.segment_lens,
        "experts": None if microbatch.experts is None else torch.from_numpy(microbatch.experts),
        "parents": microbatch.parents,
    }


def logprobs_at(decoder: Decoder, hidden: Tensor, microbatch: Microbatch, rows: Tensor, temperature: float) -> Tensor:
    """Log-probability of the token at each row given those before it: token i is predicted by hidden state i - 1, also
    right behind a shared beginning, whose last token each sample keeps (records.samples.Microbatch)."""
    targets = torch.from_numpy(microbatch.token_ids)[rows]
    return decoder.logprobs(hidden.index_select(0, rows - 1), targets, temperature)


def _tokens(microbatch: Microbatch, rows: Tensor, logprobs: Tensor) -> Tokens:
    engine, advantages, weights = (
        torch.from_numpy(array)[rows] for array in (microbatch.logprobs, microbatch.advantages, microbatch.weights)
    )
    return Tokens(logprobs, engine, advantages, weights, microbatch.denominator)


class _Part(NamedTuple):
    """What one microbatch gives."""

    microbatch: Microbatch
    gradients: tuple[Tensor | None, ...]
    """as Optimizer.parameters; None where the microbatch does not reach one"""
    sums: dict[str, float]
    log_ratio: Tensor | None
    aux: float
    replayed: int
    refused: int


class _Tally:
    """What the microbatches of one step add up to."""

    def __init__(self) -> None:
        self.sums: defaultdict[str, float] = defaultdict(float)
        self.samples = self.tokens = self.computed = self.positions = self.replayed = self.refused = 0
        # positions, replayed and refused count (position, layer) as routed: what samples share counts once in each
        self.log_ratios: list[np.ndarray] = []
        self.versions: list[np.ndarray] = []

    def add(self, part: _Part) -> None:
        microbatch = part.microbatch
        for name, amount in part.sums.items():
            self.sums[name] += amount
        self.sums["aux"] += part.aux
        self.samples += len(microbatch.sample_ids)
        self.tokens += int(microbatch.mask.sum())
        self.computed += len(microbatch.token_ids)
        self.positions += 0 if microbatch.experts is None else int((microbatch.experts[:, :, 0] >= 0).sum())
        self.replayed += part.replayed
        self.refused += part.refused
        if part.log_ratio is not None:
            self.log_ratios.append(part.log_ratio.numpy())
            self.versions.append(microbatch.versions[microbatch.mask])

    def report(self, **fields) -> StepReport:
        if self.replayed + self.refused != self.positions:
            # batch.samples rejects what was not recorded whole, so this is a bug of ours
            raise RuntimeError(
                f"step {fields['step']}: {self.positions} choices of experts were recorded, {self.replayed} replayed and "
                f"{self.refused} replaced by the plausibility filter; the rest was lost on the way"
            )
        clipped = self.sums.pop("clipped", 0.0)
        if self.log_ratios:
            ratios, versions = np.concatenate(self.log_ratios), np.concatenate(self.versions)
            fields["fresh"], fields["stale"] = fresh_and_stale(ratios, versions, fields["version"])
        return StepReport(
            samples=self.samples,
            tokens=self.tokens,
            computed=self.computed,
            loss=dict(self.sums),
            clipped_frac=clipped / max(self.tokens, 1),
            replayed_frac=self.replayed / max(self.positions, 1),
            refused_frac=self.refused / max(self.positions, 1),
            **fields,
        )
