"""Rewards: what an attempt left is judged in a fresh machine. One file per grader kind."""

from .grading import grade

__all__ = ["grade"]
