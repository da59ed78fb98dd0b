"""Who prepares a recipe's samples: processes and threads, at first and once it is known what the user's code does."""

from __future__ import annotations

from headrace.core import environment
from headrace.core.memory import usable_cpus
from headrace.engine.seat import Seat
from headrace.host.base import Host
from headrace.host.embedded import ProcessHost
from headrace.host.seating import take_seat
from headrace.loader.place import cpus_per_rank
from headrace.loader.recipe_collate import RecipeCollator
from headrace.loader.spec import WorkSpec
from headrace.planning import Staff, staff
from headrace.recipes.recipe import Recipe


class Staffing:
    """The staff of one session."""

    def __init__(self, recipe: Recipe, collator: RecipeCollator | None, work: WorkSpec) -> None:
        self.user_code = recipe.user_code or collator is not None
        # Steps of the user's that draw from global generators need a process each: threads would share those. (Of
        # collate functions, one runs at a time.)
        alone = recipe.user_randomness or (collator is not None and recipe.target_transform is not None)
        self._to_be_seen = self.user_code and not alone
        """It is not known yet whether user code holds the interpreter lock."""
        self._own = work.workers if work.own_number else None
        self._moves = not environment.fixed_staff()
        """Threads go to the rank that is short of them."""
        held = 1.0 if alone else -1.0 if self.user_code else None
        self.now: Staff = self._staff(held)
        """Processes and threads at work."""
        self.workers = self.now.processes if work.workers > 0 and not work.own_number else work.workers
        """Processes at first; 0: the job itself does it all."""
        usual = staff(cpus_per_rank(), self._own, held).threads
        self.hands = max(1, self.workers * usual)
        """Samples that are prepared at a time, at first. (Threads beyond the rank's part work now and then.)"""

    def _staff(self, held: float | None) -> Staff:
        cpus = cpus_per_rank()
        # (a rank that was given CPUs of its own keeps to them)
        kept = environment.cpus_per_task() is not None and environment.task_is_rank()
        moves = self._moves and self._own is None and not self.user_code and not kept
        node = usable_cpus() if moves else None
        return staff(cpus, self._own, held, node=node)

    def take_seat(self) -> Seat | None:
        """A seat among those who prepare on this machine; None: the job does it all itself, or for itself."""
        if not self._moves or not self.workers:
            return None
        try:
            seat = take_seat(shares_turns=not self.user_code)
        except OSError:  # no memory, no descriptor, no /proc: then each job is for itself
            return None
        seat.staffed(self.workers, self.now.threads)
        return seat

    def adapt(self, host: Host) -> bool:
        """More threads or more processes, once it was seen which are of use; returns whether that was now."""
        if not self._to_be_seen or host.totals.gil_held < 0:
            return False
        self._to_be_seen = False
        if not isinstance(host, ProcessHost):
            return False
        wanted = self._staff(host.totals.gil_held)
        for _ in range(wanted.processes - self.now.processes):
            host.add_worker()
        if wanted.threads != self.now.threads:
            host.set_threads(wanted.threads)
        self.now = wanted
        return True
