"""The native parts. Everything else about the package is in pyproject.toml."""

from setuptools import Extension, setup

WDX = "src/twinmill/publish/wdx"
setup(
    ext_modules=[
        Extension(
            "twinmill.publish.wdx._wdx",
            [f"{WDX}/_wdx.c"],
            depends=[
                f"{WDX}/{name}.h" for name in ("_format", "_rans", "_scan", "_paths", "_passes", "_encode", "_decode")
            ],
            extra_compile_args=["-O3", "-std=c11"],
            py_limited_api=True,
            optional=True,  # without a compiler the NumPy reference does the work, slowly
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
