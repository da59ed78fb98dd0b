"""Stretches: batches that are only read, of which a rank says with its next ask that they are over; and how many of
them it is given at once.

A draw costs a host about the same however many samples it is of, and so do a message and a report. Where a rank takes
batches fast, and all of them are only read, to deal them out one by one and be told of each order is all work and no
gain.
"""

from __future__ import annotations

from headrace.coordinate.members import Epoch, Job, Rank
from headrace.coordinate.outlook import Outlook
from headrace.coordinate.state import State
from headrace.coordinate.tickets import Ticket
from headrace.core.forms import Form
from headrace.sampling import CacheView

_AUGMENTED = int(Form.AUGMENTED)  # numpy takes long over enumerations
_MOMENT = 0.05
"""Seconds: a rank is given at once what it takes in that time. What it was given is held for it, and it does not get
what comes to be cached meanwhile."""
_SOON = 0.1
"""Seconds from batch to batch below which a rank is left to say itself that one is over: it asks again soon."""
_LONG = 0.25
"""What stands for either where all of a job's samples are cached: nothing better comes, and they need no room."""
_OF_EACH = 0.005
"""The same for each rank, where there are many: they may take little because the host has many to serve."""
_EARLY = 4
"""This part of a stretch."""
_ROWS = 2048
"""Rows of a stretch: so many fit into one message."""


class Stretches:
    """Decides how long they are."""

    def __init__(self, state: State, outlook: Outlook) -> None:
        self._state = state
        self._outlook = outlook

    def is_one(self, rank: Rank, ticket: Ticket, most: int) -> bool:
        """Whether a batch that was drawn by itself is a stretch, too."""
        if most < 2 or rank.pace > _SOON or ticket.blocks or ticket.waiting:
            return False
        forms = ticket.dress.forms
        # (Augmented ones that nobody needs any more make room for others: that is not put off.)
        return bool(forms.all()) and (rank.pace <= _MOMENT / 2 or int(forms.max()) < _AUGMENTED)

    def early(self, job: Job, batches: int) -> int:
        """How many batches of a stretch are left when the rank asks for more: the answer takes its time. (Where the
        cache has no room for everything, what is asked for sooner takes it for longer.)"""
        return -(-batches // _EARLY) if batches > 1 and self.is_whole(job) else batches // _EARLY

    @staticmethod
    def is_whole(job: Job) -> bool:
        """Whether all of a job's samples are cached."""
        decoded = job.shelves.get(Form.DECODED)
        return decoded is not None and len(decoded) >= job.dataset.size

    def batches(self, job: Job, rank: Rank, epoch: Epoch, view: CacheView, most: int) -> int:
        """Batches of the stretch that a rank is given now, of those that it asks for at most; 0: it is given none.

        It is made of samples that are cached and of which nothing more is kept. (Ranks of one job share each step, so
        they get one at a time.)
        """
        whole = self.is_whole(job)
        if most < 2 or job.world_size > 1 or rank.pace > (_LONG if whole else _SOON):
            return 0
        passing = job.shelves.get(Form.AUGMENTED)
        if rank.pace > _MOMENT / 2 and passing is not None and len(passing):
            return 0
        size = job.geometry.batch_size
        found = self._outlook.only_read(job, view)
        everything = found == self._state.remaining.left(job.number)
        moment = _LONG if everything and whole else max(_MOMENT, _OF_EACH * len(self._state.ranks))
        most = min(
            most,
            int(moment / rank.pace) if rank.pace > 0 else most,
            2 * rank.before,  # a pace is believed little by little
            _ROWS // size,
            job.geometry.steps(epoch.left) - epoch.drawn,
        )
        return max(1, most) if everything else min(max(1, most), found // size)
