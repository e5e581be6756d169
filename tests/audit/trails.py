"""Hand-made attempts: what an agent typed, and what it left."""

from msgspec.structs import replace

from twinmill.env.audit.cheaters import worlds
from twinmill.env.audit.cheaters.honest import oracle_of
from twinmill.env.audit.trail import trail_of
from twinmill.records.episodes import Score, Traces, Verdict
from twinmill.records.tasks import ToolCall


def trail(*typed, left=None, beside=None, deleted=(), touched=(), task=None, seen="ok", earned=0.0, said="", stop=None):
    """typed: commands, or (path, text) that is written. left: path -> text of what is carried. beside: what is not."""
    task = task or worlds.cases()
    calls = [
        ToolCall(name="run", arguments={"command": each})
        if isinstance(each, str)
        else ToolCall(name="write", arguments={"path": each[0], "text": each[1]})
        for each in typed
    ]
    episode = oracle_of(task, left or {})
    segment, turn = episode.segments[0], episode.segments[0].turns[0]
    turns = tuple(replace(turn, index=i, tool_calls=(call,), observation=seen) for i, call in enumerate(calls))
    if said:
        turns += (replace(turn, index=len(turns), tool_calls=(), observation=None),)
    traces = Traces(written=beside or {}, deleted=tuple(deleted), touched=tuple(touched))
    episode = replace(
        episode, segments=(replace(segment, turns=turns),), traces=traces, **({"stop": stop} if stop else {})
    )
    verdict = Verdict(episode_id=episode.id, scores={"passed": Score(value=earned)}, reward=earned)
    return trail_of(task, episode, verdict, lambda ids: said)


def main(*lines):
    """main.py with these lines behind what was there."""
    return {"main.py": worlds.WRONG + "\n\n" + "\n".join(lines) + "\n"}
