"""Rotary position embedding in Hugging Face's half-split layout, with Llama 3's and YaRN's scaling."""

import math

import torch
from torch import Tensor

from .config import ModelConfig, Yarn


def rope_table(config: ModelConfig, length: int) -> Tensor:
    """[2, length, 1, rope_dim]: cosine and signed sine of every position; the axis of size 1 broadcasts over heads.

    rotate(x) = x * table[0] + swap_halves(x) * table[1]; the sign of the first half is in the sine.
    """
    half = torch.arange(0, config.rope_dim, 2, dtype=torch.int64).float() / config.rope_dim
    frequencies, gain = 1.0 / (config.rope_theta**half), 1.0
    if config.rope_llama3 is not None:
        frequencies = _stretch(frequencies, config)
    if config.rope_yarn is not None:
        frequencies, gain = _yarn(config, config.rope_yarn), _rotation_gain(config.rope_yarn)
    angles = torch.arange(length, dtype=torch.float32)[:, None] * frequencies
    cos, sin = angles.cos() * gain, angles.sin() * gain
    return torch.stack((torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1))).unsqueeze(2)


def score_gain(config: ModelConfig) -> float:
    """By what latent attention multiplies its scores besides head_dim ** -0.5: DeepSeek puts YaRN's temperature there."""
    yarn = config.rope_yarn
    return _gain(yarn.factor, yarn.mscale_all_dim) ** 2 if yarn is not None and yarn.mscale_all_dim else 1.0


def _gain(factor: float, scale: float = 1.0) -> float:
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _rotation_gain(yarn: Yarn) -> float:
    if yarn.attention_factor is not None:
        return yarn.attention_factor
    if yarn.mscale and yarn.mscale_all_dim:
        return _gain(yarn.factor, yarn.mscale) / _gain(yarn.factor, yarn.mscale_all_dim)
    return _gain(yarn.factor)


def _yarn(config: ModelConfig, yarn: Yarn) -> Tensor:
    """[rope_dim / 2]: slow frequencies are divided by the factor, fast ones stay, with a ramp between the two."""
    dim, base = config.rope_dim, config.rope_theta

    def at(turns: float) -> float:
        """The dimension that turns so often within the original context."""
        return dim * math.log(yarn.original_max_position_embeddings / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = at(yarn.beta_fast), at(yarn.beta_slow)
    if yarn.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = (torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low or 0.001)
    slow = ramp.clamp(0, 1)
    stretched = base ** (torch.arange(0, dim, 2).float() / dim)
    return slow / (yarn.factor * stretched) + (1 - slow) / stretched


def _stretch(frequencies: Tensor, config: ModelConfig) -> Tensor:
    scaling = config.rope_llama3
    assert scaling is not None
    turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    smooth = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    smooth = smooth.clamp(0, 1)
    return (1 - smooth) * frequencies / scaling.factor + smooth * frequencies
