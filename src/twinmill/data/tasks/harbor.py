"""Task set `harbor:FOLDER`: task folders in Harbor's format, read where they lie.

    task.toml        [metadata] [agent] [verifier] [environment]
    instruction.md   what the agent is told
    environment/     what its workspace starts from: a Dockerfile and the files it copies
    tests/           test.sh and what it needs; hidden until grading
    solution/        solve.sh; the oracle

FOLDER is one task, or holds tasks. Ids are harbor/<folder name>. A machine of ours has no image: a Dockerfile is read
as far as it copies files of its context into the working directory (COPY, ADD), names that (WORKDIR /app or /work), or
says what needs no doing (FROM, CMD, LABEL, EXPOSE, ARG). Anything else, as RUN and ENV, needs a backend with images:
the task is refused by name rather than run in a wrong world.
"""

import posixpath
import shlex
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from twinmill.records.tasks import Budget, Grader, GraderKind, MachineSpec, Message, Task

TOOLS = ("read", "replace", "write", "list", "search", "run", "finish")
HOME = ".harbor"
"""where the machine's absolute paths /tests and /solution point into; the agent's own machine has nothing there"""
_HOMES = ("/app", "/work")
_NOTHING_TO_DO = ("FROM", "CMD", "LABEL", "EXPOSE", "ARG", "ENTRYPOINT", "MAINTAINER", "STOPSIGNAL")
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


class HarborError(ValueError):
    """A task folder that cannot be used; says which, and why."""


class Harbor:
    name = "harbor"

    def __init__(self, folder: str = ".") -> None:
        root = Path(folder).expanduser()
        if not root.is_dir():
            raise HarborError(f"no folder {root}: write harbor:FOLDER")
        folders = [root] if (root / "task.toml").is_file() else sorted(p.parent for p in root.glob("*/task.toml"))
        if not folders:
            raise HarborError(f"no task.toml in {root} or in the folders below it")
        self._folders = {f"harbor/{each.resolve().name}": each for each in folders}

    def ids(self, split: str) -> Sequence[str]:
        """One split: a folder says nothing of others. Any of the usual names means all of it."""
        if split not in ("all", "train", "heldout", "test"):
            raise ValueError(f"harbor has splits all, train, heldout and test (all the same), not {split!r}")
        return list(self._folders)

    def load(self, task_id: str) -> Task:
        folder = self._folder(task_id)
        config = _config(folder)
        environment = config.get("environment", {})
        if environment.get("docker_image"):
            raise HarborError(f"{folder}: asks for the image {environment['docker_image']}; no backend has images yet")
        tests = _texts(folder / "tests")
        if "test.sh" not in tests:
            raise HarborError(f"{folder}: tests/test.sh is missing")
        return Task(
            id=task_id,
            taskset=self.name,
            messages=(Message(role="user", content=(folder / "instruction.md").read_text()),),
            machine=MachineSpec(
                files=_workspace(folder / "environment"),
                memory_bytes=_bytes(environment, "memory", 512 * 2**20),
                disk_bytes=min(_bytes(environment, "storage", 64 * 2**20), 512 * 2**20),  # it is held in memory
                network=bool(environment.get("allow_internet", False)),
            ),
            tools=TOOLS,
            budget=Budget(
                turns=50, sampled_tokens=16384, context_tokens=32768, wall_s=_seconds(config, "agent", 600.0)
            ),
            grader=Grader(
                kind=GraderKind.COMMAND,
                files={f"{HOME}/tests/{path}": text for path, text in tests.items()},
                command=("bash", "/tests/test.sh"),
                allow=("**",),
                deny=(f"{HOME}/**",),
                timeout_s=_seconds(config, "verifier", 600.0),
            ),
            tags=tuple(config.get("metadata", {}).get("tags", ())),
        )

    def oracle(self, task_id: str) -> dict[str, str]:
        """The files of solution/, where oracle_command finds them."""
        solution = _texts(self._folder(task_id) / "solution")
        if "solve.sh" not in solution:
            raise HarborError(f"{self._folder(task_id)}: solution/solve.sh is missing")
        return {f"{HOME}/solution/{path}": text for path, text in solution.items()}

    def oracle_command(self, task_id: str) -> tuple[str, ...]:
        return ("bash", "/solution/solve.sh")

    def _folder(self, task_id: str) -> Path:
        if task_id not in self._folders:
            raise HarborError(f"no task {task_id}; there are {', '.join(list(self._folders)[:10])}")
        return self._folders[task_id]


def _config(folder: Path) -> dict[str, Any]:
    try:
        return tomllib.loads((folder / "task.toml").read_text())
    except tomllib.TOMLDecodeError as error:
        raise HarborError(f"{folder / 'task.toml'}: {error}") from None


def _seconds(config: dict[str, Any], section: str, default: float) -> float:
    return float(config.get(section, {}).get("timeout_sec", default))


def _bytes(environment: dict[str, Any], name: str, default: int) -> int:
    """`memory_mb = 2048`, or the older `memory = "2G"`."""
    if f"{name}_mb" in environment:
        return int(environment[f"{name}_mb"]) * 2**20
    text = str(environment.get(name, "")).upper().removesuffix("B")
    return int(float(text[:-1]) * _UNITS[text[-1]]) if text and text[-1] in _UNITS else default


def _texts(folder: Path) -> dict[str, str]:
    """path below `folder` -> text of every file."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            try:
                found[path.relative_to(folder).as_posix()] = path.read_text()
            except UnicodeDecodeError:
                raise HarborError(f"{path}: only text files can be carried into a machine yet") from None
    return found


def _workspace(context: Path) -> dict[str, str]:
    """What the Dockerfile makes of its context; without one, the context itself."""
    files = _texts(context) if context.is_dir() else {}
    dockerfile = files.pop("Dockerfile", None)
    if dockerfile is None:
        return files
    home, found = "/app", {}
    for line in dockerfile.replace("\\\n", " ").splitlines():
        word, _, rest = line.strip().partition(" ")
        word = word.upper()
        if not word or word.startswith("#") or word in _NOTHING_TO_DO:
            continue
        if word == "WORKDIR" and rest.strip().rstrip("/") in _HOMES:
            home = rest.strip().rstrip("/")
        elif word in ("COPY", "ADD"):
            found.update(_copied(files, rest, home, context))
        else:
            raise HarborError(f"{context / 'Dockerfile'}: `{line.strip()[:80]}` needs an image; no backend has any yet")
    return found


def _copied(files: dict[str, str], rest: str, home: str, context: Path) -> dict[str, str]:
    """COPY SOURCE... TARGET, within the context and the working directory."""
    *sources, target = (word for word in shlex.split(rest) if not word.startswith("--"))
    into = posixpath.normpath(posixpath.join(home, target))
    below = next((into[len(top) :].lstrip("/") for top in _HOMES if into == top or into.startswith(f"{top}/")), None)
    if below is None:
        raise HarborError(f"{context / 'Dockerfile'}: COPY to {target} leaves the working directory {home}")
    is_folder = target.endswith(("/", ".")) or len(sources) > 1 or not below
    found = {}
    for source in sources:
        source = posixpath.normpath(source).lstrip("/")
        for path, text in files.items():
            if path == source:
                name = posixpath.basename(path) if is_folder else ""
            elif source == "." or path.startswith(f"{source}/"):
                name = path if source == "." else path[len(source) + 1 :]
            else:
                continue
            found[posixpath.normpath(posixpath.join(below, name))] = text
    if not found:
        raise HarborError(f"{context / 'Dockerfile'}: COPY {rest.strip()} finds nothing")
    return found
