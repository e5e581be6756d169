"""Whether strict parity holds on this machine: kernels differ between processors, so a test decides, not the docs."""

import msgspec
import torch

from .config import ModelConfig, Parity
from .hf import init_decoder, named_views

LENS = (1, 2, 3, 5, 64, 70, 130, 260)


@torch.no_grad()
def strict_parity(config: ModelConfig, seed: int = 0) -> str:
    """Empty where it holds for a layer of this shape, else what differed. Takes under a second."""
    config = msgspec.structs.replace(config, layers=1, vocab=min(config.vocab, 512), dense_layers=())
    decoder = init_decoder(config, seed, Parity.STRICT)
    for view in named_views(decoder).values():
        if view.dim() == 2:
            view.mul_(4)
    ids = torch.randint(config.vocab, (sum(LENS),), generator=torch.Generator().manual_seed(seed))
    positions = torch.cat([torch.arange(n) for n in LENS])
    packed = decoder(ids, positions, LENS).hidden.split(LENS)
    for tokens, want in zip(ids.split(LENS), packed):
        for length in {len(tokens), (len(tokens) + 1) // 2}:
            alone = decoder(tokens[:length], torch.arange(length), [length]).hidden
            if not torch.equal(alone, want[:length]):
                off = float((alone - want[:length]).abs().max())
                return f"{length} tokens alone differ by {off:.1e} from the same tokens among {sum(LENS)}"
    return ""
