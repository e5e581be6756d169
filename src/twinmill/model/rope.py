"""Rotary position embedding in Hugging Face's half-split layout, with Llama 3's scaling."""

import math

import torch
from torch import Tensor

from .config import ModelConfig


def rope_table(config: ModelConfig, length: int) -> Tensor:
    """[2, length, 1, head_dim]: cosine and sine of every position; the middle axis broadcasts over heads."""
    half = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    frequencies = 1.0 / (config.rope_theta**half)
    if config.rope_llama3 is not None:
        frequencies = _stretch(frequencies, config)
    angles = torch.arange(length, dtype=torch.float32)[:, None] * frequencies
    angles = torch.cat((angles, angles), -1)
    return torch.stack((angles.cos(), angles.sin())).unsqueeze(2)


def _stretch(frequencies: Tensor, config: ModelConfig) -> Tensor:
    scaling = config.rope_llama3
    assert scaling is not None
    wavelength = 2 * math.pi / frequencies
    turns = scaling.original_max_position_embeddings / wavelength
    smooth = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    smooth = smooth.clamp(0, 1)
    return (1 - smooth) * frequencies / scaling.factor + smooth * frequencies


def apply_rope(x: Tensor, table: Tensor) -> Tensor:
    """x [T, heads, head_dim], table [2, T, 1, head_dim]"""
    low, high = x.chunk(2, -1)
    return x * table[0] + torch.cat((-high, low), -1) * table[1]
