"""Plain values as JSON trees and back: what crosses between a candidate's process and whoever judges it.

Self-contained, standard library only: used on the host, and sent into machines in front of other guests.

A value is plain when its type is exactly one of Python's built-in ones, all the way down; an object of the candidate's
own class, whatever its __eq__, __repr__ or base class say, is not. None, bool, int, float, str and list are themselves
in JSON; the rest are {"tuple": [...]}, {"dict": [[key, value], ...]}, {"set": [...]}, {"frozenset": [...]},
{"bytes": hex}, {"complex": [re, im]}.
"""

import hashlib
import json

LONG = 4000
"""characters of a canonical text from which on its digest stands for it"""


class NotPlain(Exception):
    """The value is of another type, too deep, or contains itself."""


def encode(value):
    try:
        return _encode(value)
    except RecursionError:
        raise NotPlain("too deep a value") from None


def _encode(value):
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is list:
        return [_encode(item) for item in value]
    if kind in (tuple, set, frozenset):
        return {kind.__name__: [_encode(item) for item in value]}
    if kind is dict:
        return {"dict": [[_encode(key), _encode(item)] for key, item in value.items()]}
    if kind is bytes:
        return {"bytes": value.hex()}
    if kind is complex:
        return {"complex": [value.real, value.imag]}
    raise NotPlain(f"an object of type {kind.__name__}")


def decode(tree):
    """The value of a tree. Raises ValueError, TypeError or RecursionError for what encode never made."""
    if isinstance(tree, list):
        return [decode(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    ((name, content),) = tree.items()
    if name == "dict":
        return {decode(key): decode(item) for key, item in content}
    if name == "bytes":
        return bytes.fromhex(content)
    if name == "complex":
        return complex(*content)
    return {"tuple": tuple, "set": set, "frozenset": frozenset}[name](decode(item) for item in content)


def canonical(tree):
    """A text that two trees share exactly when their values are equal and of equal types; sets, dicts have no order."""
    text = json.dumps(_ordered(tree))
    return text if len(text) < LONG else "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def _ordered(tree):
    if isinstance(tree, list):
        return [_ordered(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    ((name, content),) = tree.items()
    content = _ordered(content)
    return {name: sorted(content, key=json.dumps) if name in ("dict", "set", "frozenset") else content}
