"""The last line of every benchmark: one JSON object, judged by the bounds that the benchmark states."""

import json
import operator
import os
import platform
import sys
from importlib import metadata
from pathlib import Path

OPERATORS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt, "==": operator.eq}


def machine() -> dict[str, object]:
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.processor(),
    )
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
    }


def holds(value: object, bound: str) -> bool:
    """bound: "<= 0.05". A missing or NaN value holds nothing."""
    sign, _, limit = bound.partition(" ")
    return isinstance(value, int | float) and value == value and OPERATORS[sign](value, float(limit))


def finish(bench: str, measured: dict[str, object], must: dict[str, str]) -> None:
    """Print the result and leave with exit code 0 if every bound holds, else 1."""
    ok = all(holds(measured.get(key), bound) for key, bound in must.items())
    for key, bound in must.items():
        print(f"{'ok  ' if holds(measured.get(key), bound) else 'MISS'} {key} = {measured.get(key)} (must be {bound})")
    rounded = {key: round(v, 5) if isinstance(v, float) else v for key, v in measured.items()}
    print(json.dumps({"bench": bench, "measured": rounded, "must": must, "ok": ok, "machine": machine()}), flush=True)
    sys.exit(0 if ok else 1)
