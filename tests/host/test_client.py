"""A job's end of the connection, with a real host in a process of its own that starts badly, hangs or goes."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest
from torch.utils.data import default_collate

import headrace as hr
from headrace.channel.channel import wait
from headrace.channel.unix import close_all
from headrace.coordinate.protocol import MOST_ROWS, Join
from headrace.core.errors import HostUnavailable, OptionError
from headrace.host import control, runtime
from headrace.host.client import SharedClient
from headrace.sampling import Draw
from tests.host.test_runtime import gone, python
from tests.host.test_service import identities, terms
from tests.loader.helpers import wait_until

pytestmark = pytest.mark.faults

SERVICE = [sys.executable, "-P", "-m", "headrace.host.service"]


@contextmanager
def opened(join: Join) -> Iterator[SharedClient]:
    with closing(SharedClient(lambda: identities(join.samples))) as client:
        client.open(join)
        yield client


def next_draw(client: SharedClient) -> Draw | None:
    """The next draw of the epoch; None at its end."""
    client.ask()
    found: list[Draw] = []

    def came() -> bool:
        drawn = client.take()
        found.extend([drawn] if drawn is not None else [])
        return bool(found) or client.over

    assert wait_until(came, 60)
    return found[0] if found else None


def give_up(client: SharedClient, drawn: Draw) -> None:
    """It will not be prepared."""
    if drawn.lookup is not None:
        client.give_up(drawn.lookup.ticket, drawn.lookup.instance, 0, len(drawn.indices))


def rest_of_epoch(client: SharedClient) -> list[int]:
    """All samples that are still to come."""
    samples: list[int] = []
    while (drawn := next_draw(client)) is not None:
        samples += drawn.indices.tolist()
        give_up(client, drawn)
    return samples


def host_of(client: SharedClient) -> int:
    assert client._channel is not None
    return client._channel.peer.pid


def test_a_host_that_is_killed_as_it_starts_is_started_again(
    place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By the first job that wants one, too."""
    code = f"""
    import os, signal, sys
    mark = {str(tmp_path / "killed")!r}
    if not os.path.exists(mark):
        open(mark, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    os.execv({sys.executable!r}, {SERVICE!r})
    """
    monkeypatch.setattr(runtime, "host_command", lambda: python(code))
    with opened(terms("token", 64)) as client:
        client.begin(0, explicit=False)
        assert sorted(rest_of_epoch(client)) == list(range(64))
    assert (tmp_path / "killed").exists()


def test_a_host_that_never_starts_is_an_error_with_its_reason(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "host_command", lambda: python("import sys; sys.exit('out of order')"))
    with pytest.raises(HostUnavailable, match="out of order"), opened(terms("token", 64)):
        pass


def test_who_is_refused_for_good_does_not_try_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(terms("first", 64)):
        other = terms("second", 64)
        other.samples = 65
        tries: list[float] = []
        find = runtime.find_or_start

        def counted(timeout: float) -> object:
            tries.append(timeout)
            return find(timeout)

        other.dataset = terms("first", 64).dataset
        monkeypatch.setattr(runtime, "find_or_start", counted)
        with pytest.raises(HostUnavailable, match="has 64 samples here and 65 there"), opened(other):
            pass
        assert len(tries) == 1


