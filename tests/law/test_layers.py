"""The import graph of the design, read from the code: rooms import only what their row allows, and stay light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "src" / "twinmill"
MAY_IMPORT = {
    "records": (),
    "store": ("records",),
    "publish": ("records", "store"),
    "data": ("records", "store"),
    "pool": ("records", "store"),
    "board": ("records", "store"),
    "model": ("records",),
    "batch": ("records",),
    "engine": ("records", "store", "publish", "model"),
    "env": ("records", "store", "data", "engine.base"),
    "rollout": ("records", "store", "data", "env", "engine.base"),
    "train": ("records", "store", "publish", "data", "model", "batch"),
    "online": ("records", "store", "data", "engine.base"),
    "launch": ("records", "store"),
    "cli": None,
}
"""room -> what it may import; None = all. docs/LOG.md gives the reason of every change."""
TORCH_FREE = (
    "twinmill", "twinmill.records.samples", "twinmill.store.ledger", "twinmill.publish.subscriber", "twinmill.data.render",
    "twinmill.data.tasks.tinyrepo", "twinmill.env.harness.loop", "twinmill.env.reward", "twinmill.rollout.mill",
    "twinmill.rollout.play", "twinmill.rollout.evaluate", "twinmill.batch.window", "twinmill.launch.supervisor",
    "twinmill.engine.base", "twinmill.engine.client", "twinmill.engine.scripted", "twinmill.board.live", "twinmill.cli.main",
    "twinmill.online.gateway", "twinmill.cli.serve",
)  # fmt: skip


def imports(path: Path) -> set[str]:
    """Modules of twinmill that a file imports, anywhere in it, relative imports resolved."""
    package = ["twinmill", *path.relative_to(ROOT).with_suffix("").parts]
    if package[-1] == "__init__":
        package = [*package[:-1], "__init__"]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found |= {module} if node.module else {f"{module}.{alias.name}" for alias in node.names}
    return {name.removeprefix("twinmill.") for name in found if name.startswith("twinmill.")}


@pytest.mark.parametrize("room", sorted(p.name for p in ROOT.iterdir() if p.is_dir() and p.name != "__pycache__"))
def test_a_room_imports_only_what_the_design_allows(room):
    assert room in MAY_IMPORT, f"{room} is a new room: say in docs/LOG.md which room's sentence it breaks"
    allowed = MAY_IMPORT[room]
    if allowed is None:
        return
    for path in (ROOT / room).rglob("*.py"):
        for name in imports(path):
            if name == room or name.startswith(room + "."):
                continue
            fits = any(name == a or name.startswith(a + ".") for a in allowed)
            assert fits, (
                f"{path.relative_to(ROOT)} imports twinmill.{name}; {room} may import {', '.join(allowed) or 'nothing'}"
            )


def test_only_cli_reads_the_environment():
    for path in ROOT.rglob("*.py"):
        if path.relative_to(ROOT).parts[0] == "cli" or path.name == "init_guest.py":
            continue
        for node in ast.walk(
            ast.parse(path.read_text())
        ):  # the code: rules and scripts of the audit speak of it in texts
            names = (
                [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) and node.module == "os" else []
            )
            names += [node.attr] if isinstance(node, ast.Attribute) else []
            reads = {"environ", "environb", "getenv"}.intersection(names)
            assert not reads, f"{path.relative_to(ROOT)}:{node.lineno} reads the environment"


def test_there_are_no_bags():
    for path in ROOT.rglob("*.py"):
        assert path.stem not in ("utils", "common", "helpers", "misc"), path


@pytest.mark.parametrize("module", TORCH_FREE)
def test_importing_is_silent_and_needs_no_torch(module):
    code = f"import sys, {module}; assert 'torch' not in sys.modules, 'torch'; assert 'transformers' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == b"" and done.stderr == b""
