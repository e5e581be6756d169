"""The native parts, each optional: where no compiler is, the Python reference beside it serves.

Every `_name.c` below src/ is one extension; the other C files of its folder are compiled into it.
"""

from pathlib import Path

from setuptools import Extension, setup

SOURCE = Path("src")
FLAGS = ["-std=gnu11", "-O3", "-ffp-contract=off", "-fvisibility=hidden", "-Wno-psabi"]
"""no -march (levels are chosen when the program runs) and no -ffast-math (it changes the whole process's rounding)"""


def extension(path: Path) -> Extension:
    parts = sorted(str(other) for other in path.parent.glob("*.c") if not other.name.startswith("_"))
    return Extension(
        ".".join(path.relative_to(SOURCE).with_suffix("").parts),
        [str(path), *parts],
        depends=sorted(str(header) for pattern in ("*.h", "*.inc") for header in path.parent.glob(pattern)),
        extra_compile_args=FLAGS,
        extra_link_args=["-pthread", "-lm"],
        define_macros=[("Py_LIMITED_API", "0x030B0000")],
        py_limited_api=True,
        optional=True,
    )


setup(
    ext_modules=[extension(path) for path in sorted(SOURCE.rglob("_*.c"))],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
