"""The binades of a real model, counted from its safetensors folder. Nothing is loaded: the files are mapped and looked through."""

import json
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .errors import Refused
from .interchange.folder import tensor_files
from .predict import Binades
from .quantise.floats import SOURCES, Format, magnitudes
from .tensors import Array, bits_of

RUN = 4096
"""elements that are looked at in one go when a tensor is sampled"""
EXPERTS = ".experts."
"""part of the name of an expert's tensors"""
_EXPERT = re.compile(r"((?:.*\blayers\.(\d+)\.)?.*)\.experts\.(?:(\d+)\.)?")


class ModelShape(NamedTuple):
    """What a plan wants to know of a model."""

    params: int
    expert_share: float
    """of the params"""
    dense: Binades
    experts: Binades
    """the same as `dense` where there are none"""
    moe_layers: int = 0
    expert_count: int = 0
    """of a mixture layer"""
    top_k: int = 0
    """0 = there is no config.json that says it"""


def model_shape(folder: Path | str, sample: int = 1 << 22) -> ModelShape:
    """Count the weights of a folder by binade. Refused when it has no floats of 16 or 32 bits, BadFile when it is damaged.

    sample: elements of a tensor to look at, at most, in runs spread evenly over it; 0 = all. Exact zeros are left out (most
    are padding that never moves), and so is what is not finite.
    """
    counts = {True: np.zeros(512), False: np.zeros(512)}
    params = {True: 0, False: 0}
    layers: dict[str, int] = {}  # mixture layer -> its experts
    config = _config(Path(folder))
    # layers beyond it predict further tokens, and do not serve
    depth = int(config.get("num_hidden_layers") or sys.maxsize)
    for file in tensor_files(folder):
        for name, info in file.tensors.items():
            if info.dtype in SOURCES:
                bits = bits_of(file[name])
                params[EXPERTS in name] += bits.size
                counts[EXPERTS in name] += _counted(bits, SOURCES[info.dtype], sample)
            if (found := _EXPERT.match(name)) and int(found[2] or 0) < depth:
                count = int(found[3]) + 1 if found[3] else info.shape[0]
                layers[found[1]] = max(layers.get(found[1], 0), count)
    total = sum(params.values())
    if not sum(count.sum() for count in counts.values()):
        raise Refused(
            f"{folder} holds no weights of dtype {', '.join(SOURCES)} other than zero; name its 16-bit original"
        )
    binades = {kind: _binades(count) for kind, count in counts.items() if count.sum()}
    dense, experts = binades.get(False), binades.get(True)
    either = dense or experts
    assert either is not None
    sizes = len(layers), max(layers.values(), default=0), int(config.get("num_experts_per_tok") or 0) if layers else 0
    return ModelShape(total, params[True] / total, dense or either, experts or either, *sizes)


def _config(folder: Path) -> dict[str, Any]:
    """Of the text model; {} where none can be read."""
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return dict(config.get("text_config") or config)


def _counted(bits: Array, source: Format, sample: int) -> npt.NDArray[np.float64]:
    """Weights of one tensor by binade (index - 256), as if all had been looked at."""
    counts = np.zeros(512)
    seen = 0
    for start in _starts(bits.size, sample):
        codes = magnitudes(bits[start : start + RUN], source)
        seen += codes.size
        codes = codes[(codes > 0) & (codes <= source.largest)]
        fields = np.bincount(codes >> source.mantissa_bits, minlength=1)
        place = 256 - source.bias
        counts[place : place + len(fields)] += fields
    return counts * (bits.size / max(seen, 1))


def _starts(size: int, sample: int) -> list[int]:
    runs = -(-size // RUN)
    if not sample or size <= sample:
        return [run * RUN for run in range(runs)]
    return sorted({round(at) * RUN for at in np.linspace(0, runs - 1, max(sample // RUN, 1))})


def _binades(counts: npt.NDArray[np.float64]) -> Binades:
    found = np.flatnonzero(counts)
    return Binades.counted(int(found[0]) - 256, counts[found[0] : found[-1] + 1].tolist())
