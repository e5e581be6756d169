"""`twinmill bench NAME`: every performance claim is a program in bench/; this runs one of them."""

import runpy
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from twinmill.cli.blocks import ConfigError


def folder() -> Path:
    """bench/ of the checkout: below the working directory, or beside the package's source."""
    for place in (Path.cwd() / "bench", Path(__file__).parents[3] / "bench"):
        if place.is_dir():
            return place
    raise ConfigError("no bench/ here: benchmarks come with a checkout of twinmill; run this inside one")


Word = Annotated[str, Parameter(allow_leading_hyphen=True)]


def bench(name: Word = "", *arguments: Word) -> int:
    """Run a benchmark; its last line is one JSON object. Without a name: list them.

    What follows the name is the program's own, --help included."""
    programs = {path.stem: path for path in sorted(folder().glob("*.py")) if not path.stem.startswith("_")}
    if name in ("", "--help", "-h"):
        table = Table("name", "what it measures")
        for stem, path in programs.items():
            table.add_row(stem, path.read_text().split("\n", 1)[0].strip('"').strip())
        Console().print(table)
        return 0
    if name not in programs:
        raise ConfigError(f"no benchmark {name!r}; there are {', '.join(programs)}")
    sys.argv = [str(programs[name]), *arguments]
    sys.path.insert(0, str(programs[name].parent))
    try:
        runpy.run_path(str(programs[name]), run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0
