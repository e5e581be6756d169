"""One episode for people, turn by turn, and lists of them. Token ids become text through a `decode` that is given.

What a model or a tool wrote is shown, never obeyed: control characters appear as pictures, so that no episode can move
the reader's cursor.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from twinmill.records.episodes import Attempt, Episode, Turn, Verdict
from twinmill.records.tasks import ToolCall

from . import units

_PICTURES = {n: chr(0x2400 + n) for n in range(32) if chr(n) not in "\n\t"} | {0x7F: "␡", 0x9B: "␛["}

Decode = Callable[[Sequence[int]], str]

_VERSIONS = ("cyan", "green", "yellow", "magenta", "blue", "red")
_UNLIKELY = -3.0
"""log-probability below which a sampled token is underlined: the model surprised itself"""
_LONG = 40
"""lines of appended text or observation that are shown; `full` shows all"""


def episode_table(attempts: Iterable[Attempt]) -> Table:
    """One row per attempt."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name, justify in (
        ("episode", "left"),
        ("task", "left"),
        ("reward", "right"),
        ("stop", "left"),
        ("turns", "right"),
        ("sampled", "right"),
        ("versions", "left"),
        ("cluster", "left"),
        ("", "left"),
    ):
        table.add_column(name, justify=justify, no_wrap=bool(name))  # type: ignore[arg-type]
    for attempt in attempts:
        episode = attempt.episode
        remarks = [f"{len(attempt.findings)} findings"] if attempt.findings else []
        if episode.error:
            remarks.append(f"{episode.error.boundary.value}: {episode.error.type}")
        table.add_row(
            episode.id,
            episode.task_id,
            _reward(attempt.verdict),
            episode.stop.value,
            str(episode.usage.turns),
            str(episode.usage.sampled_tokens),
            _versions(episode),
            episode.cluster,
            Text(", ".join(remarks), "yellow"),
        )
    return table


def episode_text(attempt: Attempt, decode: Decode, *, full: bool = False, tokens: bool = False) -> RenderableType:
    """The whole attempt. `full`: nothing is shortened. `tokens`: every sampled token with its log-probability."""
    episode, verdict = attempt.episode, attempt.verdict

    def clean(ids: Sequence[int]) -> str:
        return _clean(decode(ids))

    return Group(
        Rule(Text.assemble(("episode ", "dim"), (episode.id, "bold")), align="left", style="dim"),
        _head(episode),
        *_turns(episode, clean, full, tokens),
        Rule(Text("verdict", "dim"), align="left", style="dim"),
        _verdict(verdict),
        *(
            Text(f"{f.rule} ({f.action.value}, severity {f.severity:g}): {f.evidence}", "yellow")
            for f in attempt.findings
        ),
        *_changes(episode),
    )


def _head(episode: Episode) -> Text:
    usage = episode.usage
    text = Text()
    for name, value in (
        ("task", episode.task_id),
        ("attempt", f"{episode.attempt} of group {episode.group_id}, seed {episode.seed}, cluster {episode.cluster}"),
        ("versions", _versions(episode)),
        ("stopped", episode.stop.value),
        ("used", f"{usage.turns} turns, {usage.sampled_tokens} sampled of {usage.prompt_tokens} prompt tokens"),
        ("", f"engine {units.short_time(usage.engine_s)}, machine {units.short_time(usage.machine_s)}"),
    ):
        text.append(f"{name:<10}", "dim").append(f"{_clean(value)}\n")
    if usage.tool_errors:
        text.append(f"{'':<10}").append(f"tool errors of its own: {usage.tool_errors}\n", "yellow")
    if episode.error:
        error = episode.error
        text.append(f"{'lost':<10}", "dim").append(
            f"{error.boundary.value}: {error.type}: {error.message}\n", "bold red"
        )
    text.rstrip()
    return text


def _turns(episode: Episode, decode: Decode, full: bool, tokens: bool) -> Iterator[RenderableType]:
    for segment in episode.segments:
        if len(episode.segments) > 1:
            yield Rule(
                Text(f"segment {segment.index}, opened by {segment.opened_by.value}", "dim"), align="left", style="dim"
            )
        for turn in segment.turns:
            yield Rule(Text(f"turn {turn.index}", "dim"), align="left", style="dim")
            yield _block("appended", Text(_shortened(decode(turn.input_ids), full), "dim"))
            yield _block("sampled", _sampled(turn, decode))
            yield _block("", _likelihood(turn, decode))
            if tokens:
                yield _block("tokens", _each_token(turn, decode))
            for call in turn.tool_calls:
                yield _block("call", _call(call))
            if turn.observation is not None:
                yield _block("observed", Text(_shortened(_clean(turn.observation), full)))


