"""TorchCompute: the step in torch. What the native core computes can be read here."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from twinmill.engine.base import EngineError
from twinmill.model.config import ModelConfig, Parity
from twinmill.model.core.weights import KINDS, Bits
from twinmill.model.hf import WeightsError, dtypes, load_bits, named_views, state_bits
from twinmill.model.transformer import Decoder

from .attend import StepAttention
from .compute import Done, Work
from .config import EngineConfig
from .kv import KvCache
from .sampler import sample
from .weights import WeightBuffers


class TorchCompute:
    """Implements Compute."""

    in_order = True

    def __init__(self, model: ModelConfig, config: EngineConfig) -> None:
        self._model, self._parity = model, config.parity
        self.cache = KvCache(model, config.slots, config.context_tokens)
        self.weights: WeightBuffers[TorchSet] = WeightBuffers(
            TorchSet(model, config.parity), TorchSet(model, config.parity)
        )

    def step(self, work: Work) -> Done:
        decoder = self.weights.serving.decoder
        decoding = len(work.slots)
        attend = StepAttention(self.cache, self._model, self._parity, work.positions[:decoding], work.chunks)
        output = decoder.run(torch.tensor(work.token_ids), torch.tensor(work.positions), attend)
        routes = output.routes.numpy()
        if not work.draws:
            return Done(routes, [], [])
        logits = decoder.logits(output.hidden[[draw.row for draw in work.draws]])
        ids, logprobs = sample(logits, [d.sampling for d in work.draws], [d.position for d in work.draws])
        return Done(routes, ids.tolist(), logprobs.tolist())

    def score(self, texts: Sequence[Sequence[int]]) -> list[list[float]]:
        decoder = self.weights.serving.decoder
        lens = [len(text) for text in texts]
        ids = torch.tensor([token for text in texts for token in text])
        hidden = decoder(ids, torch.cat([torch.arange(n) for n in lens]), lens).hidden
        return [values[:-1].tolist() for values in decoder.logprobs(hidden, ids.roll(-1)).split(lens)]


class TorchSet:
    """A decoder. Implements WeightSet."""

    def __init__(self, model: ModelConfig, parity: Parity) -> None:
        self.decoder = Decoder(model, parity).requires_grad_(False)

    def load(self, tensors: Mapping[str, Bits]) -> None:
        try:
            load_bits(self.decoder, tensors, {name: KINDS[bits.itemsize] for name, bits in tensors.items()})
        except WeightsError as error:
            raise EngineError(str(error)) from error

    def bits(self) -> dict[str, Bits]:
        views, kinds = named_views(self.decoder), dtypes(self.decoder)
        inexact = {name for name, view in views.items() if kinds[name] != "F32" and not _is_bfloat16(view)}
        return {name: bits for name, bits in state_bits(self.decoder).items() if name not in inexact}


def _is_bfloat16(view: torch.Tensor) -> bool:
    """Whether every fp32 value has the low half of its bits clear."""
    bits = view.contiguous().view(torch.int32).numpy()
    return not bool(np.bitwise_and(bits, 0xFFFF).any())
