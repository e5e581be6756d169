"""Scripted agents (env.audit.cheaters) played for real: a scripted engine, the real harness, real machines, the audit."""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from twinmill.data.render import Renderer
from twinmill.engine.scripted import ScriptedEngine, reciting
from twinmill.env.audit import AuditConfig, Auditor, earned, flagged
from twinmill.env.audit.cheaters.script import Script
from twinmill.env.harness.loop import HarnessConfig
from twinmill.env.harness.tools import SPECS
from twinmill.env.machine import make_machine
from twinmill.records.episodes import Episode, Finding, Verdict
from twinmill.rollout.play import Player

TOKENS = Path(__file__).parents[3] / "models" / "nano"
"""a model folder whose tokenizer scripts are said in"""


DEFAULT = AuditConfig()


class Played(NamedTuple):
    script: Script
    episode: Episode
    verdict: Verdict
    """as the audit leaves it"""
    findings: tuple[Finding, ...]

    @property
    def flagged(self) -> bool:
        return flagged(self.findings)

    @property
    def earned(self) -> float | None:
        """What the graders alone gave."""
        return earned(self.verdict)


async def play_scripts(
    scripts: Iterable[Script], renderer: Renderer, *, backend: str = "namespace", at_once: int = 4,
    audit: AuditConfig = DEFAULT,
) -> list[Played]:  # fmt: skip
    """In order. Raises RuntimeError where infrastructure failed: what these show must not depend on luck."""
    tools = list(SPECS.values())
    lines: dict[str, list[list[int]]] = {}

    player = Player(
        engine=ScriptedEngine(reciting(lines)),
        renderer=renderer,
        make_machine=lambda spec: make_machine(backend, spec),
        harness=HarnessConfig(turn_tokens=60_000, tool_s=2.0, retry_s=0.0, engine_tries=1),
        cluster="scripted",
    )
    auditor, room = Auditor(audit, renderer.decode), asyncio.Semaphore(at_once)

    async def one(number: int, script: Script) -> Played:
        name = f"{number}:{script.rule or 'honest'}:{script.name}"
        lines[name] = [renderer.assistant(turn, tools) for turn in script.turns]
        async with room:
            episode, verdict = await player(script.task, episode_id=name, group_id="", attempt=0, seed=number)
        if failure := episode.error or verdict.error:
            raise RuntimeError(f"{name}: {failure.boundary.value}: {failure.type}: {failure.message}")
        return Played(script, episode, *auditor(script.task, episode, verdict))

    return list(await asyncio.gather(*(one(i, script) for i, script in enumerate(scripts))))
