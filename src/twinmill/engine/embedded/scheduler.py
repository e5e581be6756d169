"""The scheduler: one thread that owns the cache and the weights that are served.

    loop    consumes    requests, aborts and flips from the inbox
            produces    the results of their futures
            waits for   the inbox, when nothing is at work
            unblocked by `submit`, `score`, `flip`, `close`
    step    admit what waits -> one forward over one token of every decoding request and chunks of other contexts
            -> sample -> finish

Continuous batching: a request joins between two steps and leaves after the step that ends it. A flip comes between two
steps as well, so each token has exactly one version.
"""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

import torch

from twinmill.engine.base import EngineError, Flip
from twinmill.records.engines import GenerateRequest, Generation, KvPolicy, ScoreRequest, Scores
from twinmill.records.episodes import Finish

from .compute import Chunk, Compute, Draw, Work
from .config import EngineConfig
from .kv import common_prefix
from .runs import Catching, Run, lost, settle

IDLE_S = 0.5
"""how often an idle thread looks whether it is to close"""
SCORED_TOGETHER = 4096
"""tokens of score requests in one forward"""
WORTH_WAITING = 32
"""a request waits for another one of its group that is about to compute at least so many tokens of its context"""


class Scheduler:
    """The public methods may be called from any thread."""

    def __init__(self, config: EngineConfig, compute: Compute) -> None:
        self._config, self._compute = config, compute
        self._cache, self._weights = compute.cache, compute.weights
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._waiting: deque[Run] = deque()
        self._prefilling: list[Run] = []
        self._decoding: list[Run] = []
        """row i of a step; in slot i where the backend works in order"""
        self._scores: deque[tuple[ScoreRequest, Future[Scores]]] = deque()
        self._catching: list[Catching] = []
        self._closing = False
        self.failed: BaseException | None = None
        """why the thread has ended, if it has"""
        self.busy_s, self.sampled_tokens, self.beat = 0.0, 0, time.time()
        self.last_flip = Flip(version=-1, pause_s=0.0, swap_s=0.0, stale_kv_tokens=0)
        self._thread = threading.Thread(target=self._loop, name="embedded-engine", daemon=True)
        self._thread.start()

    @property
    def in_flight(self) -> int:
        return len(self._waiting) + len(self._prefilling) + len(self._decoding)

    def submit(self, request: GenerateRequest) -> "Future[Generation]":
        """Cancel the future to abort; the session's KV is kept."""
        run = Run.of(request)
        self._post(lambda: self._enter(run))
        return run.future

    def score(self, request: ScoreRequest) -> "Future[Scores]":
        future: Future[Scores] = Future()
        self._post(lambda: self._scores.append((request, future)))
        return future

    def flip(self, kv: KvPolicy) -> "Future[Flip]":
        future: Future[Flip] = Future()
        self._post(lambda: self._flip(kv, future))
        return future

    def close(self) -> None:
        self._closing = True
        self._inbox.put(lambda: None)
        self._thread.join()

    def _post(self, command: Callable[[], None]) -> None:
        if self.failed is not None or self._closing:
            raise lost(self.failed or "it was closed")
        self._inbox.put(command)

    # Everything below runs in the thread.

    def _loop(self) -> None:
        why: BaseException = EngineError("the embedded engine was closed")
        with torch.inference_mode():
            try:
                while not self._closing:
                    self._take_commands()
                    started = time.thread_time()
                    self._step()
                    self.busy_s += time.thread_time() - started
                    self.beat = time.time()
            except BaseException as error:
                # a failed step leaves no state worth going on with: everyone is told, and nothing is served any more
                why = self.failed = error
        self._closing = True
        self._take_commands()
        self._fail_all(lost(why))

    def _take_commands(self) -> None:
        """Everything in the inbox; waits for something to come when there is nothing else to do."""
        wait = not (self._waiting or self._prefilling or self._decoding or self._scores or self._closing)
        while True:
            try:
                command = self._inbox.get(block=wait, timeout=IDLE_S)
            except queue.Empty:
                return
            command()
            wait = False

    def _step(self) -> None:
        self._drop_aborted()
        if self._scores:
            self._score()
        self._admit()
        if self._prefilling or self._decoding:
            self._forward()
        self._settle_flips()

    def _enter(self, run: Run) -> None:
        if self._weights.version < 0:
            settle(run.future, EngineError("no version is served yet"))
            return
        for other in [*self._waiting, *self._prefilling, *self._decoding]:
            if run.request.session_id and other.request.session_id == run.request.session_id:
                # its caller lost patience or its connection, and asks again
                self._leave(other)
                settle(other.future, EngineError("a newer request of the same session has come"))
        self._waiting.append(run)

    def _drop_aborted(self) -> None:
        for run in [*self._waiting, *self._prefilling, *self._decoding]:
            if run.future.cancelled():
                self._leave(run)

    def _admit(self) -> None:
        for run in list(self._waiting):
            if len(self._prefilling) + len(self._decoding) == self._config.batch:
                return
            request = run.request
            known = self._cache.known(request.session_id, request.group_id, run.context)
            if self._comes_soon(run, known):
                continue
            taken = self._cache.take(request.session_id, request.group_id, run.context)
            if taken is None:
                return
            run.slot, run.cached = taken
            self._waiting.remove(run)
            self._prefilling.append(run)

    def _comes_soon(self, run: Run, known: int) -> bool:
        """Whether the group is about to have much more of this context than is known now."""
        if not run.request.group_id:
            return False
        return any(
            other.request.group_id == run.request.group_id
            and common_prefix(other.context, run.context) - known >= WORTH_WAITING
            for other in self._prefilling
        )

    def _forward(self) -> None:
        chunks, chunked = self._chunks()
        tokens = [run.ids[-1] for run in self._decoding]
        positions = [len(run.ids) - 1 for run in self._decoding]
        # what each run computes, first and last row; the last one gives a token where it is the end of the context
        spans = [(run, position, row, row + 1) for row, (run, position) in enumerate(zip(self._decoding, positions))]
        for run, chunk in zip(chunked, chunks):
            spans.append((run, chunk.start, len(tokens), len(tokens) + chunk.count))
            tokens += run.ids[chunk.start : chunk.start + chunk.count]
            positions += range(chunk.start, chunk.start + chunk.count)
        drawing = [(run, end) for run, start, row, end in spans if start + end - row == len(run.ids)]
        draws = [Draw(end - 1, len(run.ids), run.request.sampling) for run, end in drawing]
        slots = [run.slot for run in self._decoding]
        version = self._weights.version
        done = self._compute.step(Work(tokens, positions, slots, chunks, draws))
        for run, start, row, end in spans:
            run.record(self._cache, start, done.routes[row:end], version)
        self._accept([run for run, _ in drawing], done.sampled_ids, done.logprobs, version)

    def _chunks(self) -> tuple[list[Chunk], list[Run]]:
        """What to compute of the contexts that are not complete, first come first served."""
        room, chunks, runs = self._config.prefill_tokens, [], []
        for run in self._prefilling:
            if not room:
                break
            start = self._cache.slots[run.slot].length
            count = min(room, len(run.ids) - start)
            room -= count
            chunks.append(Chunk(run.slot, start, count))
            runs.append(run)
        return chunks, runs

    def _accept(self, drawing: list[Run], sampled: list[int], logprobs: list[float], version: int) -> None:
        """Move the runs on by the tokens that were sampled for them."""
        self.sampled_tokens += len(drawing)
        for run, token, logprob in zip(drawing, sampled, logprobs):
            if not -1e30 < logprob <= 0.0:
                self._poisoned(run, logprob, version)
                continue
            finish = run.accept(token, logprob, version)
            if finish is not None:
                self._finish(run, finish)
            elif run in self._prefilling:
                self._begin_decoding(run)

    def _begin_decoding(self, run: Run) -> None:
        if self._compute.in_order:
            self._exchange(run.slot, len(self._decoding))
        self._prefilling.remove(run)
        self._decoding.append(run)

    def _exchange(self, i: int, j: int) -> None:
        if i == j:
            return
        self._cache.exchange(i, j)
        moved = {i: j, j: i}
        for run in [*self._prefilling, *self._decoding]:
            run.slot = moved.get(run.slot, run.slot)

    def _finish(self, run: Run, finish: Finish) -> None:
        result = run.result(self._cache, finish)
        self._leave(run, keep=not run.request.last)
        settle(run.future, result)

    def _poisoned(self, run: Run, logprob: float, version: int) -> None:
        slot = run.slot
        self._leave(run)
        self._cache.wipe(run.slot if run.slot >= 0 else slot)
        settle(
            run.future, EngineError(f"version {version} gives a log-probability of {logprob}: its weights are broken")
        )

    def _leave(self, run: Run, keep: bool = True) -> None:
        """Take a run out, wherever it is."""
        if run in self._waiting:
            self._waiting.remove(run)
            return
        if run in self._decoding:
            place, last = self._decoding.index(run), self._decoding[-1]
            if self._compute.in_order:
                self._exchange(place, last.slot)
            self._decoding[place] = last
            self._decoding.pop()
        else:
            self._prefilling.remove(run)
        self._cache.release(run.slot, keep)

    def _score(self) -> None:
        """As many waiting score requests as fit into one forward, packed."""
        batch = [self._scores.popleft()]
        total = len(batch[0][0].token_ids)
        while self._scores and total + len(self._scores[0][0].token_ids) <= SCORED_TOGETHER:
            batch.append(self._scores.popleft())
            total += len(batch[-1][0].token_ids)
        version = self._weights.version
        if version < 0:
            for _, future in batch:
                settle(future, EngineError("no version is served yet"))
            return
        scored = self._compute.score([request.token_ids for request, _ in batch])
        for (_, future), logprobs in zip(batch, scored):
            settle(future, Scores(logprobs=logprobs, version=version))

    def _flip(self, kv: KvPolicy, future: "Future[Flip]") -> None:
        paused_at = time.monotonic()
        try:
            swap_s = self._weights.flip()
        except EngineError as error:
            settle(future, error)
            return
        at_work: list[Run] = []
        if kv is KvPolicy.RECOMPUTE:
            at_work = self._forget_contexts()
        self._catching.append(Catching(future, at_work, paused_at, swap_s))
        self._settle_flips()

    def _forget_contexts(self) -> list[Run]:
        """All KV is void: those at work compute their contexts anew before they go on."""
        at_work = [*self._decoding, *self._prefilling]
        for run in at_work:
            run.recorded = max(run.recorded, self._cache.slots[run.slot].length)
        for slot in self._cache.slots:
            slot.length = 0
        self._prefilling, self._decoding = at_work, []
        return at_work

    def _settle_flips(self) -> None:
        for flip in list(self._catching):
            if any(run in self._prefilling for run in flip.runs):
                continue
            self._catching.remove(flip)
            pause_s = time.monotonic() - flip.paused_at
            version = self._weights.version
            self.last_flip = Flip(
                version=version,
                pause_s=pause_s,
                swap_s=flip.swap_s + pause_s,
                stale_kv_tokens=self._cache.older_than(version),
            )
            settle(flip.future, self.last_flip)

    def _fail_all(self, why: EngineError) -> None:
        futures = [run.future for run in (*self._waiting, *self._prefilling, *self._decoding)]
        futures += [future for _, future in self._scores] + [flip.future for flip in self._catching]
        for future in futures:
            settle(future, why)
        self._waiting.clear()
        self._prefilling, self._decoding = [], []
