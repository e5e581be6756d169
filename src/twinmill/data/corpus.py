"""Real code to mid-train on: by default the Python standard library of the interpreter that runs.

Which files are read, in which order, and which of them are held out is a pure function of their paths, so a run and its
resumption read the same rows. Another interpreter ships other files, hence another corpus: results name the version.

    files -> train / held-out by hash of the path -> token ids, a start token before each file -> rows [N, T]

Not covered: streaming (the corpus is held in memory), weights among several folders.
"""

import os
import sysconfig
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from blake3 import blake3
from msgspec import Struct
from tokenizers import Tokenizer


class CorpusConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    root: str = ""
    """folder whose files are read; "" = the standard library of the running interpreter"""
    include: tuple[str, ...] = ("*.py",)
    """globs over paths below root, in which * also matches /"""
    exclude: tuple[str, ...] = (
        "site-packages/*",
        "dist-packages/*",
        "test/*",
        "*/test/*",
        "*/tests/*",
        "*/idle_test/*",
        "lib2to3/*",
        "encodings/*",
        "pydoc_data/*",
        "config-*",
    )
    """globs that are left out: tests, tables, what is not the library itself"""
    heldout_frac: float = 0.05
    """share of files, not of bytes, that is never trained on; 0 = none"""
    max_bytes: int = 4 * 2**20
    """text of each split that is read at most; 0 = all of it"""
    row_tokens: int = 256
    """length of one packed row"""

    def __post_init__(self) -> None:
        if not 0 <= self.heldout_frac < 1:
            raise ValueError(f"heldout_frac is {self.heldout_frac}; it must lie in [0, 1)")
        if self.row_tokens < 2 or self.max_bytes < 0:
            raise ValueError("row_tokens must be at least 2, max_bytes at least 0")


class SourceFile(NamedTuple):
    path: str
    """posix, below the root"""
    text: str


class Split(NamedTuple):
    train: list[SourceFile]
    heldout: list[SourceFile]


class Corpus(NamedTuple):
    """Rows of token ids, int64 [N, row_tokens] each."""

    train: npt.NDArray[np.int64]
    heldout: npt.NDArray[np.int64]


def read_files(config: CorpusConfig) -> Split:
    """The files of both splits, in an order that only their paths decide. ValueError when there is none to train on."""
    root = Path(config.root or sysconfig.get_path("stdlib"))
    paths = sorted(_listed(root, config), key=lambda path: _hash(path, "order"))
    held = {path for path in paths if _hash(path, "held out") < config.heldout_frac * 2**64}
    split = Split(
        _texts(root, [path for path in paths if path not in held], config.max_bytes),
        _texts(root, [path for path in paths if path in held], config.max_bytes),
    )
    if not split.train:
        raise ValueError(f"corpus.root {root} holds no readable file that matches {', '.join(config.include)}")
    return split


def read_corpus(config: CorpusConfig, tokenizer: Tokenizer, start_id: int) -> Corpus:
    """Both splits as rows. `start_id` stands before every file: the model learns where one begins."""
    split = read_files(config)
    train, heldout = (pack_rows(tokenize(files, tokenizer), config.row_tokens, start_id) for files in split)
    return Corpus(train, heldout)


def tokenize(files: Sequence[SourceFile], tokenizer: Tokenizer) -> list[list[int]]:
    """Token ids of each file. Text that spells a special token stays text."""
    tokenizer.encode_special_tokens = True
    return [e.ids for e in tokenizer.encode_batch([file.text for file in files], add_special_tokens=False)]


def pack_rows(documents: Sequence[Sequence[int]], row_tokens: int, start_id: int) -> npt.NDArray[np.int64]:
    """All documents one after another, cut into rows of equal length; what does not fill the last row is left out.

    Example: documents [5, 6], [7] with rows of 2 and start 1: the stream 1 5 6 1 7 gives rows [1, 5], [6, 1].
    """
    parts = [np.array([start_id, *ids], dtype=np.int64) for ids in documents]
    stream = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    rows = len(stream) // row_tokens
    return stream[: rows * row_tokens].reshape(rows, row_tokens)


def _listed(root: Path, config: CorpusConfig) -> list[str]:
    def left_out(path: str) -> bool:
        return any(fnmatchcase(path, glob) for glob in config.exclude)

    found = []
    for folder, names, files in os.walk(root):
        below = Path(folder).relative_to(root)
        names[:] = [n for n in names if n != "__pycache__" and not left_out(f"{(below / n).as_posix()}/")]
        found += [(below / name).as_posix() for name in files]
    return [path for path in found if any(fnmatchcase(path, glob) for glob in config.include) and not left_out(path)]


def _texts(root: Path, paths: Sequence[str], max_bytes: int) -> list[SourceFile]:
    """Files up to max_bytes of text in all; the one that would exceed it is left out, and so are all behind it."""
    files, total = [], 0
    for path in paths:
        data = (root / path).read_bytes()
        try:
            text = data.decode()
        except UnicodeDecodeError:
            continue
        total += len(data)
        if max_bytes and total > max_bytes:
            break
        if text.strip():
            files.append(SourceFile(path, text))
    return files


def _hash(path: str, purpose: str) -> int:
    """64 bits. Two purposes of one path are independent, so the held-out files are no special part of the order."""
    return int.from_bytes(blake3(f"{purpose}\0{path}".encode()).digest(8), "big")