@pytest.mark.slow
def test_a_host_that_cannot_be_ended_is_done_without_and_gives_nothing_twice(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One in another container, say. When it goes on, it sees that jobs have given it up, and goes."""
    monkeypatch.setenv("HEADRACE_HOST_PATIENCE", "8")
    monkeypatch.setattr(runtime, "depose", lambda channel: False)
    with opened(terms("token", 64)) as client:
        pid = host_of(client)
        client.begin(0, explicit=False)
        first = next_draw(client)
        assert first is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.warns(UserWarning, match="did not answer in time.*goes on alone"):
                samples = rest_of_epoch(client)
            assert client.alone
            assert sorted([*first.indices.tolist(), *samples]) == list(range(64))
            client.begin(1, explicit=False)
            assert client.alone, "it is still there, and still silent"
            early = next_draw(client)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert wait_until(lambda: gone(pid), 20)
        assert "stood still" in (place / "host.log").read_text()
        assert early is not None
        assert sorted([*early.indices.tolist(), *rest_of_epoch(client)]) == list(range(64))
        # Another host is there by now: the next epoch is drawn by it.
        with opened(terms("other", 64)):
            client.begin(2, explicit=False)
            assert not client.alone
            assert sorted(rest_of_epoch(client)) == list(range(64))


def test_a_job_that_stood_still_itself_does_not_blame_its_host(place: Path) -> None:
    """What the host said meanwhile is looked at first."""
    with opened(terms("token", 64)) as client:
        pid = host_of(client)
        client.begin(0, explicit=False)
        client.ask()
        assert wait(client.fileno(), 20)
        client._heard = client._pinged = time.monotonic() - 3600
        client.pump()
        assert client.has_draws and host_of(client) == pid and not client.takeovers


def test_a_rank_whose_others_have_ended_says_what_it_waits_for(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new host cannot know what they had; a rank that is only late may still come, and then it goes on."""
    monkeypatch.setattr("headrace.host.client._COMPANY", 0.5)
    ranks = [terms("token", 64) for _ in range(2)]
    for rank, join in enumerate(ranks):
        join.rank, join.world_size, join.group = rank, 2, "group"
    with opened(ranks[0]) as ahead, opened(ranks[1]) as behind:
        given = []
        for client in (ahead, behind):
            client.begin(0, explicit=False)
            drawn = next_draw(client)
            assert drawn is not None
            given += drawn.indices.tolist()
        pid = host_of(behind)
        os.kill(pid, signal.SIGKILL)
        assert wait_until(lambda: gone(pid), 20)
        behind.ask()

        def said() -> bool:
            assert behind.take() is None
            return behind.takeovers == 1 and behind._lonely is None

        with pytest.warns(UserWarning, match=r"rank 1 waits for the other ranks.*last state_dict\(\)"):
            assert wait_until(said, 30)
        ahead.ask()
        for client in (ahead, behind):
            assert wait_until(lambda client=client: _taken(client, given), 30)
        for client in (ahead, behind):
            given += rest_of_epoch(client)
        assert sorted(given) == list(range(64))


def _taken(client: SharedClient, given: list[int]) -> bool:
    drawn = client.take()
    if drawn is not None:
        given += drawn.indices.tolist()
        give_up(client, drawn)
    return drawn is not None


def test_batches_that_are_too_large_to_share_are_refused(place: Path) -> None:
    with opened(terms("token", 64)) as client, pytest.raises(OptionError, match="share=False"):
        client.ask(Draw(0, 0, np.zeros(MOST_ROWS + 1, np.int64), 0))


def test_a_host_without_descriptors_serves_those_who_are_in_and_takes_others_later(place: Path) -> None:
    with opened(terms("token", 64)) as client:
        pid = host_of(client)
        client.begin(0, explicit=False)
        first = next_draw(client)
        assert first is not None
        give_up(client, first)
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (psutil.Process(pid).num_fds() + 2, limits[1]))
        waiting = [runtime.connect() for _ in range(20)]
        log = place / "host.log"
        assert wait_until(lambda: log.read_text().count("nobody is let in") > 1)
        rest = rest_of_epoch(client)
        assert sorted([*first.indices.tolist(), *rest]) == list(range(64)) and not client.takeovers
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        with opened(terms("late", 64)) as late:
            assert host_of(late) == pid
        for channel in waiting:
            assert channel is not None
            channel.close()
        assert log.read_text().count("nobody is let in") < 60, "it rests between two tries"


@pytest.mark.parametrize(("collate", "epochs"), [(False, 2), (True, 1)])
@pytest.mark.slow
def test_very_large_batches(place: Path, collate: bool, epochs: int) -> None:
    """What is said about their rows takes megabytes, between host and job as between job and worker."""
    size = 42_000
    recipe = hr.Recipe(hr.synthetic.source(size, shape=(1,), classes=size), decode=hr.synthetic.decode())
    options = {"collate_fn": default_collate} if collate else {}
    with hr.DataLoader(
        recipe, batch_size=41_000, shuffle=True, num_workers=1, cache="64MiB", share=True, **options
    ) as loader:
        pids = set()
        for _ in range(epochs):
            targets = np.concatenate([batch[1].numpy() for batch in loader])
            assert sorted(targets.tolist()) == list(range(size))
            status = control.status()
            assert status is not None
            pids.add(status.pid)
    assert len(pids) == 1 and status.memory.entries > 0
    assert not (place / "host.log").read_text()


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """New descriptors have numbers that ``select`` does not know."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip("the system allows too few descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    held = [os.open(os.devnull, os.O_RDONLY)]
    try:
        while held[-1] < 1100:
            held.append(os.dup(held[0]))
        yield
    finally:
        close_all(held)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("workers", [0, 1])
def test_descriptors_beyond_a_thousand(place: Path, many_descriptors: None, workers: int) -> None:
    recipe = hr.Recipe(hr.synthetic.source(100, shape=(4, 4), classes=100), decode=hr.synthetic.decode())
    options = {"batch_size": 8, "shuffle": True, "num_workers": workers, "cache": "1MiB", "share": True}
    with hr.DataLoader(recipe, **options) as loader, hr.DataLoader(recipe, **options) as other:
        for _ in range(2):
            pairs = list(zip(loader, other, strict=True))
            for side in range(2):
                targets = np.concatenate([pair[side][1].numpy() for pair in pairs])
                assert sorted(targets.tolist()) == list(range(100))
    assert control.stop()
