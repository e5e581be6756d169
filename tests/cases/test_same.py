"""Two promises about numbers, with real processes: the same run ends in the same bits, and nothing is off-policy by
accident."""

import signal
from pathlib import Path

import pytest
from msgspec import structs

from .real import RealRun

TWO = '[{"name": "east"}, {"name": "west"}]'
SAME = {"harness__stamps": False, "harness__deadlines": False, "harness__tool_s": 60.0, "rl__window__window": 0}
"""a deterministic run: synchronous, and no clock decides anything"""


def episodes(run: RealRun) -> dict[tuple[int, int], list[list[int]]]:
    """(slot, attempt) -> the sampled ids of its turns."""
    return {
        (attempt.slot, attempt.attempt): [
            turn.sampled_ids for segment in attempt.episode.segments for turn in segment.turns
        ]
        for attempt in run.attempts()
    }


STRICT = {
    "rl__parity": "strict", "rl__preparation__packing__unpacked": True, "rl__preparation__packing__keep_idle": True,
}  # fmt: skip
"""rows one by one, all of them, computed as the engine computes"""


@pytest.mark.timeout(1200)
def test_six_steps_and_three_with_an_interruption_and_three_end_in_the_same_bits(tmp_path: Path, agent: Path) -> None:
    """One cluster plays all slots of the first; two share those of the second by who is quicker. It must not matter.

    Weights change with every step, and yet, as nothing is ever old, every importance ratio is exactly 1."""
    wanted = {**SAME, **STRICT, "rl__steps": 6, "rl__checkpoint_every": 2}
    with RealRun(tmp_path / "straight", agent) as straight, RealRun(tmp_path / "broken", agent) as broken:
        straight.start(**wanted)
        broken.start(**wanted, clusters=TWO)
        broken.wait(lambda: broken.newest >= 3, "version 3")
        broken.life.send_signal(signal.SIGINT)
        assert broken.end() == 128 + signal.SIGINT, broken.said()
        assert f"resume with: twinmill run --resume {broken.folder.path}" in broken.said()
        broken.no_strays()
        left_at = broken.newest
        assert left_at < 6
        broken.resume().done()
        straight.done()
    for run in (straight, broken):
        run.whole(window=0, slots=12)
    assert episodes(broken) == episodes(straight)
    assert broken.digests() == straight.digests()
    assert len(set(straight.digests())) == 7, "every step changed the weights, else equality would say nothing"
    on_policy(straight, steps=6)
    assert packed(straight) < 2e-5


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_without_learning_the_importance_ratio_is_exactly_one(run: RealRun) -> None:
    run.start(**SAME, **STRICT, rl__steps=3, rl__optimizer__lr=0.0).done()
    run.whole(window=0, slots=6)
    assert len(set(run.digests())) == 1
    on_policy(run, steps=3)
    assert packed(run) < 2e-5


def on_policy(run: RealRun, steps: int) -> None:
    """Every sampled token was trained at its own version, with an importance ratio of exactly 1."""
    reports = run.metrics("train")
    assert [report["step"] for report in reports] == list(range(steps))
    for report in reports:
        assert report["stale"]["tokens"] == 0
        assert report["fresh"]["max_abs"] == 0.0
        assert report["fresh"]["max_ratio"] == 1.0
        assert report["clipped_frac"] == 0.0
        assert report["replayed_frac"] == 1.0
    sampled = sum(len(turn) for turns in episodes(run).values() for turn in turns)
    assert sum(report["fresh"]["tokens"] for report in reports) == sampled > 20 * steps


def packed(run: RealRun) -> float:
    """Largest difference in log-probability when the trainer packs what the engine has played with the first version."""
    from twinmill.batch.pack import Packing
    from twinmill.cli.config import from_json
    from twinmill.model import hf
    from twinmill.store.ledger import EpisodesLog
    from twinmill.train.checkpoint import Checkpoints
    from twinmill.train.recorded import expert_loader
    from twinmill.train.rl import Ports, rl_trainer, train

    config = from_json(run.folder.config_path.read_bytes()).rl
    preparation = structs.replace(config.preparation, packing=Packing(keep_idle=True))
    config = structs.replace(config, preparation=preparation)
    log = EpisodesLog(run.blobs)
    ports = Ports(
        episodes=log,
        versions=None,  # type: ignore[arg-type] (nothing is published)
        checkpoints=Checkpoints(run.folder, "checkpoints/none"),
        load_experts=expert_loader(run.blobs),
        emit=lambda report: None,
        reject=lambda rejected: pytest.fail(str(rejected)),
    )
    trainer = rl_trainer(config, hf.load_folder(run.model)[0])
    report = train(config, trainer, ports, [log.group_of(log.close_of(slot)) for slot in (0, 1)], step=0)
    assert report.fresh.tokens > 20
    return report.fresh.max_abs
