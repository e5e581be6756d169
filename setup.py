"""The native parts, each optional: where no compiler is, the Python reference beside it serves. The rest: pyproject.toml.

Every `_name.c` below src/ is one extension of the stable ABI. The other C files beside it, and those of a folder `name/`
beside it, are compiled into it.
"""

from pathlib import Path

from setuptools import Extension, setup

SOURCE = Path("src")
FLAGS = ["-std=gnu11", "-O3", "-ffp-contract=off", "-fvisibility=hidden", "-Wno-psabi"]
"""no -march (levels are chosen when the program runs) and no -ffast-math (it changes the whole process's rounding)"""


def extension(path: Path) -> Extension:
    folders = (path.parent, path.with_name(path.stem.lstrip("_")))
    parts = [other for folder in folders for other in folder.glob("*.[chi]*") if other.suffix in (".c", ".h", ".inc")]
    return Extension(
        ".".join(path.relative_to(SOURCE).with_suffix("").parts),
        [str(path), *sorted(str(part) for part in parts if part.suffix == ".c" and not part.name.startswith("_"))],
        depends=sorted(str(part) for part in parts if part.suffix != ".c"),
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
