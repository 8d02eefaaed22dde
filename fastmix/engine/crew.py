"""Threads that make a few batches at a time."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ..types import FastmixError
from .job import Job, Task
from .samples import Space

_PATIENCE = 1.0  # seconds that `close` waits for threads which are stuck in a dataset


@dataclass
class _Entry:
    """A job in flight: its phase, and how many tasks of that are not done."""

    job: Job
    phases: Iterator[list[Task]] | None
    tasks: deque[Task] = field(default_factory=deque)
    pending: int = 0
    stages: dict[int, str] = field(default_factory=dict)


class Crew:
    """Makes jobs, the oldest first, and hands them out in order.

    threads: how many; with 0 the work is done in `take`, by the thread that calls it.
    init: called with the number of each thread, in it, before it does anything else.

    The threads hold nobody but the crew, so that whoever owns it can be collected while they run.  It must be closed,
    and closes itself when the interpreter exits.
    """

    def __init__(self, threads: int, init: Callable[[int], object] | None = None):
        self._condition = threading.Condition()  # its lock is reentrant: a finalizer may call `close` anywhere
        self._queue: deque[_Entry] = deque()
        self._closed = False
        self._failure: FastmixError | None = None
        self._space = Space()
        self._threads = [
            threading.Thread(target=self._work, args=(number, init), name=f"fastmix-{number}", daemon=True)
            for number in range(threads)
        ]
        self._process = os.getpid()

    def start(self) -> None:
        """Begin; not done by the constructor, so that an interrupt in here still finds a crew that can be closed."""
        atexit.register(self.close)
        for thread in self._threads:
            thread.start()

    def __len__(self) -> int:
        """How many jobs are in flight."""
        return len(self._queue)

    def submit(self, job: Job) -> None:
        """Put a job behind the others."""
        entry = _Entry(job, job.phases())
        with self._condition:
            self._queue.append(entry)
            self._advance(entry)

    def take(self, timeout: float = 0) -> Job:
        """The oldest job, when it is done.

        Raises the job's error, and RuntimeError after `timeout` seconds (0: never), with threads only.
        """
        entry = self._queue[0]
        if self._threads and os.getpid() != self._process:
            raise RuntimeError(
                "this epoch was begun before a fork, its threads are in the other process: start a new one"
            )
        while not self._threads and entry.phases is not None:
            self._run(entry, entry.tasks.popleft(), self._space)
        with self._condition:
            in_time = self._condition.wait_for(lambda: entry.phases is None or self._failure, timeout or None)
        if self._failure is not None:
            raise self._failure
        if not in_time:
            raise RuntimeError(
                f"no batch in {timeout} s: still waiting for samples {entry.job.missing()}; raise timeout, or see what "
                "holds the dataset up there"
            )
        self._queue.popleft()
        error = entry.job.error(entry.stages)
        if error is not None:
            raise error
        return entry.job

    def close(self) -> None:
        """Let the threads go; those in the middle of a task leave after it."""
        if self._closed:  # at the interpreter's exit, say, when little is left to call
            return
        atexit.unregister(self.close)
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        deadline = time.monotonic() + _PATIENCE
        for thread in self._threads:
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        self._queue.clear()

    def _work(self, number: int, init: Callable[[int], object] | None) -> None:
        space = Space()
        try:
            if init is not None:
                init(number)
        except BaseException as error:
            with self._condition:
                self._failure = FastmixError(f"{type(error).__name__}: {error}", stage="worker_init_fn")
                self._failure.__cause__ = error
                self._condition.notify_all()
            return
        while (found := self._wait()) is not None:
            self._run(*found, space)
            del found  # a thread that waits must not keep a batch alive

    def _wait(self) -> tuple[_Entry, Task] | None:
        """The next task, or None when there will be none."""
        with self._condition:
            while not self._closed:
                for entry in self._queue:
                    if entry.tasks:
                        return entry, entry.tasks.popleft()
                self._condition.wait()
        return None

    def _run(self, entry: _Entry, task: Task, space: Space) -> None:
        """Do a task.  Its error is kept, and the other tasks are done as well: so which error counts is no race."""
        try:
            task.call(space)
        except BaseException as error:
            if not self._threads and not isinstance(error, Exception):
                raise  # Ctrl-C in the calling thread
            entry.job.errors.setdefault(task.row, error)
            entry.stages.setdefault(task.row, task.stage)
        with self._condition:
            entry.pending -= 1
            if not entry.pending:
                self._advance(entry)

    def _advance(self, entry: _Entry) -> None:
        """Begin the next phase that has tasks, or finish the job."""
        assert entry.phases is not None
        tasks: list[Task] | None = []
        while tasks == [] and not entry.job.errors:
            tasks = next(entry.phases, None)
        if tasks:
            entry.tasks.extend(tasks)
            entry.pending = len(tasks)
        else:
            entry.phases = None
        self._condition.notify_all()


def made(
    jobs: Iterator[Job], threads: int, ahead: int, init: Callable[[int], object] | None = None, timeout: float = 0
) -> Iterator[Job]:
    """The jobs, done, in order; `ahead` of them are in the making besides the one handed out.

    threads, init, timeout: see `Crew`; with 0 threads a job is begun when it is asked for.  No thread is left when this
    ends, in whatever way.
    """
    crew = Crew(threads, init)
    try:
        crew.start()
        while True:
            _refill(crew, jobs, ahead)
            if not len(crew):
                return
            done = [crew.take(timeout)]
            if threads:
                _refill(crew, jobs, ahead)
            yield done.pop()  # and keep no reference: the caller decides how long the batch lives
    finally:
        crew.close()


def _refill(crew: Crew, jobs: Iterator[Job], ahead: int) -> None:
    while len(crew) < ahead and (job := next(jobs, None)) is not None:
        crew.submit(job)
