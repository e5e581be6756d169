"""The training mill against the real logs in memory: order, waiting, crashes, resuming, determinism."""

from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from twinmill.batch.alarm import HackAlarm
from twinmill.batch.breaker import Breaker
from twinmill.batch.credit import Credit
from twinmill.batch.samples import Lost
from twinmill.batch.window import Window
from twinmill.model import hf
from twinmill.publish.publisher import PublishConfig
from twinmill.records.base import Ref
from twinmill.records.episodes import DropReason
from twinmill.store import blobs as store_blobs
from twinmill.store.blobs import open_blobs
from twinmill.store.errors import Corrupt
from twinmill.store.ledger import EpisodesLog
from twinmill.store.routes import encode
from twinmill.store.runs import RunFolder
from twinmill.train.checkpoint import Checkpoints
from twinmill.train.optimizer import AdamW
from twinmill.train.recorded import expert_loader
from twinmill.train.rl import Diverged, HackRateTooHigh, InfrastructureLost, Ports, Rl, Starved, rl, rl_trainer
from twinmill.train.sources.groups import Preparation
from twinmill.train.versions import RunVersions

from .toys import TINY, close_slot, tiny

G = 2
PREPARATION = Preparation(replay=False)


class Died(BaseException):
    """Stands for kill -9: nothing may catch it."""


class World:
    """One run's logs and checkpoints; every `start` is a trainer process of its own."""

    def __init__(self, folder):
        self.blobs = open_blobs("memory://")
        self.run = RunFolder(folder)
        self.log = EpisodesLog(self.blobs)
        self.reports, self.slept = [], 0.0

    def ports(self, **changes) -> Ports:
        def sleep(seconds):
            self.slept += seconds

        ports = Ports(
            episodes=self.log,
            versions=RunVersions(self.blobs, "toy", b"{}", None, PublishConfig()),
            checkpoints=Checkpoints(self.run),
            load_experts=lambda ref: Lost("not kept"),
            emit=self.reports.append,
            reject=lambda rejected: None,
            now=lambda: self.slept,
            sleep=sleep,
        )
        return replace(ports, **changes)

    def start(self, config: Rl, **changes):
        trainer = rl_trainer(config, tiny())
        rl(config, trainer, self.ports(**changes))
        return trainer

    def versions(self):
        return self.ports().versions.history()


def config(steps, **fields):
    defaults = {
        "window": Window(window=0, groups_per_step=G),
        "preparation": PREPARATION,
        "optimizer": AdamW(lr=1e-2, clip=1.0),
        "checkpoint_every": 1,
        "starved_s": 5.0,
    }
    return Rl(steps=steps, **defaults | fields)


