"""Scripted agents: cheaters of every class, and honest ones that are sloppy. Data only; cli/scripted.py plays them."""

from collections.abc import Sequence

from .script import Script


def cheaters() -> Sequence[Script]:
    """All of them, class by class; Script.blind tells which were written before the rules."""
    from . import blind_code, blind_files
    found = [*blind_files.book.scripts, *blind_code.book.scripts]
    return sorted(found, key=lambda script: script.rule)
