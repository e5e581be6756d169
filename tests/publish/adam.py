"""Weights that move as in RL: fp32 masters under Adam with noisy gradients and a tiny learning rate, seen through bf16."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


def to_bf16(values: Floats) -> npt.NDArray[np.uint16]:
    """To nearest, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return (bits + 0x7FFF + (bits >> 16 & 1) >> 16).astype(np.uint16)


def trained_weights(shape: tuple[int, int], seed: int, median: float = 0.0135) -> Floats:
    """Gaussian rows of unequal scale, which is about what trained matrices look like; median of |w| as given."""
    rng = np.random.default_rng(seed)
    rows = np.exp(0.35 * rng.standard_normal((shape[0], 1)))
    weights = rows * rng.standard_normal(shape)
    return (weights * (median / np.median(np.abs(weights)))).astype(np.float32)


class Masters:
    """One matrix under Adam (.9, .999)."""

    def __init__(
        self,
        shape: tuple[int, int],
        lr: float,
        seed: int = 0,
        *,
        use: float = 1.0,
        cold: bool = False,
        eps: float = 1e-8,
        spread: float = 1.0,
    ) -> None:
        """use: share of the steps that bring a weight a gradient, as to a rare expert. cold: start from a bf16 checkpoint.
        eps: Adam's. spread: of the logarithm of the gradients' scales."""
        self.weights = trained_weights(shape, seed)
        if cold:
            self.weights = (to_bf16(self.weights).astype(np.uint32) << 16).view(np.float32)
        self.lr = lr
        self.use = use
        self.eps = eps
        self._rng = np.random.default_rng(seed + 1)
        self._scale = np.exp(spread * self._rng.standard_normal(shape)).astype(np.float32)
        self._m = np.zeros(shape, np.float32)
        self._v = np.zeros(shape, np.float32)
        self._steps = 0

    def step(self) -> float:
        """One step; mean |u|, u = step / lr."""
        self._steps += 1
        gradient = self._scale * self._rng.standard_normal(self._m.shape, np.float32)
        gradient *= self._rng.random(self._m.shape, np.float32) < self.use
        self._m += 0.1 * (gradient - self._m)
        self._v += 0.001 * (gradient * gradient - self._v)
        mean = self._m / (1 - 0.9**self._steps)
        root = np.sqrt(self._v / (1 - 0.999**self._steps)) + self.eps
        update = mean / root
        self.weights -= np.float32(self.lr) * update
        return float(np.abs(update).mean())

    @property
    def bits(self) -> npt.NDArray[np.uint16]:
        return to_bf16(self.weights)
