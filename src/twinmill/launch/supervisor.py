"""Starts, forwards, watches, restarts and stops the processes of one run. One thread, one loop:

    tick   consumes: pipes, exits, heartbeats, signals      waits for: a readable pipe, at most TICK_S
           produces: lines, notices, restarts               unblocked by: the processes, the user, the clock

    a process ...                          is then
      exits 0                              done; the run is done when it is the main one
      exits otherwise, or by a signal      restarted after a backoff, within its budget
      shows no heartbeat for beat_s        named, killed with its family, restarted like any other failure
      fails beyond its budget              final: the run stops if it is critical, else goes on without it

Whatever ends the run, an exception included, all processes are stopped in the same order: tiers descending;
each gets SIGTERM, then after its grace SIGKILL, family and all. A second Ctrl-C makes every grace 0. If the
supervisor itself is killed, the death pipe ends the processes (death.py). Nothing here is needed to resume:
state lives in the logs.
"""

import os
import selectors
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import structs

from .child import Child, how_it_ended
from .outcome import Ending, Notice, Outcome, What
from .spec import ProcessSpec, check_specs

TICK_S = 0.1
_STOOD_STILL_S = 2.0  # a tick that took so long means that we were suspended, not that all others hang
_TAIL = 40  # lines of a process that are shown when it fails for good


class _Watch:
    """What the supervisor knows of one spec over all its lives."""

    def __init__(self, spec: ProcessSpec) -> None:
        self.spec = spec
        self.child: Child | None = None
        self.lives = 0
        self.failures: deque[float] = deque()
        self.due: float | None = None
        self.tail: deque[str] = deque(maxlen=_TAIL)


