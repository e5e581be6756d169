"""Chat: a transcript to learn from. Made by data.chats, read by train."""

from .base import Record


class Chat(Record):
    """One uninterrupted context of token ids, and which of them an assistant said.

    Example: Chat(id="expert-7/0", token_ids=[1, 2, 9, 3, 5, 6], sampled=((2, 2), (5, 1))): ids 9, 3 and 6 carry loss.
    """

    id: str
    """f"{episode id}/{segment}" for a segment of an episode"""
    token_ids: list[int]
    sampled: tuple[tuple[int, int], ...]
    """(start, count) of each run of tokens that carry loss, in order, none overlapping"""
    task_id: str = ""
    """"" = of no task"""
    reward: float | None = None
    """None = not graded"""
