"""Score one model folder at one temperature: what bench/learn.py runs side by side, one process per core.

python bench/_score.py MODEL --tasks 200 --attempts 1 --temperature 0.3 OUT.json
"""

import argparse
import asyncio
from pathlib import Path

from twinmill.cli.evaluate import score_folder
from twinmill.records import wire
from twinmill.rollout.evaluate import EvalConfig


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tasks", type=int, required=True)
    parser.add_argument("--attempts", type=int, required=True)
    parser.add_argument("--temperature", type=float, required=True)
    args = parser.parse_args()
    config = EvalConfig(tasks=args.tasks, attempts=args.attempts, temperature=args.temperature, machines=16)
    found = asyncio.run(score_folder(args.model, "tinyrepo:0", config, 1, lambda reward: None))
    aside = args.out.with_suffix(".tmp")
    aside.write_bytes(wire.to_json(found))
    aside.rename(args.out)


if __name__ == "__main__":
    main()
