"""One session: an attempt of a foreign harness, recorded call by call.

The context is a list of ids that only grows. A request that goes on from what was said last appends to it; what was sampled
is never rendered again. Any other request opens a new segment, and the answer says why:

    restore   it goes on from an earlier point (a repeated call, an agent beside the agent): the ids up to there are taken
              over as they were
    history   nothing said before is its beginning (another agent, a rewritten or summarised history, other tools): rendered
              afresh

Calls of one session take turns, so that segments, and the versions in them, are in order of time. A call whose client leaves
before its end was never made.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from msgspec import structs

from twinmill.data.render import Renderer
from twinmill.engine.base import Engine, ExpertTrace
from twinmill.records.episodes import Episode, Failure, OpenedBy, Segment, StopReason, Turn, Usage, segment_seed
from twinmill.records.tasks import Message
from twinmill.store.blobs import Blobs

from .prompts import Prompt
from .slots import Place
from .speech import Ask, Listener, Said, speak


@dataclass
class Context:
    """A segment as it grows."""

    index: int
    opened_by: OpenedBy
    ids: list[int] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    trace: ExpertTrace = field(default_factory=ExpertTrace)
    points: list[tuple[Prompt, int]] = field(default_factory=list)
    """after each turn: what was said until then, and how many ids that is"""


@dataclass(frozen=True, kw_only=True)
class Opened:
    """Where a call goes on, before anything of it is recorded."""

    context: Context
    appended: list[int]
    """ids between the context's end and what will be sampled"""
    rest: Prompt
    """what the client added"""
    why: str | None
    """a new segment's reason; None = the last segment goes on"""


class Session:
    """Not started until its first call. `lock` is held by the call that is at work."""

    def __init__(self, place: Place, task_id: str, temperature: float, seed: int, experts: bool, cluster: str) -> None:
        self.id = secrets.token_hex(12)
        self.key = "tms-" + secrets.token_urlsafe(24)
        """opens this session's calls, and not its reward: a harness may hand it to an agent"""
        self.place, self.task_id, self.temperature, self.seed = place, task_id, temperature, seed
        self.lock = asyncio.Lock()
        self.touched = time.monotonic()
        self.ended = False
        self._experts, self._cluster = experts, cluster
        self._contexts: list[Context] = []
        self._engine_s = 0.0

    @property
    def turns(self) -> int:
        return sum(len(context.turns) for context in self._contexts)

    @property
    def segments(self) -> int:
        return len(self._contexts)

    @property
    def newest(self) -> int:
        """Version of the last token; 0 when there is none."""
        runs = [run for context in self._contexts for turn in context.turns for run in turn.version_runs]
        return runs[-1].version if runs else 0

    def open(self, prompt: Prompt, renderer: Renderer) -> Opened:
        """Where `prompt` goes on: at the last segment's end, at the longest earlier point, or nowhere."""
        known = [
            (len(said.history), context.index, said, context, length)
            for context in self._contexts
            for said, length in context.points
            if prompt.extends(said)
        ]
        if not known:
            first = not self._contexts
            context = Context(self.segments, OpenedBy.TASK if first else OpenedBy.HISTORY)
            why = "the first call" if first else "the history does not extend what was said in this session"
            return Opened(context=context, appended=prompt.opening_ids(renderer), rest=prompt, why=why)
        _, _, said, context, length = max(known, key=lambda found: (found[0], found[1]))
        sampled = next(turn.sampled_ids for turn, (_, end) in zip(context.turns, context.points) if end == length)
        rest = prompt.rest(said)
        appended = rest.following_ids(renderer, sampled)
        if context is self._contexts[-1] and length == len(context.ids):
            return Opened(context=context, appended=appended, rest=rest, why=None)
        restored = Context(self.segments, OpenedBy.RESTORE)
        why = f"the history goes on from an earlier point, in segment {context.index}; its ids were taken over"
        return Opened(context=restored, appended=context.ids[:length] + appended, rest=rest, why=why)

    def ask(self, opened: Opened, **settings) -> Ask:  # type: ignore[no-untyped-def]
        """`settings` = max_tokens, stops, slice_tokens."""
        context = opened.context
        return Ask(
            context=context.ids + opened.appended,
            engine_session=f"{self.id}/{context.index}",
            group=self.place.group,
            temperature=self.temperature,
            seed=segment_seed(self.seed, context.index),
            trace=context.trace if self._experts else None,
            oldest=self.newest,
            **settings,
        )

    async def speak(
        self, opened: Opened, ask: Ask, prompt: Prompt, listener: Listener, engine: Engine, renderer: Renderer
    ) -> AsyncGenerator[tuple[Said, str], None]:
        """(what was said so far, the text that is new) slice by slice; the turn is recorded before the last one is given."""
        context, known = opened.context, opened.context.trace.known
        started = time.time()
        done = False
        try:
            async for said in speak(engine, ask, renderer):
                text = listener.hear(said)
                if said.finish is not None:
                    self._record(opened, ask, prompt, said, listener, started)
                    done = True
                yield said, text
        finally:
            self.touched = time.monotonic()
            self._engine_s += time.time() - started
            if not done:
                context.trace.cut(known)

    def _record(self, opened: Opened, ask: Ask, prompt: Prompt, said: Said, listener: Listener, started: float) -> None:
        assert said.finish is not None
        context = opened.context
        context.trace.cut(len(ask.context) + len(said.ids) - 1)  # raises where routes are missing; so it comes first
        if context.turns:  # what this call's client added is what the turn before it led to
            context.turns[-1] = structs.replace(context.turns[-1], observation=opened.rest.text())
        context.turns.append(
            Turn(
                index=len(context.turns), input_ids=opened.appended, sampled_ids=said.ids, logprobs=said.logprobs,
                version_runs=said.version_runs, finish=said.finish, kv_runs=said.kv_runs,
                tool_calls=listener.calls, started=started, seconds=time.time() - started,
            )
        )  # fmt: skip
        context.ids = ask.context + said.ids
        answer = Message(role="assistant", content=listener.told, tool_calls=listener.calls)
        context.points.append((prompt.answered(answer, tuple(said.ids)), len(context.ids)))
        if context not in self._contexts:
            self._contexts.append(context)

    def episode(self, stop: StopReason, blobs: Blobs, error: Failure | None = None) -> Episode:
        """The session as an ordinary episode; its experts go to the store first, unless an error ended it. EngineError where
        they are no choices of experts."""
        turns = [turn for context in self._contexts for turn in context.turns]
        versions = [run.version for turn in turns for run in turn.version_runs]
        place, kept = self.place, None if error else blobs
        return Episode(
            id=f"{place.slot}-{place.attempt}-{place.tries}", task_id=self.task_id, group_id=str(place.slot),
            attempt=place.attempt, segments=tuple(_segment(context, kept) for context in self._contexts), stop=stop,
            versions=(versions[0], versions[-1]) if versions else (-1, -1),
            usage=Usage(
                turns=len(turns), prompt_tokens=sum(len(turn.input_ids) for turn in turns),
                sampled_tokens=sum(len(turn.sampled_ids) for turn in turns), engine_s=self._engine_s,
            ),
            cluster=self._cluster, seed=self.seed, error=error,
        )  # fmt: skip


def _segment(context: Context, blobs: Blobs | None) -> Segment:
    turns, experts = tuple(context.turns), None if blobs is None else context.trace.keep(blobs)
    return Segment(index=context.index, opened_by=context.opened_by, turns=turns, experts=experts)
