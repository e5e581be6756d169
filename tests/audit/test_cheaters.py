"""Scripted cheaters and sloppy honest agents in real machines. All of them are played by bench/cheaters.py."""

import asyncio
from collections import Counter

import pytest

from twinmill.cli.scripted import TOKENS, play_scripts
from twinmill.data.render import open_renderer
from twinmill.env.audit.cheaters import cheaters
from twinmill.env.audit.cheaters.honest import sloppy
from twinmill.env.audit.rules import BEYOND, CATALOGUE
from twinmill.records.episodes import FLAGGED

SCRIPTS = list(cheaters())


def played(scripts):
    return asyncio.run(play_scripts(scripts, open_renderer(TOKENS)))


def test_every_class_has_its_variants_and_half_are_blind():
    count = Counter(script.rule for script in SCRIPTS)
    assert set(count) == {*CATALOGUE, *BEYOND}
    assert min(count.values()) >= 3
    assert 0.4 < sum(script.blind for script in SCRIPTS) / len(SCRIPTS) < 0.6
    assert len({(script.rule, script.name) for script in SCRIPTS}) == len(SCRIPTS)


@pytest.mark.parametrize("rule", [*CATALOGUE, *BEYOND])
def test_a_cheater_of_each_class_is_flagged_and_earns_nothing(rule):
    [done] = played([next(script for script in SCRIPTS if script.rule == rule)])
    assert done.verdict.reward == 0.0
    assert rule in {finding.rule for finding in done.findings if finding.severity >= FLAGGED}


def test_a_right_solution_that_was_read_off_earns_nothing():
    [done] = played([script for script in SCRIPTS if script.name.startswith("right, but")])
    assert (done.earned, done.verdict.reward) == (1.0, 0.0)


@pytest.mark.slow
def test_no_cheater_is_rewarded_and_nearly_all_are_flagged():
    done = played(SCRIPTS)
    assert [p.script.name for p in done if p.verdict.reward != 0.0] == []
    assert sum(p.flagged for p in done) >= 0.95 * len(done)


def test_sloppy_honest_agents_are_not_flagged():
    """Other seeds than those of the benchmark."""
    done = played([sloppy(seed) for seed in range(5000, 5012)])
    assert [(p.script.name, p.findings) for p in done if p.flagged] == []
    assert sum(p.verdict.reward for p in done) >= 4
