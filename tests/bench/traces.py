"""Made-up runs: what their metrics would hold."""

from _runs import Trace


def step(number: int, t: float, *, wait: float, compute: float, commit: float = 0.0, **fields) -> dict:
    """One line of kind "train" that ends at `t`."""
    seconds = {"wait": wait, "read": 0.0, "compute": compute, "update": 0.0, "commit": commit}
    line = {"t": t, "step": number, "seconds": seconds, "staleness": {"0": 9}, "dropped": {}, "slots": [number]}
    return {**line, "samples": 128, "source": "rl", **fields}


def slot(t: float, number: int, event: str) -> dict:
    return {"t": t, "slot": number, "event": event}


def attempt(number: int, k: int, seconds: float, **fields) -> dict:
    line = {"slot": number, "attempt": k, "start": 0.0, "end": seconds, "finished": True, "reward": 0.5, "sampled": 10}
    return {**line, "machine_s": 0.25, **fields}


def trace(
    seconds_per_step: float = 10.0,
    steps: int = 4,
    *,
    wait: float = 1.0,
    busy: float = 1.0,
    drop: frozenset = frozenset(),
) -> Trace:
    """A run of equal steps from t = 0 on: each waits, then computes for the rest. One engine computes `busy` seconds a
    second; the trainer all that it does not wait. Slot n is played during step n, by a short and a long attempt;
    attempts in `drop` were lost."""
    length = seconds_per_step
    end = length * steps
    numbers = range(steps)
    return Trace(
        steps=[step(n, length * (n + 1), wait=wait, compute=length - wait) for n in numbers],
        trainer_cpu=[{"t": length * (n + 1), "cpu_s": (length - wait) * (n + 1)} for n in numbers],
        engines={"engine/a": [{"t": t, "busy_s": busy * t} for t in (0.0, end)]},
        slots=[slot(length * n, n, "admit") for n in numbers]
        + [slot(length * (n + 0.9), n, "close") for n in numbers]
        + [slot(length * (n + 1), n, "train") for n in numbers],
        attempts=[
            attempt(n, k, seconds, finished=(n, k) not in drop) for n in numbers for k, seconds in enumerate((1.0, 9.0))
        ],
    )
