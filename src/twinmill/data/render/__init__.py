"""Messages <-> token ids, one file per model family."""

from importlib import import_module
from pathlib import Path

from tokenizers import Tokenizer

from .base import Parsed, Renderer, RenderError

RENDERERS = {"nano": "nano:NanoRenderer", "qwen3": "qwen3:Qwen3Renderer", "chatml": "chatml:ChatmlRenderer"}
_MARKS = {"<|call|>": "nano", "<think>": "qwen3", "<|im_start|>": "chatml"}
"""a token that a family's tokenizer has and those before it have not -> renderer"""


def open_renderer(folder: str | Path, name: str = "auto") -> Renderer:
    """The renderer for a Hugging Face folder; auto = told by the tokenizer's special tokens."""
    tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    if name == "auto":
        found = [renderer for mark, renderer in _MARKS.items() if tokenizer.token_to_id(mark) is not None]
        if not found:
            raise ValueError(f"{folder}: no renderer knows this tokenizer (it has none of {', '.join(_MARKS)})")
        name = found[0]
    if name not in RENDERERS:
        raise ValueError(f"no renderer {name!r}; there are {', '.join(RENDERERS)}")
    module, _, cls = RENDERERS[name].partition(":")
    return getattr(import_module(f"{__name__}.{module}"), cls)(tokenizer)


__all__ = ["RENDERERS", "Parsed", "RenderError", "Renderer", "open_renderer"]
