"""Which connections belong together at the shared host: those of a job's rank, and of its workers."""

from __future__ import annotations

from headrace.host.connections import Connection


class Members:
    """Numbers for ranks that are connected, and the workers of each."""

    def __init__(self) -> None:
        self.jobs: dict[int, Connection] = {}
        self._tokens: dict[str, int] = {}
        self.workers: dict[int, set[Connection]] = {}
        """By member; that of a job that is gone stays until its workers are."""
        self._last = 0

    def job_of(self, token: str) -> Connection | None:
        """The job of that name, if it is here."""
        member = self._tokens.get(token)
        return None if member is None else self.jobs[member]

    def open(self, job: Connection) -> None:
        """A job has come. Nobody of its name may be here."""
        job.member = self._last = self._last + 1
        self._tokens[job.token] = job.member
        self.jobs[job.member] = job
        mine = self.workers[job.member] = set()
        # Workers that were there before it lost its connection are its own again. What it held as a member before
        # stays as it is until they are gone: they may be at work on it.
        for workers in self.workers.values():
            mine.update(worker for worker in workers if worker.token == job.token)
        for worker in mine:
            worker.member = job.member

    def close(self, job: Connection) -> None:
        """A job is gone."""
        del self.jobs[job.member]
        del self._tokens[job.token]

    def add_worker(self, worker: Connection) -> None:
        """A worker of a job that is here has come."""
        worker.member = self._tokens[worker.token]
        self.workers[worker.member].add(worker)

    def remove_worker(self, worker: Connection) -> None:
        """A worker is gone."""
        for workers in self.workers.values():
            workers.discard(worker)

    def count_workers(self) -> int:
        """Workers of all members; one may belong to several."""
        return len({worker for workers in self.workers.values() for worker in workers})

    def bury(self) -> list[int]:
        """Members of which nobody is left; they are forgotten."""
        over = [one for one, workers in self.workers.items() if not workers and one not in self.jobs]
        for one in over:
            del self.workers[one]
        return over
