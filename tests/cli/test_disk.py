"""``headrace disk``: what lies in a disk tier, and how it is emptied."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.cache.disk import LEAST, DiskTier
from headrace.cli import main
from tests.cache.disk_samples import OWNER, put


def test_it_shows_what_lies_there_and_empties_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_DISK", str(tmp_path / "disk"))
    assert main(["disk"]) == 0
    assert f"there is no disk tier in {tmp_path / 'disk'}" in capsys.readouterr().out
    disk = DiskTier(str(tmp_path / "disk"), LEAST, OWNER).open()
    put(disk, *range(20))
    assert main(["disk", str(tmp_path / "disk")]) == 0
    said = capsys.readouterr().out
    assert "of 16.0 MiB, in" in said and "1, 1 of them open in running jobs" in said
    assert main(["disk", "--clear"]) == 1
    assert "running jobs use the disk tier" in capsys.readouterr().err
    assert list((tmp_path / "disk/segments").iterdir())
    disk.close()
    assert main(["disk", "--clear"]) == 0
    assert "removed" in capsys.readouterr().out
    assert not (tmp_path / "disk/segments").exists()
    assert main(["disk"]) == 0
    assert "there is no disk tier" in capsys.readouterr().out
