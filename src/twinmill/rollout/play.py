"""One attempt, played and graded: what both the mill and evaluation do."""

import time
from collections.abc import Callable

from twinmill.data.render import Renderer
from twinmill.engine.base import Engine, ExpertTrace
from twinmill.env.harness.loop import HarnessConfig, Identity, run_attempt
from twinmill.env.machine.base import Machine
from twinmill.env.reward import grade
from twinmill.records.base import Ref
from twinmill.records.episodes import Episode, Verdict
from twinmill.records.tasks import MachineSpec, Task
from twinmill.store.blobs import Blobs

MakeMachine = Callable[[MachineSpec], Machine]


class Player:
    """Plays attempts on one engine, each in a fresh machine, and grades each in another."""

    def __init__(
        self,
        *,
        engine: Engine,
        renderer: Renderer,
        make_machine: MakeMachine,
        harness: HarnessConfig,
        cluster: str,
        blobs: Blobs | None = None,
    ) -> None:
        """`blobs` = where recorded experts are put; None = they are not kept."""
        self.engine, self.renderer, self.make_machine = engine, renderer, make_machine
        self.harness, self.cluster, self.blobs = harness, cluster, blobs

    async def __call__(
        self, task: Task, *, episode_id: str, group_id: str, attempt: int, seed: int
    ) -> tuple[Episode, Verdict]:
        who = Identity(episode_id=episode_id, group_id=group_id, attempt=attempt, seed=seed, cluster=self.cluster)
        machine = self.make_machine(task.machine)
        try:
            episode = await run_attempt(
                task,
                who,
                engine=self.engine,
                renderer=self.renderer,
                machine=machine,
                config=self.harness,
                keep=self._keep,
            )
        finally:
            await machine.close()
        now = time.time() if self.harness.stamps else 0.0
        if episode.error is not None:
            return episode, Verdict(episode_id=episode_id, scores={}, reward=None, error=episode.error, graded_at=now)
        verdict = await grade(task, episode.machine_after or {}, self.make_machine, episode_id, now)
        return episode, verdict

    def _keep(self, trace: ExpertTrace) -> Ref | None:
        return None if self.blobs is None else trace.keep(self.blobs)
