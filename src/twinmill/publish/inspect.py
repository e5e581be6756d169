"""What changed between two versions, by tensor and by group of tensors."""

import re
from collections.abc import Mapping

import numpy as np

from .draft import Weights
from .tensors import bits_of

GROUPS: Mapping[str, str] = {
    "experts": r"\.experts\.",
    "embedding": r"\b(embed_tokens|lm_head)\.",
    "attention": r"\b(self_attn|attn|attention)\.(?!.*norm)",
    "mlp": r"\bmlp\.",
    "norms": r"norm",
    "other": r"",
}
"""name of a group -> pattern; the first that finds a tensor's name has it"""

Density = tuple[int, int]
"""(elements whose bits differ, elements)"""


def group_of(name: str) -> str:
    return next(group for group, pattern in GROUPS.items() if re.search(pattern, name))


def differences(before: Weights | None, after: Weights) -> dict[str, Density]:
    """Tensor name -> how many of its elements differ, of how many; all, where nothing was before."""
    found = {}
    for name, array in after.tensors.items():
        same = before is not None and before.tensors[name] is array
        changed = array.size
        if before is not None:
            changed = 0 if same else int(np.count_nonzero(bits_of(before.tensors[name]) != bits_of(array)))
        found[name] = (changed, array.size)
    return found


def by_group(differing: Mapping[str, Density]) -> dict[str, Density]:
    """The sums, in the order of GROUPS; groups without tensors are left out."""
    sums: dict[str, Density] = {}
    for name, (changed, size) in differing.items():
        before = sums.get(group_of(name), (0, 0))
        sums[group_of(name)] = before[0] + changed, before[1] + size
    return {group: sums[group] for group in GROUPS if group in sums}