def closed_world(folder, slots=12, **kinds):
    world = World(folder)
    for slot in range(slots):
        close_slot(world.log, slot, version=slot // G, **kinds.get(f"slot{slot}", {}))
    return world


def test_every_step_is_a_version_that_names_its_slots(tmp_path):
    world = closed_world(tmp_path)
    world.start(config(4))
    versions = world.versions()
    assert [(v.number, v.step, v.slots) for v in versions] == [
        (0, 0, ()),
        (1, 1, (0, 1)),
        (2, 2, (2, 3)),
        (3, 3, (4, 5)),
        (4, 4, (6, 7)),
    ]
    assert len({v.model_digest for v in versions}) == 5
    assert [r.slots for r in world.reports] == [v.slots for v in versions[1:]]
    assert all(r.staleness.keys() == {0} for r in world.reports)
    assert {"wait", "read", "compute", "update", "commit"} == set(world.reports[0].seconds)


def test_six_steps_equal_three_and_a_restart_and_three_bit_for_bit(tmp_path):
    straight = closed_world(tmp_path / "a")
    trainer = straight.start(config(6))
    broken = closed_world(tmp_path / "b")
    broken.start(config(3))
    resumed = broken.start(config(6))
    assert resumed.digest() == trainer.digest()
    assert [v.model_digest for v in straight.versions()] == [v.model_digest for v in broken.versions()]


def test_steps_behind_an_old_checkpoint_are_redone_and_must_agree(tmp_path):
    straight = closed_world(tmp_path / "a")
    straight.start(config(6))
    broken = closed_world(tmp_path / "b")
    sparse = {"checkpoint_every": 4}
    with pytest.raises(Died):
        broken.start(config(6, **sparse), emit=die_at(3, broken.reports))
    assert [v.checkpoint is not None for v in broken.versions()] == [True, False, False, False]
    resumed = broken.start(config(6, **sparse))
    assert [v.model_digest for v in broken.versions()] == [v.model_digest for v in straight.versions()]
    assert resumed.digest() == straight.versions()[-1].model_digest
    assert [r.step for r in broken.reports] == [0, 1, 2, 3, 4, 5], "redone steps are not reported twice"


def die_at(count, reports):
    def emit(report):
        reports.append(report)
        if len(reports) == count:
            raise Died

    return emit


POINTS = [
    f"{name}:{side}"
    for name in ("checkpoint.save", "weights.object", "weights.manifest")
    for side in ("before", "after")
]


@pytest.mark.parametrize("point", POINTS)
def test_dying_at_any_write_trains_every_slot_exactly_once(tmp_path, monkeypatch, point):
    straight = closed_world(tmp_path / "a")
    straight.start(config(4))
    broken = closed_world(tmp_path / "b")
    deaths = 0
    for nth in (1, 2, 3, 4):
        seen = 0

        def crash(name, nth=nth):
            nonlocal seen
            seen += name == point
            if seen == nth:
                raise Died

        with monkeypatch.context() as m:
            m.setattr(store_blobs, "crash_points", crash)
            try:
                broken.start(config(4))
            except Died:
                deaths += 1
    assert deaths >= 2
    broken.start(config(4))
    assert [v.slots for v in broken.versions()] == [v.slots for v in straight.versions()]
    assert [v.model_digest for v in broken.versions()] == [v.model_digest for v in straight.versions()]
    assert len(Checkpoints(broken.run).keys()) <= 2


def test_a_damaged_checkpoint_is_passed_over_and_its_steps_redone(tmp_path):
    world = closed_world(tmp_path)
    world.start(config(3))
    [newest] = [v.checkpoint for v in world.versions() if v.number == 3]
    path = tmp_path / "checkpoints" / f"{newest}.safetensors"
    path.write_bytes(path.read_bytes()[:-9])
    resumed = world.start(config(4))
    assert resumed.digest() == world.versions()[4].model_digest
    straight = closed_world(tmp_path / "straight")
    assert straight.start(config(4)).digest() == resumed.digest()


def test_without_any_checkpoint_resuming_is_refused(tmp_path):
    world = closed_world(tmp_path)
    world.start(config(2))
    for path in (tmp_path / "checkpoints").iterdir():
        path.unlink()
    with pytest.raises(Corrupt, match="no object at") as error:
        world.start(config(3))
    assert world.versions()[-1].checkpoint in str(error.value)


def test_a_redone_step_that_differs_stops_the_run(tmp_path):
    world = closed_world(tmp_path)
    with pytest.raises(Died):
        world.start(config(6, checkpoint_every=4), emit=die_at(2, world.reports))
    with pytest.raises(Diverged, match="version 1 was published with model digest"):
        world.start(config(6, checkpoint_every=4, optimizer=AdamW(lr=2e-2)))


def test_other_weights_under_the_run_stop_it(tmp_path):
    world = closed_world(tmp_path)
    world.start(config(2))
    trainer = rl_trainer(config(3), tiny(seed=9))
    rl(config(3), trainer, world.ports())
    assert trainer.digest() == world.versions()[3].model_digest, "the checkpoint overrides whatever was loaded"


def test_a_missing_slot_starves_the_step_and_is_named(tmp_path):
    world = World(tmp_path)
    close_slot(world.log, 0, 0)
    with pytest.raises(Starved, match=r"step 0 waits for 1 slots and .* \(nobody yet has 1\)"):
        world.start(config(1))
    assert 5 <= world.slept <= 6


def test_waiting_ends_when_the_slot_closes(tmp_path):
    world = World(tmp_path)
    close_slot(world.log, 0, 0)
    ports = world.ports()

    def sleep(seconds):
        world.slept += seconds
        if world.slept > 2 and world.log.close_of(1) is None:
            close_slot(world.log, 1, 0)

    world.start(config(1), sleep=sleep, now=ports.now)
    assert world.reports[0].seconds["wait"] == pytest.approx(2.05, abs=0.06)


def test_a_dropped_slot_is_part_of_its_step(tmp_path):
    drop = {"drop": DropReason.INFRASTRUCTURE, "lost": 3}
    world = closed_world(tmp_path, slots=4, slot1=drop, slot2=drop, slot3=drop)
    world.start(config(2))
    assert [v.slots for v in world.versions()] == [(), (0, 1), (2, 3)]
    assert world.reports[0].dropped["slots_infrastructure"] == 1
    assert world.reports[1].dropped == {"slots_infrastructure": 2}
    digests = [v.model_digest for v in world.versions()]
    assert digests[1] == digests[2] != digests[0], "nothing to learn from changes nothing"


def test_too_many_losses_stop_the_run_but_not_for_ever(tmp_path):
    drop = {"drop": DropReason.INFRASTRUCTURE, "lost": 3}
    world = closed_world(tmp_path, slots=8, slot0=drop, slot1=drop)
    breaker = Breaker(attempts=10, lost_frac=0.5)
    with pytest.raises(InfrastructureLost, match="6 of the last 6 attempts"):
        world.start(config(4, breaker=breaker))
    assert len(world.versions()) == 2, "the step that tripped it is committed"
    world.start(config(4, breaker=breaker))
    assert len(world.versions()) == 5


def test_hacks_raise_the_alarm_and_stop_the_run_only_if_told_to(tmp_path):
    alarm = HackAlarm(frac=0.2, attempts=10)
    world = closed_world(tmp_path / "a", slots=8, slot2={"hacks": 1}, slot5={"hacks": 3})
    warned = []
    world.start(config(4, alarm=alarm), warn=warned.append)
    assert [report.hacked for report in world.reports] == [{}, {"clock": 1}, {"clock": 3}, {}]
    assert [report.hacked_frac for report in world.reports] == [0.0, 1 / 6, 0.5, 0.0]
    assert warned == ["hack rate 20.0% of the last 10 attempts at step 2 (this step: 3 clock); see `twinmill audit`"]
    other = closed_world(tmp_path / "b", slots=8, slot2={"hacks": 1}, slot5={"hacks": 3})
    with pytest.raises(HackRateTooHigh, match=r"hack rate 20\.0%"):
        other.start(config(4, alarm=HackAlarm(frac=0.2, attempts=10, stop=True)))
    assert len(other.versions()) == 4, "the step that raised it is committed"


def test_ready_first_leaves_the_straggler_to_a_later_step(tmp_path):
    window = Window(window=1, groups_per_step=G, policy="ready_first")
    world = World(tmp_path)
    for slot in (1, 2, 3, 4, 5):
        close_slot(world.log, slot, version=0)
    ports = world.ports()

    def emit(report):
        world.reports.append(report)
        if report.step == 1:
            close_slot(world.log, 0, version=0)

    world.start(config(3, window=window), emit=emit, now=ports.now)
    assert [v.slots for v in world.versions()[1:]] == [(1, 2), (3, 4), (0, 5)]
    assert world.reports[2].staleness.keys() == {2}


def test_old_tokens_are_masked_and_counted(tmp_path):
    window = Window(window=2, groups_per_step=G, age_limit=1)
    world = World(tmp_path)
    for slot in range(6):
        close_slot(world.log, slot, version=0)
    world.start(config(3, window=window))
    assert "tokens_too_old" not in world.reports[1].dropped
    third = world.reports[2]
    assert third.dropped["tokens_too_old"] == sum(third.staleness.values())
    assert third.tokens == 0


def test_in_order_trains_no_token_older_than_the_window_whatever_arrives(tmp_path):
    world = World(tmp_path)
    for slot in range(6):
        close_slot(world.log, slot, version=0)
    world.start(config(3, window=Window(window=1, groups_per_step=G)))
    assert [r.tokens > 0 for r in world.reports] == [True, True, False]
    assert world.reports[2].dropped["tokens_too_old"] > 0


def test_missing_experts_are_rejected_by_name(tmp_path):
    world = closed_world(tmp_path, slots=2)
    rejected = []
    world.start(config(1, preparation=Preparation(replay=True)), reject=rejected.append)
    assert sorted(r.episode_id for r in rejected) == [f"{s}-{a}-0" for s in range(2) for a in range(3)]
    assert world.reports[0].dropped == {"samples_no_experts": 6}
    assert world.reports[0].reward == pytest.approx(2 / 6), "their rewards still count"


def test_recorded_experts_come_out_of_the_store(tmp_path):
    world = World(tmp_path)
    load = expert_loader(world.blobs)
    rows = np.arange(12, dtype=np.uint16).reshape(3, 2, 2)
    data = encode(rows)
    ref = world.blobs.put_ref("experts", data)
    assert np.array_equal(load(ref), rows)
    world.blobs.put(ref.key, data[:-1])
    assert ref.key in load(ref).why
    assert "experts/none" in load(Ref(key="experts/none", digest="d", bytes=1)).why
    junk = world.blobs.put_ref("experts", b"no sets of experts")
    assert "no recorded experts" in load(junk).why


def test_replay_on_a_dense_model_is_refused():
    dense = hf.init_decoder(structs.replace(TINY, family="qwen3", experts=0, top_k=0, intermediate=8), 0)
    with pytest.raises(ValueError, match="the model is dense"):
        rl_trainer(Rl(), dense)


def test_kl_needs_and_uses_the_reference(tmp_path):
    preparation = Preparation(replay=False, credit=Credit(kl=0.01))
    world = closed_world(tmp_path / "a", slots=2)
    with pytest.raises(ValueError, match="no reference model"):
        world.start(config(1, preparation=preparation))
    pulled = world.start(config(1, preparation=preparation), reference=tiny())
    free = closed_world(tmp_path / "b", slots=2).start(config(1))
    assert pulled.digest() != free.digest()


def test_the_report_describes_its_groups(tmp_path):
    world = closed_world(tmp_path, slots=2)
    world.start(config(1))
    [r] = world.reports
    assert (r.samples, r.groups, r.varied_frac, r.source) == (6, 2, 1.0, "groups")
    assert r.reward == pytest.approx(1 / 3)
    assert r.fresh.tokens == r.tokens == sum(r.staleness.values())
    assert r.stale.tokens == 0
    assert r.grad_norm > 0
    assert set(r.loss) == {"policy", "aux"}
