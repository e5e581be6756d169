"""What the model gets wrong: plays training tasks with the base as it is and keeps the guesses that did not help.

    python recipes/nano_mistakes.py OUT --tasks 6000            (writes OUT/mistakes.jsonl)

A model that reads only other people's failed guesses learns to make its own one again: after a failed test its best
guess is still the best. So `recipes/nano_base.py` also shows it its own, each followed by the failed test and then by
what was right (as DAgger does, 1011.0686). Here every edit is tested, and an attempt has six.

Guesses are run in this process, without a machine; so one counts only if it is made of words of the task itself.
"""

import argparse
import asyncio
import json
import re
from pathlib import Path

import torch

from twinmill.data.render.nano import NanoRenderer
from twinmill.data.tasks.tinyrepo import Broken, TinyRepo
from twinmill.data.tasks.tinyrepo.expert import Draft
from twinmill.engine.embedded import EmbeddedEngine, EngineConfig, serving
from twinmill.env.harness.tools import SPECS
from twinmill.records.engines import GenerateRequest, Sampling
from twinmill.records.tasks import Message, ToolCall

LEVEL = TinyRepo(0)
TOOLS = list(SPECS.values())
GUESSES = 6
TEMPERATURES = (0.3, 0.7, 1.0)
HARMLESS = {
    "len", "min", "max", "sum", "abs", "range", "sorted", "str", "int", "list", "dict", "set", "append", "return",
}  # fmt: skip
"""words that a guess may have beside those of its task"""
TEST = Message(role="assistant", content="", tool_calls=(ToolCall(name="test", arguments={}),))


def harmless(text: str, repo: Broken) -> bool:
    known = set(re.findall(r"\w+", repo.good[repo.path])) | HARMLESS
    words = set(re.findall(r"[A-Za-z_]\w*", text))
    return "\n" not in text and words <= known


async def mistakes(task_id: str, engine: EmbeddedEngine, render: NanoRenderer, temperature: float) -> list[list]:
    """[line index, text] of each guess that did not mend the task, until one did or the model stopped editing."""
    repo = LEVEL.broken(task_id)
    draft = Draft(repo)
    ids = render.open(LEVEL.load(task_id).messages, TOOLS)
    found: list[list] = []
    while len(found) < GUESSES:
        out = await engine.generate(
            GenerateRequest(
                session_id=task_id,
                token_ids=ids,
                sampling=Sampling(
                    temperature=temperature, max_tokens=64, stop_ids=tuple(sorted(render.stop_ids)), seed=1
                ),
                last=len(found) == GUESSES - 1,
            )
        )
        calls = render.parse(out.sampled_ids, TOOLS).tool_calls
        if len(calls) != 1 or calls[0].name != "replace" or calls[0].arguments["path"] != repo.path:
            break
        at, text = calls[0].arguments["line"] - 1, calls[0].arguments["text"]
        if not 0 <= at < len(draft.lines) or not harmless(text, repo):
            break
        answer = draft.edit(at, text)
        found.append([at, text])
        ids = [*ids, *out.sampled_ids, *render.observe(out.sampled_ids, [answer])]
        if answer != "ok":
            continue
        seen = draft.test()
        if seen.startswith("ok"):
            return found[:-1]
        asked = render.assistant(TEST, TOOLS)
        ids += [*asked, *render.observe(asked, [seen])]
    return found


async def collect(folder: Path, split: str, first: int, tasks: int) -> None:
    render, room, done = NanoRenderer.from_folder(folder), asyncio.Semaphore(48), 0
    with (folder / "mistakes.jsonl").open("a") as out:
        async with serving(folder, EngineConfig(batch=48, slots=64)) as engine:

            async def one(i: int) -> None:
                nonlocal done
                async with room:
                    task_id = LEVEL.ids(split)[i]
                    found = await mistakes(task_id, engine, render, TEMPERATURES[i % len(TEMPERATURES)])
                if found:
                    out.write(json.dumps({"task": task_id, "mistakes": found}) + "\n")
                done += 1
                if done % 200 == 0:
                    print(f"{done} of {tasks} tasks", flush=True)

            await asyncio.gather(*(one(i) for i in range(first, first + tasks)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--split", default="train", help="heldout: to measure by, never to learn from")
    parser.add_argument("--first", type=int, default=400_000)
    parser.add_argument("--tasks", type=int, default=6000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    asyncio.run(collect(args.out, args.split, args.first, args.tasks))


if __name__ == "__main__":
    main()
