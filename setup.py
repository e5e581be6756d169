"""Native parts: every `_name.c` of the package becomes the extension `_name` beside it, with the C files of the folder
`name/` next to it, if there is one. All are optional: where no compiler is, their Python references serve."""

from pathlib import Path

from setuptools import Extension, setup


def extensions() -> list[Extension]:
    found = []
    for path in sorted(Path("src/twinmill").rglob("_*.c")):
        parts = sorted(path.with_name(path.stem.lstrip("_")).glob("*.[ch]"))
        found.append(
            Extension(
                ".".join(path.relative_to("src").with_suffix("").parts),
                [str(path), *(str(part) for part in parts if part.suffix == ".c")],
                depends=[str(part) for part in parts],
                extra_compile_args=["-O2", "-std=gnu11", "-Wall", "-Wextra"],
                define_macros=[("Py_LIMITED_API", "0x030B0000")],
                py_limited_api=True,
                optional=True,
            )
        )
    return found


setup(ext_modules=extensions(), options={"bdist_wheel": {"py_limited_api": "cp311"}})
