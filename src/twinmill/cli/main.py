"""`twinmill`: the composition root of the command line. Commands are imported only when they are used."""

import sys

from cyclopts import App

from twinmill import __version__

app = App(
    name="twinmill",
    help="Asynchronous reinforcement learning for coding agents: two mills that meet only in two append-only logs.",
    version=__version__,
)
COMMANDS = {
    "run": ("run:run", "Run a recipe: mid-training, SFT, asynchronous RL, evaluation, report; or --resume a run."),
    "eval": ("evaluate:evaluate", "Pass rate of a model folder, or of a version of a run, on held-out tasks."),
    "serve": ("serve:serve", "Serve a model as OpenAI's API does; record a foreign harness's sessions as episodes."),
    "midtrain": ("run:midtrain", "Only the mid-training of a recipe."),
    "sft": ("run:sft", "Only the SFT of a recipe, its expert's transcripts included."),
    "rl": ("run:rl", "Only the RL of a recipe."),
    "audit": ("audit:audit", "Hold the attempts of a run against the ways to cheat, with evidence."),
    "doctor": ("doctor:doctor", "What this machine can do, and what to install for the rest."),
    "bench": ("bench:bench", "Run a benchmark; without a name, list them."),
}
OWN_HELP = ("bench",)
"""commands that pass --help on"""
for name, (target, text) in COMMANDS.items():
    flags = () if name in OWN_HELP else ("--help", "-h")
    app.command(f"twinmill.cli.{target}", name=name, help=text, help_flags=flags)

tasks = App(name="tasks", help="Task sets: list, show, validate, play by hand.")
for name, text in {
    "list": "List tasks of a set.",
    "show": "Show one task.",
    "validate": "Prove tasks: they fail before, pass after the oracle, and an empty patch scores 0.",
    "play": "Act in a task by hand, with the agent's tools.",
}.items():
    tasks.command(f"twinmill.cli.tasks:{name}_", name=name, help=text)
episodes = App(name="episodes", help="Read the episodes of a run.")
for name, text in {
    "list": "The last attempts of a run.",
    "show": "One episode, turn by turn.",
    "replay": "Compute one episode again, bit for bit, from its version list and seed.",
}.items():
    episodes.command(f"twinmill.cli.episodes:{name}_", name=name, help=text)
weights = App(name="weights", help="The weights log of a run, and a plan of one.")
for name, text in {
    "log": "Every version of a run.",
    "show": "One version: objects, ways that lead to it, what changed.",
    "diff": "What differs between two versions.",
    "verify": "Rebuild every version and check every digest and link.",
    "materialize": "Write any version as a Hugging Face folder.",
    "push": "Publish a Hugging Face folder as the next version of a log.",
    "serve-mirror": "Serve a mirror to other hosts by HTTP, read-only.",
}.items():
    weights.command(f"twinmill.cli.weights:{name.replace('-', '_')}", name=name, help=text)
weights.command("twinmill.cli.plan:plan", name="plan", help="What a version of any model would cost, and what binds.")
machines = App(
    name="machines", help="Machines on other hosts, what machines cost, and what a burst of them would take."
)
for target, text in {
    "machines:serve": "Serve machines of this host, to whoever has a token.",
    "machines:status": "Machines, tenants and leases of a server.",
    "burst:calibrate": "Measure what machines cost on this host, for `plan`.",
    "burst:plan": "What a burst of machines would take, by the pool's own scheduler on a virtual clock.",
}.items():
    machines.command(f"twinmill.cli.{target}", name=target.partition(":")[2], help=text)
for sub in (tasks, episodes, weights, machines):
    app.command(sub)


def main() -> None:
    """Entry point. A mistake of the user is one line and exit code 2; a failed run is exit code 1."""
    from twinmill.cli.errors import explained

    with explained():
        code = app(sys.argv[1:], result_action="return_value")
        sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
