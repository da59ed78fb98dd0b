"""One epoch of a loader, batch by batch."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils import data as torch_data

from headrace.core.errors import LoaderClosed, OutOfSharedMemory
from headrace.core.interrupts import held
from headrace.loader.device import Ahead, Sent
from headrace.loader.epochs import Begun, Epochs
from headrace.loader.ordering import Place
from headrace.loader.sessions import SKIPPED, Session
from headrace.loader.spec import LoaderSpec


class EpochIterator(Iterator[Any]):
    """What ``iter(loader)`` returns. It keeps its loader alive, and cleans up after itself when dropped."""

    def __init__(
        self,
        loader: torch_data.DataLoader[Any],
        epochs: Epochs,
        spec: Callable[[], LoaderSpec],
        begun: Begun,
        length: int | None,
    ) -> None:
        """``spec``: gives that of the loader, as of now. ``length``: what ``len(loader)`` said of an iterable
        dataset, if somebody asked."""
        self._loader, self._epochs, self._spec = loader, epochs, spec
        self._session: Session | None = begun.place.session
        self.place, self.resume = begun.place, begun.resume
        self._left = begun.steps
        self._due = begun.promised if begun.steps is None else begun.steps
        self._yielded = 0
        self._asked = False
        self._broken = False
        self._promised = length
        session = self._session
        self._ahead = None if session is None or session.feed is None else Ahead(session.copies)
        """Batches on their way to a device."""

    def restart(self, place: Place, steps: int | None) -> None:
        """Run another epoch, before the first batch was asked for."""
        self.place, self._left, self.resume = place, steps, None
        self._due = self._due if steps is None else steps

    @property
    def over(self) -> bool:
        """Whether all batches were given out, although nobody asked for one more.

        Who knows how many there are need not: Lightning holds on to such iterators while it makes new ones.
        """
        return self._due is not None and self._due <= 0

    def finish(self) -> None:
        """Be at the end."""
        self._end()

    def __iter__(self) -> EpochIterator:
        return self

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        """The next batch."""
        epochs = self._epochs
        if not self._asked:
            self._asked = True
            if self._session is not None and not epochs.closed:
                epochs.first_asked(self._spec(), self)
        while True:
            if epochs.closed:
                raise LoaderClosed("the loader was closed; make a new one")
            if self._broken:
                raise LoaderClosed("this iterator met an error that it cannot go on after; make a new one")
            session = self._session
            found = self._ask(session) if session is not None and self._left != 0 else None
            if session is None or found is None:
                self._end()
                raise StopIteration
            drawn, value = found
            if self._due is not None:
                self._due -= 1
            epochs.delivered(self.place, drawn)
            if value is not SKIPPED:
                self._yielded += 1
                self._check_promise()
                return value.take() if type(value) is Sent else value

    def _ask(self, session: Session) -> tuple[Any, Any] | None:
        timeout = self._loader.timeout
        begun = time.perf_counter() - _held_back(session)
        try:
            if self._ahead is None:
                found = session.next(timeout or None)
            else:
                found = self._ahead.next(session, timeout or None, self._left)
        except TimeoutError:
            raise RuntimeError(f"DataLoader timed out after {timeout} seconds") from None
        except KeyboardInterrupt:
            # Whatever was under way is undefined now; a new iteration starts afresh.
            self._break()
            raise
        except BaseException as error:
            if session.closed:
                self._break()
            elif self._left is not None and not isinstance(error, OutOfSharedMemory):
                self._left -= 1  # the batch at fault is gone; where room is lacking, it is still to come
            raise
        if self._left is not None:
            self._left -= 1
        self._epochs.observer.waited += time.perf_counter() - _held_back(session) - begun
        return found

    def _end(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            self._epochs.end(self._spec(), self.place)

    def _break(self) -> None:
        self._broken = True
        session, self._session = self._session, None
        if session is not None:
            self._epochs.leave(self._spec(), session, broken=True)

    def _check_promise(self) -> None:
        if self._promised is None or self._yielded <= self._promised:
            return
        text = (
            f"Length of IterableDataset {self._loader.dataset} was reported to be {self._promised}"
            f"(when accessing len(dataloader)), but {self._yielded} samples have been fetched. "
        )
        if self._loader.num_workers > 0:
            text += (
                "Every worker reads the whole dataset unless the dataset divides the work: "
                "see torch.utils.data.get_worker_info."
            )
        warnings.warn(text, stacklevel=3)

    def __del__(self) -> None:
        session = getattr(self, "_session", None)
        if session is None:
            return
        with held(in_del=True):
            if self.over and not session.closed and session is self._epochs.session:
                # Who counts batches does not ask for one more. The next epoch may be under way: ranks agreed on it.
                self._end()
                return
            self._session = None
            self._epochs.leave(self._spec(), session)


def _held_back(session: Session) -> float:
    """Seconds for which a loop waited for its own device, and not for batches."""
    return 0.0 if session.feed is None else session.feed.waited
