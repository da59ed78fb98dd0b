"""What runs in a network namespace of ``test_rails``: a node, or a job's rank, on a made-up machine.

python -m tests.cluster.rails_driver node ROOT SOCKET NAME HOST HELPERS
python -m tests.cluster.rails_driver job ROOT SOCKET FOLDER RANK
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

import headrace as hr
from headrace.cluster import joining
from headrace.cluster import members as members_module
from headrace.cluster.certificates import make_certificate
from headrace.cluster.helper import Config, Helpers
from headrace.cluster.messages import Node, View
from headrace.cluster.rails import rails_of
from headrace.cluster.server import NodeServer
from headrace.core import topology
from tests.cluster.nodes import TOKEN
from tests.machines import RAILS as MACHINE
from tests.machines import made_up_cuda

_SECONDS = 60.0
_ROWS = 40
"""That have to come from elsewhere."""


def node(path: str, name: str, host: str, helpers: str) -> None:
    """Serve; says where it is, and is told who else there is."""
    context, fingerprint = make_certificate(name)
    server = NodeServer(name, token=TOKEN, memory=64 << 20, log=lambda text: print(text, file=sys.stderr))
    server.listen_unix(path)
    rails = rails_of(host)
    port = server.listen_tls(host, context, rails=rails)
    made = Helpers(Config(name, host, TOKEN, path, rails), int(helpers))
    made.look(wait=True)
    own = Node(name, name, host, port, fingerprint, 64 << 20, path, made.all, rails)
    print(msgspec.json.encode(own).decode(), flush=True)
    for line in sys.stdin:
        server.see(msgspec.json.decode(line, type=View))
        print("{}", flush=True)
    made.close()


def recipe(folder: str) -> hr.Recipe:
    """Of the job."""
    paths = sorted(Path(folder).glob("*.jpg"))
    return hr.Recipe(
        source=hr.files(paths, targets=range(len(paths))),
        decode=hr.image.decode(),
        augment=[hr.image.random_resized_crop(128), hr.image.horizontal_flip()],
    )


def epoch(loader: Any) -> list[np.ndarray[Any, Any]]:
    """Its batches."""
    return [images.numpy().copy() for images, _ in loader]


def job(path: str, folder: str, rank: str) -> None:
    """Train, on a GPU of the rank's number, until rows have come from elsewhere; says whether all were right."""
    torch.cuda = made_up_cuda(MACHINE, current=int(rank))  # type: ignore[assignment]
    joining.ray_node = lambda: "here"
    joining.find_members = lambda **_: (path, members_module.members_of(path))  # type: ignore[assignment]
    # (where the rank is on its machine is in the environment; of the dataset it has all)
    place = {"rank": 0, "world_size": 1}
    options: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 3, "num_workers": 1, **place}
    with hr.DataLoader(recipe(folder), **options, share=False) as loader:
        wanted = [epoch(loader) for _ in range(2)]
    right, helped, until = True, 0, time.monotonic() + _SECONDS
    while right and helped < _ROWS and time.monotonic() < until:
        with hr.DataLoader(recipe(folder), **options) as loader:
            for batches in wanted:
                right &= all(map(np.array_equal, epoch(loader), batches))
            while loader.stats().pool.helped < _ROWS and time.monotonic() < until:
                epoch(loader)
            helped = loader.stats().pool.helped
    print(json.dumps({"right": right, "helped": helped}), flush=True)


if __name__ == "__main__":
    topology.SYS = sys.argv[2]
    {"node": node, "job": job}[sys.argv[1]](*sys.argv[3:])
