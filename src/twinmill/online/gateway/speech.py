"""One model call, in slices: ids as they are sampled, text as far as a client may see it.

A slice is a call of the engine for a few tokens more. Sampling is a pure function of weights, prefix, seed and position, and
the engine keeps the context's KV, so many short calls say what a long one would. One that streams nothing and has no stop
strings is one slice.
"""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from twinmill.data.render import Renderer
from twinmill.engine.base import Engine, EngineError, ExpertTrace
from twinmill.records.engines import GenerateRequest, Sampling
from twinmill.records.episodes import Finish, VersionRun, joined_runs
from twinmill.records.tasks import ToolCall, ToolSpec


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One model call."""

    context: list[int]
    engine_session: str
    """under which the engine keeps the context's KV"""
    group: str = ""
    temperature: float
    top_p: float = 1.0
    max_tokens: int
    seed: int
    stops: tuple[str, ...] = ()
    slice_tokens: int
    """0 = all in one"""
    trace: ExpertTrace | None = None
    """gathers the expert choice; None = not recorded"""
    oldest: int = 0
    """version below which nothing may be sampled: that of the session's last token"""
    last: bool = False
    """the engine may forget the context afterwards"""


@dataclass
class Said:
    """What was sampled so far. Axis T = len(ids)."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    version_runs: tuple[VersionRun, ...] = ()
    """counts add up to T; neighbours differ in version"""
    kv_runs: tuple[VersionRun, ...] = ()
    """as records.episodes.Turn has them"""
    finish: Finish | None = None
    """None = it goes on"""
    fresh: int = 0
    """ids from here on are new since the last slice"""


async def speak(engine: Engine, ask: Ask, renderer: Renderer) -> AsyncGenerator[Said, None]:
    """The same Said after each slice; the last one has `finish`. EngineError when the engine is lost, or goes back to an older
    version: no episode has versions that decrease."""
    said = Said()
    while said.finish is None:
        left = ask.max_tokens - len(said.ids)
        room = min(left, ask.slice_tokens or left)
        out = await engine.generate(
            GenerateRequest(
                session_id=ask.engine_session,
                group_id=ask.group,
                token_ids=ask.context + said.ids,
                sampling=Sampling(
                    temperature=ask.temperature,
                    top_p=ask.top_p,
                    max_tokens=room,
                    stop_ids=tuple(sorted(renderer.stop_ids)),
                    seed=ask.seed,
                ),
                want_experts=ask.trace is not None,
                experts_from=ask.trace.known if ask.trace else 0,
                last=ask.last and room == left,
            )
        )
        _check(out.version_runs, said.version_runs[-1].version if said.version_runs else ask.oldest)
        if ask.trace is not None:
            ask.trace.extend(out)
        said.fresh = len(said.ids)
        said.ids += out.sampled_ids
        said.logprobs += out.logprobs
        said.version_runs = joined_runs([*said.version_runs, *out.version_runs])
        said.kv_runs = out.kv_runs
        if out.finish is Finish.STOP or len(said.ids) >= ask.max_tokens:
            said.finish = out.finish
        if ask.stops:
            _cut_at_stop(said, ask, renderer)
        yield said


def plain(renderer: Renderer, ids: list[int]) -> str:
    """The text of sampled ids, stop tokens apart."""
    return renderer.decode([i for i in ids if i not in renderer.stop_ids])


class Listener:
    """What a client has been told of one answer. Text is only ever added: what was told is what counts as said."""

    def __init__(self, renderer: Renderer, tools: tuple[ToolSpec, ...] | None, stops: tuple[str, ...], single: bool):
        """tools None = a plain text: nothing in it is a call. single: more than one call in an answer is a mistake."""
        self._renderer, self._tools, self._stops, self._single = renderer, tools, stops, single
        self.told = ""
        self.calls: tuple[ToolCall, ...] = ()
        self.mistake: str | None = None
        """why what looks like a tool call is none; it is told as text"""

    def hear(self, said: Said) -> str:
        """The text that is new. Before the end, what may yet turn out to be a stop string, or half of a character, waits."""
        over = said.finish is not None
        text = plain(self._renderer, said.ids)
        if self._tools is not None:
            parsed = self._renderer.parse(said.ids, self._tools)
            mistake = parsed.error
            if mistake is None and self._single and len(parsed.tool_calls) > 1:
                mistake = f"{len(parsed.tool_calls)} tool calls in one answer, but parallel_tool_calls is false"
            if over:
                self.mistake, self.calls = mistake, () if mistake else parsed.tool_calls
            text = text if over and mistake else parsed.content
        at = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if at:
            text = text[: min(at)]
        elif not over:
            text = text.rstrip("�")
            held = max((_overlap(text, stop) for stop in self._stops), default=0)
            text = text[: len(text) - held]
        fresh = text[len(self.told) :] if text.startswith(self.told) else ""
        self.told += fresh
        return fresh


def _check(runs: tuple[VersionRun, ...], oldest: int) -> None:
    if runs and runs[0].version < oldest:
        raise EngineError(f"the engine went back from version {oldest} to {runs[0].version}")


def _cut_at_stop(said: Said, ask: Ask, renderer: Renderer) -> None:
    """Forget what was sampled after the token that completed a stop string: nothing before it depends on it."""

    def stopped(n: int) -> bool:
        text = plain(renderer, said.ids[:n])
        return any(stop in text for stop in ask.stops)

    if not stopped(len(said.ids)):
        return
    end = next(n for n in range(said.fresh + 1, len(said.ids) + 1) if stopped(n))
    said.ids, said.logprobs, said.finish = said.ids[:end], said.logprobs[:end], Finish.STOP
    said.version_runs = _first(said.version_runs, end)
    said.kv_runs = _first(said.kv_runs, len(ask.context) + end - 1)


def _first(runs: Sequence[VersionRun], count: int) -> tuple[VersionRun, ...]:
    """The runs of the first `count` positions."""
    found = []
    for run in runs:
        if count > 0:
            found.append(VersionRun(version=run.version, count=min(run.count, count)))
            count -= found[-1].count
    return tuple(found)


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning of `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