class Supervisor:
    """Supervisor(specs, main="trainer", log_dir=folder / "logs", environment=environ).run() -> Outcome"""

    def __init__(
        self,
        specs: Sequence[ProcessSpec],
        *,
        main: str,
        log_dir: str | Path,
        environment: Mapping[str, str],
        on_line: Callable[[str, str], None] = lambda name, line: None,
        on_notice: Callable[[Notice], None] = lambda notice: None,
        on_tick: Callable[[], None] = lambda: None,
        pulses: Mapping[str, Callable[[], object]] | None = None,
        keep_fds: tuple[int, ...] = (),
    ) -> None:
        """`on_line(name, line)`, `on_notice`, `on_tick` (every TICK_S or so) are called from the loop; they
        must not block. `pulses`: process -> something that changes while it lives, instead of the heartbeat
        file. `keep_fds`: descriptors that every process inherits (RunLock.fd). SpecError: the specs
        contradict themselves."""
        self._specs = tuple(specs)
        check_specs(self._specs, main)
        self._main = main
        self._log_dir = Path(log_dir)
        self._environment = dict(environment)
        self._on_line, self._on_notice, self._on_tick = on_line, on_notice, on_tick
        self._pulses = dict(pulses or {})
        self._keep_fds = keep_fds
        self._watches = {spec.name: _Watch(spec) for spec in self._specs}
        self._signals: list[int] = []
        self._asked = ""
        self._outcome: Outcome | None = None

    def pids(self) -> dict[str, int]:
        """Process -> pid of those that live now."""
        return {name: watch.child.pid for name, watch in self._watches.items() if watch.child is not None}

    def request_stop(self, reason: str) -> None:
        """Stop as Ctrl-C would. From any thread or callback."""
        self._asked = reason

    def run(self) -> Outcome:
        """Blocks until the run has ended and every process is gone. Once per Supervisor."""
        self._log_dir.mkdir(parents=True, exist_ok=True)
        death_reader, self._death_writer = os.pipe()
        self._death_fd = death_reader
        self._selector = selectors.DefaultSelector()
        try:
            with self._listening():
                try:
                    self._loop()
                finally:
                    self._stop_all()
        except BaseException:
            for child in self._children():  # a callback raised: no more talk, but nobody is left behind
                child.bury()
            raise
        finally:
            self._selector.close()
            os.close(self._death_writer)
            os.close(death_reader)
        assert self._outcome is not None
        restarts = {name: watch.lives - 1 for name, watch in self._watches.items() if watch.lives > 1}
        return structs.replace(self._outcome, restarts=restarts)

    # ---- the loop

    def _loop(self) -> None:
        for tier in sorted({spec.tier for spec in self._specs}):
            for watch in self._of_tier(tier):
                self._start(watch)
        last = time.monotonic()
        while self._outcome is None:
            self._pump(TICK_S)
            now = time.monotonic()
            if now - last > _STOOD_STILL_S:
                for child in self._children():
                    child.pardon(now - last)
            last = now
            for watch in self._watches.values():
                self._look_at(watch, now)
            self._on_tick()
            self._heed_signals()

    def _pump(self, timeout_s: float) -> None:
        """Forward what the processes have written."""
        for key, _ in self._selector.select(timeout_s):
            child = key.data.child
            self._forward(key.data, child.read())
            if child.closed_output:  # an end of file stays readable for ever
                self._selector.unregister(child.fd)
        now = time.monotonic()
        for watch in self._watches.values():
            if watch.child is not None:
                self._forward(watch, watch.child.read_still(now))

    def _forward(self, watch: _Watch, lines: Iterator[str] | list[str]) -> None:
        for line in lines:
            watch.tail.append(line)
            self._on_line(watch.spec.name, line)

    def _look_at(self, watch: _Watch, now: float) -> None:
        if watch.child is None:
            if watch.due is not None and now >= watch.due:
                self._start(watch)
        elif watch.child.ended():
            code = self._bury(watch)
            if code == 0:
                self._finished(watch)
            else:
                self._failed(watch, how_it_ended(code))
        elif watch.child.silent_s(now) > 0:
            how = f"no heartbeat for {now - watch.child.moved:.1f} s ({watch.child.posture()})"
            self._say("error", What.HUNG, watch, f"{how}: killed, with its family")
            self._forward(watch, watch.child.last_words())
            self._bury(watch)
            self._failed(watch, how)

    # ---- one process

    def _start(self, watch: _Watch) -> None:
        watch.due = None
        watch.lives += 1
        try:
            watch.child = Child(
                watch.spec,
                environment=self._environment,
                log_dir=self._log_dir,
                death_fd=self._death_fd,
                keep_fds=self._keep_fds,
                pulse_of=self._pulses.get(watch.spec.name),
                life=watch.lives,
            )
        except OSError as error:
            # A wrong path or permission does not mend itself: no restart.
            self._give_up(watch, f"could not be started: {error}")
            return
        self._selector.register(watch.child.fd, selectors.EVENT_READ, watch)
        self._say("info", What.STARTED, watch, f"pid {watch.child.pid}")

    def _bury(self, watch: _Watch) -> int | None:
        child, watch.child = watch.child, None
        assert child is not None
        if child.fd in self._selector.get_map():
            self._selector.unregister(child.fd)
        code, tail, left = child.bury()
        self._forward(watch, tail)
        if left:
            self._say("error", What.LEFT, watch, f"pids {sorted(left)} do not die even by SIGKILL")
        return code

    def _finished(self, watch: _Watch) -> None:
        self._say("info", What.FINISHED, watch, "exit 0")
        if watch.spec.name == self._main:
            self._end(Outcome(ending=Ending.DONE, code=0, reason=f"{self._main} is done"))

    def _failed(self, watch: _Watch, how: str) -> None:
        self._say("error", What.FAILED, watch, how)
        policy = watch.spec.restart
        if policy is None:
            self._give_up(watch, how)
            return
        now = time.monotonic()
        watch.failures.append(now)
        while policy.within_s > 0 and watch.failures[0] < now - policy.within_s:
            watch.failures.popleft()
        failures = len(watch.failures)
        if failures > policy.attempts:
            span = f" in {now - watch.failures[0]:.0f} s" if failures > 1 else ""
            self._give_up(watch, f"{how}; {failures} failures{span}, {policy.attempts} restarts allowed")
            return
        delay = policy.delay_s(failures)
        watch.due = now + delay
        text = f"restart {failures} of {policy.attempts} in {delay:.1f} s"
        self._say("warning", What.RESTARTING, watch, text)

    def _give_up(self, watch: _Watch, how: str) -> None:
        name = watch.spec.name
        if not watch.spec.critical:
            self._say("error", What.GAVE_UP, watch, f"{how}: the run goes on without it")
            return
        reason = f"{name}: {how}"
        self._say("error", What.GAVE_UP, watch, f"{how}: the run stops")
        self._end(Outcome(ending=Ending.FAILED, code=1, reason=reason, culprit=name, tail=tuple(watch.tail)))

    # ---- the end

    def _heed_signals(self) -> None:
        if self._signals:
            number = self._signals[0]
            reason = signal.Signals(number).name
            self._end(Outcome(ending=Ending.INTERRUPTED, code=128 + number, reason=reason))
        elif self._asked:
            self._end(Outcome(ending=Ending.INTERRUPTED, code=1, reason=self._asked))

    def _end(self, outcome: Outcome) -> None:
        if self._outcome is None:  # the first reason is the reason
            self._outcome = outcome

    def _stop_all(self) -> None:
        reason = self._outcome.reason if self._outcome else "an error in the supervisor"
        if self.pids():
            text = f"{reason}: stopping {', '.join(self.pids())}; Ctrl-C again to kill at once"
            self._say("info", What.STOPPING, None, text)
        for tier in sorted({spec.tier for spec in self._specs}, reverse=True):
            self._stop_tier(tier)

    def _stop_tier(self, tier: int) -> None:
        asked = time.monotonic()
        for watch in self._of_tier(tier):
            watch.due = None
            if watch.child is not None:
                watch.child.ask_to_end()
        while living := [(watch, watch.child) for watch in self._of_tier(tier) if watch.child is not None]:
            hurry = len(self._signals) > 1
            for watch, child in living:
                if child.ended():
                    self._bury(watch)
                elif hurry or time.monotonic() - asked > watch.spec.grace_s:
                    if not hurry:
                        text = f"still there {watch.spec.grace_s:g} s after SIGTERM: killed, with its family"
                        self._say("warning", What.KILLED, watch, text)
                    self._bury(watch)
            self._pump(TICK_S / 5)

    # ---- small things

    def _of_tier(self, tier: int) -> list[_Watch]:
        return [watch for watch in self._watches.values() if watch.spec.tier == tier]

    def _children(self) -> list[Child]:
        return [watch.child for watch in self._watches.values() if watch.child is not None]

    def _say(self, level: str, what: What, watch: _Watch | None, text: str) -> None:
        name = watch.spec.name if watch else ""
        self._on_notice(Notice(at=time.time(), level=level, what=what, name=name, text=text))

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """SIGINT, SIGTERM and SIGHUP ask for a stop. Only in the main thread; elsewhere use request_stop."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {}
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # started with nohup
            before[number] = signal.signal(number, lambda got, frame: self._signals.append(got))
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
