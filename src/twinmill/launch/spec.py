"""What to start, and what to do when it ends."""

from msgspec import Struct


class Restart(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Start again after a failure, within a budget. `ProcessSpec.restart = None` means never."""

    attempts: int = 5
    """restarts within `within_s`; one failure more is a crash loop and final"""
    within_s: float = 600.0
    """seconds for which a failure counts; 0 = the whole run"""
    backoff_s: float = 0.5
    """seconds before the first restart; every further failure that still counts doubles it; 0 = at once"""
    backoff_max_s: float = 15.0
    """seconds; the doubling ends here"""

    def delay_s(self, failures: int) -> float:
        """Seconds to wait after the `failures`-th failure (1 = the first)."""
        return min(self.backoff_max_s, self.backoff_s * 2.0 ** min(failures - 1, 30))


class ProcessSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One process of a run.

    Example: ProcessSpec(name="engine/east", argv=(sys.executable, "-m", "twinmill", "proc", "engine"),
    tier=1, beat_s=20)
    """

    name: str
    """unique in the run; also the name of its log, with "/" as "-" """
    argv: tuple[str, ...]
    env: dict[str, str] = {}
    """on top of the supervisor's `environment`"""
    cwd: str | None = None
    """None = the supervisor's own"""
    restart: Restart | None = None
    """what to do after a failure (non-zero exit, signal, hang); None = never start again"""
    critical: bool = True
    """True: its final failure stops the run. False: the run goes on without it, and says so"""
    grace_s: float = 10.0
    """seconds between SIGTERM and the SIGKILL of its whole family; 0 = SIGKILL at once"""
    beat_s: float = 0.0
    """seconds without a heartbeat after which it counts as hanging; 0 = not watched"""
    start_s: float = 120.0
    """seconds until the first heartbeat (imports, loading); only where beat_s > 0"""
    cpu_threads: int = 0
    """threads for OpenMP, MKL and OpenBLAS in this process; 0 = as the environment says"""
    tier: int = 0
    """tiers start in ascending order and stop in descending order; within a tier all at once"""

    def thread_env(self) -> dict[str, str]:
        """The variables that bound a process's own thread pools."""
        if self.cpu_threads <= 0:
            return {}
        return dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(self.cpu_threads))


class SpecError(ValueError):
    """Specs that cannot be supervised. The message names the process and the mend."""


def check_specs(specs: tuple[ProcessSpec, ...], main: str) -> None:
    """All cross-field checks, before anything is started."""
    names = [spec.name for spec in specs]
    logs = [log_stem(name) for name in names]
    if main not in names:
        raise SpecError(f"the main process {main!r} is not among {', '.join(names)}: name one of them")
    for spec, stem in zip(specs, logs):
        if logs.count(stem) > 1:
            raise SpecError(f"two processes would write {stem}.log: give {spec.name!r} a name of its own")
        if not spec.argv:
            raise SpecError(f"{spec.name}: argv is empty: nothing to start")
        if min(spec.grace_s, spec.beat_s, spec.start_s) < 0:
            raise SpecError(f"{spec.name}: grace_s, beat_s and start_s are seconds, 0 or more")
        if spec.restart is not None and min(spec.restart.attempts, spec.restart.backoff_s) < 0:
            raise SpecError(f"{spec.name}: restart.attempts and restart.backoff_s must be 0 or more")


def log_stem(name: str) -> str:
    """File name of a process's log and beat, without the ending. Example: "engine/east" -> "engine-east"."""
    return name.replace("/", "-")
