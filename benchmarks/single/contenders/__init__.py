"""Who is measured: one module per kind of loader, one entry here per measured set-up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from benchmarks.common import contenders


@dataclass(frozen=True)
class Entry(contenders.Entry):
    """One measured set-up."""

    package: ClassVar[str] = __name__
    loads: bool = True
    """Whether it hands batches to a consumer; the bare loops do not."""
    fills: int = 1
    """Epochs before the later ones. A cache takes more than one: incomplete batches are dropped, so each epoch
    leaves a few samples out, and those are first seen in a following one."""
    large: bool = False
    """Whether it has the large photos, in batches of 32."""


_TORCH, _SPDL, _DALI, _FFCV = (
    ("torch", "simplejpeg", "pillow"),
    ("spdl",),
    ("nvidia-dali-cuda120",),
    ("ffcv",),
)
_OURS, _BARE = ("headrace", "torch"), ("simplejpeg", "opencv-python-headless")
ENTRIES = (
    Entry("torch-pil", "torch DataLoader, PIL", "peers", "torch_loader:open_pil", _TORCH),
    Entry("torch-opencv", "torch DataLoader, OpenCV", "peers", "torch_loader:open_opencv", _TORCH),
    Entry("spdl", "SPDL, OpenCV", "peers", "spdl_loader:open_loader", _SPDL),
    Entry("dali", "DALI CPU", "peers", "dali_loader:open_loader", _DALI),
    Entry("ffcv-jpeg", "FFCV, JPEG in its own file", "peers", "ffcv_loader:open_jpeg", _FFCV),
    Entry("ffcv-raw", "FFCV, decoded in its own file", "peers", "ffcv_loader:open_raw", _FFCV),
    Entry("headrace", "headrace, nothing cached", "headrace", "headrace_loader:open_uncached", _OURS),
    Entry(
        "headrace-decoded",
        "headrace, decoded cached",
        "headrace",
        "headrace_loader:open_decoded",
        _OURS,
        fills=3,
    ),
    Entry(
        "headrace-large",
        "headrace, 3 to 6 megapixels, nothing cached",
        "headrace",
        "headrace_loader:open_uncached",
        _OURS,
        large=True,
    ),
    Entry(
        "headrace-large-decoded",
        "headrace, 3 to 6 megapixels, decoded cached",
        "headrace",
        "headrace_loader:open_decoded",
        _OURS,
        large=True,
    ),
    Entry("headrace-dropin", "headrace, torch Dataset", "headrace", "headrace_loader:open_dropin", _OURS),
    Entry("bare-full", "bare: full decode, resize", "headrace", "bare:open_full", _BARE, loads=False),
    Entry("bare-region", "bare: region decode, resize", "headrace", "bare:open_region", _BARE, loads=False),
    Entry("bare-arrays", "bare: resize of arrays in RAM", "headrace", "bare:open_arrays", _BARE, loads=False),
)
BY_NAME = {entry.name: entry for entry in ENTRIES}
