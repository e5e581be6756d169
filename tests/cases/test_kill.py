"""kill -9 of real processes: every slot is trained exactly once, none is dropped, and nothing stays behind."""

import random
import signal
import time

import pytest

from .real import RealRun

ROLES = ("trainer", "engine/east", "rollout/east", "supervisor")


@pytest.mark.timeout(900)
def test_every_role_is_killed_once_and_the_run_goes_on(run: RealRun) -> None:
    run.start("rl", rl__steps=6, rl__window__window=1)
    run.wait(lambda: run.attempts(), "the first attempt")
    for version, name in enumerate(("rollout/east", "trainer", "engine/east")):
        run.wait(lambda v=version: run.newest >= v, f"version {version}")
        run.signal(name)
        run.wait(lambda n=name: run.says(f"^failed: {n}: killed by SIGKILL"), f"word of {name}")
    run.wait(lambda: run.newest >= 3, "version 3")
    run.wait(lambda: any("of twinmill-" in stray for stray in run.strays()), "a machine")
    assert sum("twinmill.cli.proc" in stray for stray in run.strays()) >= 2, "strays are seen where there are some"
    run.signal("supervisor")
    assert run.end() == -signal.SIGKILL
    run.no_strays(groups=False)
    before = run.digests()
    run.resume().done()
    run.no_strays()
    found = run.whole(window=1, slots=12)
    assert found.newest == 6
    assert run.digests()[: len(before)] == before
    assert found.unused == 0, "engines that come back are waited for: no attempt was lost"


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(20))
def test_killed_at_random_moments(run: RealRun, seed: int) -> None:
    """Two clusters; each role is killed once, in a random order and at random moments, also while others come back."""
    rng = random.Random(seed)
    window = rng.choice((0, 1, 2))
    run.start(rl__steps=5, rl__window__window=window, clusters='[{"name": "east"}, {"name": "west"}]')
    run.wait(lambda: run.newest >= 0, "version 0")
    victims = [*ROLES, rng.choice(("engine/west", "rollout/west"))]
    rng.shuffle(victims)
    for victim in victims:
        time.sleep(rng.uniform(0.0, 3.0))
        if run.life.poll() is not None:
            break  # it was quicker than its killers
        pid = run.pid(victim)
        if pid is None:
            continue  # on its way back from an earlier life, or done
        run.signal(victim)
        if victim == "supervisor":
            assert run.end() == -signal.SIGKILL
            run.no_strays(groups=False)
            run.resume()
    run.done()
    run.no_strays()
    found = run.whole(window=window, slots=10)
    assert found.newest == 5
