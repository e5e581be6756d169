"""Other builds of the native core under its own tests: with sanitizers, and with AVX-512 emulated. Slow: they compile."""

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from twinmill.model.core import levels

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SOURCE = ROOT / "src" / "twinmill" / "model" / "core"
COMPILER = shutil.which("cc")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(COMPILER is None or not levels(), reason="no C compiler, or no native core"),
]


def build(folder: Path, *flags: str) -> Path:
    """The extension with other flags, as setup.py builds it otherwise."""
    module = folder / "_core.abi3.so"
    common = ["-std=gnu11", "-ffp-contract=off", "-fvisibility=hidden", "-Wno-psabi", "-fPIC", "-shared", "-pthread"]
    include = sysconfig.get_paths()["include"]
    sources = sorted(map(str, SOURCE.glob("*.c")))
    command = [COMPILER, *common, *flags, "-DPy_LIMITED_API=0x030B0000", f"-I{include}", *sources, "-o", module, "-lm"]
    subprocess.run(command, check=True, timeout=600)
    return module


def tests_pass_with(module: Path, *names: str, **environment: str) -> None:
    """Run test files in a process whose core is `module`."""
    code = f"""
import importlib.machinery, importlib.util, sys
name = "twinmill.model.core._core"
loader = importlib.machinery.ExtensionFileLoader(name, {str(module)!r})
sys.modules[name] = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
loader.exec_module(sys.modules[name])
import twinmill.model.core, pytest
assert twinmill.model.core._core is sys.modules[name]
sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *{[str(HERE / n) for n in names]!r}]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, timeout=1400, text=True, capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "runtime error" not in done.stderr, done.stderr[-3000:]


def test_no_sanitizer_complains(tmp_path):
    module = build(tmp_path, "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
    runtime = subprocess.run([COMPILER, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    tests_pass_with(
        module, "test_core.py", "test_core_trainer.py",
        LD_PRELOAD=runtime.stdout.strip(), ASAN_OPTIONS="detect_leaks=0",
    )  # fmt: skip


@pytest.mark.skipif(platform.machine() != "x86_64" or "avx2" not in levels(), reason="emulated with AVX2")
@pytest.mark.skipif("avx512" in levels(), reason="this processor has AVX-512 itself")
def test_the_avx512_level_emulated_agrees_with_avx2_to_the_bit(tmp_path):
    module = build(tmp_path, "-O2", f'-DEMULATED_AVX512="{HERE / "emulated_avx512.h"}"')
    tests_pass_with(module, "test_core.py")
