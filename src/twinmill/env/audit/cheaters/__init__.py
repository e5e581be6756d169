"""Scripted agents: cheaters of every class, and honest ones that are sloppy. Data only; cli/scripted.py plays them."""

from collections.abc import Sequence

from .script import Script


def cheaters() -> Sequence[Script]:
    """All of them, class by class; Script.blind tells which were written before the rules."""
    from . import blind_code, blind_files, informed_code, informed_files

    books = (blind_files.book, blind_code.book, informed_files.book, informed_code.book)
    return sorted((script for book in books for script in book.scripts), key=lambda script: script.rule)
