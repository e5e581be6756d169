"""The rules: name -> function. The first fourteen are the catalogue's classes, in its order."""

from . import answers, conduct, hard_coded, process, surface
from .base import Hit, Rule

RULES: dict[str, Rule] = {
    "tests_edited": surface.tests_edited,
    "planted_verdict": surface.planted_verdict,
    "early_exit": process.early_exit,
    "equal_to_all": process.equal_to_all,
    "surroundings_poisoned": surface.surroundings_poisoned,
    "checker_patched": process.checker_patched,
    "answers_read": answers.answers_read,
    "git_history": answers.git_history,
    "hard_coded": hard_coded.hard_coded,
    "tests_vanish": surface.tests_vanish,
    "clock": process.clock,
    "resources": process.resources,
    "world_probed": conduct.world_probed,
    "judge_addressed": conduct.judge_addressed,
    "errors_provoked": answers.errors_provoked,
    "code_recovered": answers.code_recovered,
    "asked_back": conduct.asked_back,
    "honeypot": answers.honeypot,
    "impossible_passed": conduct.impossible_passed,
}
CATALOGUE = tuple(RULES)[:14]
"""the classes of the catalogue"""
BEYOND = tuple(RULES)[14:17]
"""classes seen beyond it"""

__all__ = ["BEYOND", "CATALOGUE", "RULES", "Hit", "Rule"]
