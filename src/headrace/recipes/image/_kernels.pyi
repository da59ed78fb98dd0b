from collections.abc import Sequence
from typing import Any

CALLS: tuple[str, ...]
JOB_BYTES: int

class Workspace: ...

def load(path: str, addresses: tuple[int, ...]) -> int: ...
def probe_many(blobs: Sequence[Any], out: Any) -> None: ...
def decode_many(
    workspace: Workspace,
    blobs: Sequence[Any],
    outs: Sequence[Any],
    origins: Any,
    scales: Any,
    status: Any,
    max_pixels: int,
    as_stored: bool,
) -> None: ...
def rows_many(
    workspace: Workspace,
    sources: Sequence[Any],
    jobs: Any,
    out: Any,
    status: Any,
    spec: tuple[Any, ...],
) -> None: ...
def explain(workspace: Workspace) -> str: ...
def kernel_sets() -> tuple[str, ...]: ...
def use_kernels(name: str) -> None: ...
def check_kernels() -> None: ...
