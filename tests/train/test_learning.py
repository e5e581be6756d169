"""The loop closed on itself: the trainer's own model samples, and what is rewarded becomes more frequent."""

import numpy as np
import torch

from twinmill.batch.samples import Lost
from twinmill.batch.window import Window
from twinmill.publish.publisher import PublishConfig
from twinmill.records.episodes import (
    Close,
    Episode,
    Finish,
    Group,
    LogPos,
    OpenedBy,
    Segment,
    StopReason,
    Turn,
    Usage,
    Verdict,
    VersionRun,
)
from twinmill.store.blobs import open_blobs
from twinmill.store.runs import RunFolder
from twinmill.train.checkpoint import Checkpoints
from twinmill.train.optimizer import AdamW
from twinmill.train.rl import Ports, Rl, rl, rl_trainer
from twinmill.train.sources.groups import Preparation
from twinmill.train.versions import RunVersions

from .toys import tiny

WANTED = range(12)
"""a quarter of the vocabulary"""


class OwnSamples:
    """Every slot is closed as soon as it is asked for: eight attempts to say a wanted token."""

    def __init__(self, decoder):
        self.decoder = decoder

    def admit_of(self, slot):
        return None

    def close_of(self, slot):
        return Close(slot=slot, task_id=f"t{slot}", entries_G=(LogPos(lane="a", index=0),) * 8)

    @torch.inference_mode()
    def group_of(self, close):
        prompt = [1, 20 + close.slot % 5]
        ids = torch.tensor(prompt)
        logits = self.decoder.logits(self.decoder(ids, torch.arange(2), (2,)).hidden[-1:])[0]
        logprobs = logits.log_softmax(-1).numpy()
        said = np.random.default_rng(close.slot).choice(48, 8, p=np.exp(logprobs) / np.exp(logprobs).sum())
        version = close.slot // 4
        episodes = [self._episode(f"{close.slot}-{i}-0", prompt, int(s), logprobs, version) for i, s in enumerate(said)]
        verdicts = [
            Verdict(episode_id=e.id, scores={}, reward=float(s in WANTED)) for e, s in zip(episodes, said, strict=True)
        ]
        return Group(
            slot=close.slot,
            task_id=close.task_id,
            size=8,
            episodes_G=tuple(episodes),
            verdicts_G=tuple(verdicts),
        )

    @staticmethod
    def _episode(name, prompt, said, logprobs, version):
        turn = Turn(
            index=0,
            input_ids=prompt,
            sampled_ids=[said],
            logprobs=[float(logprobs[said])],
            version_runs=(VersionRun(version=version, count=1),),
            finish=Finish.LENGTH,
        )
        segment = Segment(index=0, opened_by=OpenedBy.TASK, turns=(turn,))
        return Episode(
            id=name,
            task_id="t",
            group_id="g",
            attempt=0,
            segments=(segment,),
            stop=StopReason.FINISHED,
            versions=(version, version),
            usage=Usage(),
            cluster="a",
            seed=0,
        )


def test_reward_rises(tmp_path):
    decoder, reports, blobs = tiny(), [], open_blobs("memory://")
    config = Rl(
        steps=30,
        window=Window(window=0, groups_per_step=4),
        preparation=Preparation(replay=False, tokens_per_episode=1.0),
        optimizer=AdamW(lr=1e-2),
        checkpoint_every=30,
    )
    ports = Ports(
        episodes=OwnSamples(decoder),
        versions=RunVersions(blobs, "toy", b"{}", None, PublishConfig()),
        checkpoints=Checkpoints(RunFolder(tmp_path)),
        load_experts=lambda ref: Lost("not kept"),
        emit=reports.append,
        reject=lambda rejected: None,
    )
    rl(config, rl_trainer(config, decoder), ports)
    rewards = [r.reward for r in reports]
    assert np.mean(rewards[:3]) < 0.5
    assert np.mean(rewards[-3:]) > 0.9
    assert all(r.fresh.max_abs < 1e-5 for r in reports if r.fresh.tokens)
