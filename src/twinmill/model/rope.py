"""Rotary position embedding in Hugging Face's half-split layout, with Llama 3's scaling."""

import math

import torch
from torch import Tensor

from .config import ModelConfig


def rope_table(config: ModelConfig, length: int) -> Tensor:
    """[2, length, 1, head_dim]: cosine and signed sine of every position; the axis of size 1 broadcasts over heads.

    rotate(x) = x * table[0] + swap_halves(x) * table[1]; the sign of the first half is in the sine.
    """
    half = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    frequencies = 1.0 / (config.rope_theta**half)
    if config.rope_llama3 is not None:
        frequencies = _stretch(frequencies, config)
    angles = torch.arange(length, dtype=torch.float32)[:, None] * frequencies
    sin = angles.sin()
    return torch.stack((torch.cat((angles.cos(),) * 2, -1), torch.cat((-sin, sin), -1))).unsqueeze(2)


def _stretch(frequencies: Tensor, config: ModelConfig) -> Tensor:
    scaling = config.rope_llama3
    assert scaling is not None
    turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    smooth = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    smooth = smooth.clamp(0, 1)
    return (1 - smooth) * frequencies / scaling.factor + smooth * frequencies
