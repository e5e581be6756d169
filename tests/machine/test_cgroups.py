"""Where control groups can be made is read from the kernel's own tables, for v1 and v2."""

import os
import signal
from pathlib import Path

import pytest

from twinmill.env.machine import cgroups

V1 = """\
29 23 0:26 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
30 23 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
31 23 0:28 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
35 23 0:31 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
36 23 0:32 / /home rw,relatime - ext4 /dev/sda rw
"""
V1_OWN = "8:pids:/\n4:memory:/agent/x\n1:cpu,cpuacct:/\n0::/\n"
V2 = "35 23 0:31 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V2_OWN = "0::/user.slice/app.slice/run.scope\n"
CONTAINER = "35 23 0:31 /docker/abc /sys/fs/cgroup ro,nosuid - cgroup2 cgroup2 rw\n"


def test_own_folders():
    assert cgroups._own_folders(V1, V1_OWN) == [
        ("cgroup", Path("/sys/fs/cgroup/memory/agent/x"), ("memory",)),
        ("cgroup", Path("/sys/fs/cgroup/pids"), ("pids",)),
        ("cgroup2", Path("/sys/fs/cgroup/unified"), cgroups.CONTROLLERS),
    ]
    slice_ = Path("/sys/fs/cgroup/user.slice/app.slice/run.scope")
    assert cgroups._own_folders(V2, V2_OWN) == [("cgroup2", slice_, cgroups.CONTROLLERS)]
    inside = cgroups._own_folders(CONTAINER, "0::/docker/abc/job\n")
    assert inside == [("cgroup2", Path("/sys/fs/cgroup/job"), cgroups.CONTROLLERS)]


@pytest.fixture
def v2(tmp_path, monkeypatch):
    """A group of a host that has all controllers in v2, as plain files."""
    place = cgroups.Place("cgroup2", tmp_path, cgroups.CONTROLLERS)
    monkeypatch.setattr(cgroups, "places", lambda: (place,))
    make = Path.mkdir

    def with_files(folder, *args, **more):
        make(folder, *args, **more)
        for name in ("memory.max", "memory.swap.max", "pids.max", "cgroup.freeze", "cgroup.procs"):
            (folder / name).write_text("")
        (folder / "memory.events").write_text("low 0\noom 3\noom_kill 0\n")

    monkeypatch.setattr(Path, "mkdir", with_files)
    return cgroups.Groups().take(1 << 20, 7)


def test_a_v2_group_is_limited_frozen_and_read_through_its_files(v2):
    (folder,) = v2.folders.values()
    assert (folder / "memory.max").read_text() == str(1 << 20)
    assert (folder / "memory.swap.max").read_text() == "0"
    assert (folder / "pids.max").read_text() == "7"
    v2.freeze(True)
    assert (folder / "cgroup.freeze").read_text() == "1"
    assert not v2.killed_for_memory()
    (folder / "memory.events").write_text("oom_kill 3\n")
    assert v2.killed_for_memory()
    assert v2.controllers == cgroups.CONTROLLERS


def test_where_nothing_can_be_made_there_is_a_group_of_nothing(monkeypatch):
    monkeypatch.setattr(cgroups, "places", lambda: ())
    groups = cgroups.Groups()
    group = groups.take(1, 1)
    group.attach(1)
    assert (group.controllers, group.killed_for_memory()) == ((), False)
    groups.remove()


def test_a_group_is_made_for_one_machine_and_removed_with_it():
    if not cgroups.places():
        pytest.skip("this host lets nobody make control groups")
    groups = cgroups.Groups()
    first, second = groups.take(64 << 20, 5), groups.take(64 << 20, 5)
    folders = [folder for group in (first, second) for folder in group.folders.values()]
    assert all(folder.is_dir() for folder in folders)
    assert (os.getpid(), folders[0]) in cgroups.strays()
    child = os.fork()
    if child == 0:
        signal.pause()
    first.attach(child)
    assert str(child) in (folders[0] / "cgroup.procs").read_text().split()
    groups.give(first)  # busy: it is tried again
    assert folders[0].is_dir()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    third = groups.take(32 << 20, 5)
    assert third.folders != first.folders
    groups.remove()
    assert cgroups.strays() == [] or os.getpid() not in dict(cgroups.strays())
    assert not any(folder.exists() for folder in folders)


def test_empty_groups_of_the_dead_are_swept_and_those_of_the_living_kept(tmp_path):
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    for name in (f"twinmill-{child}-0", f"twinmill-{os.getpid()}-0", "other"):
        (tmp_path / name).mkdir()
    cgroups.sweep([cgroups.Place("cgroup2", tmp_path, ("memory",))])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other", f"twinmill-{os.getpid()}-0"]
