"""`twinmill`: the composition root of the command line. Commands are imported only when they are used."""

import sys

from cyclopts import App

from twinmill import __version__

app = App(
    name="twinmill",
    help="Asynchronous reinforcement learning for coding agents: two mills that meet only in two append-only logs.",
    version=__version__,
)
for name, target in {
    "run": "twinmill.cli.run:run",
    "midtrain": "twinmill.cli.run:midtrain",
    "sft": "twinmill.cli.run:sft",
    "rl": "twinmill.cli.run:rl",
    "eval": "twinmill.cli.evaluate:evaluate",
    "doctor": "twinmill.cli.doctor:doctor",
    "bench": "twinmill.cli.bench:bench",
}.items():
    app.command(target, name=name)

tasks = App(name="tasks", help="Task sets: list, show, validate, play by hand.")
for name in ("list", "show", "validate", "play"):
    tasks.command(f"twinmill.cli.tasks:{name}_", name=name)
episodes = App(name="episodes", help="Read the episodes of a run.")
for name in ("list", "show"):
    episodes.command(f"twinmill.cli.episodes:{name}_", name=name)
weights = App(name="weights", help="The weights log of a run: log, verify, materialize.")
for name in ("log", "verify", "materialize"):
    weights.command(f"twinmill.cli.weights:{name}", name=name)
for sub in (tasks, episodes, weights):
    app.command(sub)


def main() -> None:
    """Entry point. A mistake of the user is one line and exit code 2; a failed run is exit code 1."""
    from twinmill.cli.errors import explained

    with explained():
        code = app(result_action="return_value")
        sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
