"""The native core: the kernels that trainer and embedded engine share (C; core.h says which file holds what).

weights    PackedWeights: one set of weights in the layout that the kernels stream, and back to stored bits
forward    Core: the one ragged forward for prefill, decoding, scoring and router replay
operators  the single operators under torch's autograd: what the trainer's strict forward is made of

Where the extension was not built (no compiler), `available()` is False and the torch decoder serves; its results differ
in the last bits.
"""

from twinmill.model.config import ModelConfig

try:
    from . import _core
except ImportError as error:
    _core, _why = None, str(error)  # type: ignore[assignment]
else:
    _why = ""

__all__ = ["CoreUnavailable", "available", "lacks", "levels", "native"]


class CoreUnavailable(RuntimeError):
    """The native core is wanted, but this installation has none, or it lacks what the model needs."""


def available() -> bool:
    return _core is not None


def lacks(config: ModelConfig) -> str:
    """What a model needs that the core's kernels cannot compute, by name; empty = nothing."""
    return "" if config.latent is None else f"multi-head latent attention ({config.family})"


def levels() -> tuple[str, ...]:
    """Instruction-set levels of this processor that the core was built for, the best first; () without a core."""
    return _core.levels() if _core is not None else ()


def native():  # type: ignore[no-untyped-def]
    """The extension module. Raises CoreUnavailable."""
    if _core is None:
        raise CoreUnavailable(f"the native core is not built ({_why}): install twinmill again where a C compiler is")
    return _core