def _block(name: str, content: RenderableType) -> RenderableType:
    """A label in the left margin, content beside it."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=9, style="dim")
    grid.add_column(overflow="fold")
    grid.add_row(name, content)
    return Padding(grid, (0, 0))


def _sampled(turn: Turn, decode: Decode) -> Text:
    """The sampled text, coloured by the weight version that produced it. Ids are decoded per run of a version: a token
    alone may be half of a character."""
    text = Text()
    start = 0
    for run in turn.version_runs:
        text.append(decode(turn.sampled_ids[start : start + run.count]), _colour(run.version))
        start += run.count
    return text


def _likelihood(turn: Turn, decode: Decode) -> Text:
    """How many tokens came from which version, and how likely they were."""
    text = Text()
    for run in turn.version_runs:
        text.append(f"v{run.version}", _colour(run.version)).append(f" x{run.count}  ", "dim")
    if turn.logprobs:
        mean = sum(turn.logprobs) / len(turn.logprobs)
        least = min(range(len(turn.logprobs)), key=turn.logprobs.__getitem__)
        word = decode([turn.sampled_ids[least]])
        text.append(f"mean log-probability {mean:.3f}, least {turn.logprobs[least]:.3f} at {word!r}", "dim")
    text.append(f"  ({turn.finish.value}, {units.short_time(turn.seconds)})", "dim")
    return text


def _each_token(turn: Turn, decode: Decode) -> Text:
    """Every token with its log-probability; unlikely ones underlined."""
    text = Text()
    for version, token, logprob in zip(_version_of_each(turn), turn.sampled_ids, turn.logprobs):
        style = _colour(version) + (" underline" if logprob < _UNLIKELY else "")
        text.append(decode([token]).replace(" ", "·").replace("\n", "↵"), style).append(f" {logprob:.2f}  ", "dim")
    return text


def _version_of_each(turn: Turn) -> Iterator[int]:
    for run in turn.version_runs:
        yield from [run.version] * run.count


def _call(call: ToolCall) -> Text:
    text = Text(call.name, "bold")
    text.append("(")
    for n, (name, value) in enumerate(call.arguments.items()):
        text.append(", " if n else "").append(f"{name}=", "dim").append(_clean(repr(value)))
    return text.append(")")


def _verdict(verdict: Verdict) -> Text:
    text = Text.assemble("reward ", (_reward(verdict), "bold"))
    for name, score in verdict.scores.items():
        text.append(f"\n{name:<10}", "dim").append(f"{score.value:g}")
        text.append(f" x{score.weight:g}  {score.grader}", "dim")
        if score.evidence:
            text.append(f"\n{_clean(score.evidence)}", "dim")
    if verdict.error:
        error = verdict.error
        text.append(f"\n{error.boundary.value}: {error.type}: {error.message}", "bold red")
    return text


def _changes(episode: Episode) -> Iterator[RenderableType]:
    """The files that the agent left changed."""
    if episode.machine_after is None:
        yield Text("what it left on the machine could not be read", "yellow")
        return
    for path, content in sorted(episode.machine_after.items()):
        yield Rule(Text(f"left in {_clean(path)}", "dim"), align="left", style="dim")
        yield Text(_clean(content).rstrip("\n"))


def _reward(verdict: Verdict) -> str:
    return "ungraded" if verdict.reward is None else f"{verdict.reward:.3f}"


def _versions(episode: Episode) -> str:
    first, last = episode.versions
    if (first, last) == (-1, -1):
        return units.DASH
    return f"v{first}" if first == last else f"v{first} to v{last}"


def _colour(version: int) -> str:
    return _VERSIONS[version % len(_VERSIONS)]


def _clean(text: str) -> str:
    return text.translate(_PICTURES)


def _shortened(text: str, full: bool) -> str:
    lines = text.rstrip("\n").split("\n")
    if full or len(lines) <= _LONG:
        return "\n".join(lines)
    half = _LONG // 2
    return "\n".join([*lines[:half], f"... {len(lines) - 2 * half} lines ...", *lines[-half:]])
