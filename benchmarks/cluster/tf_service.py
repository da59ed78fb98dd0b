"""tf.data service across the namespaces: a dispatcher on the first node, a worker server on each.

TensorFlow has an environment of its own, so what is imported here at the top is the standard library alone.
TensorFlow reads no S3 by itself any more, and tensorflow-io's plugin does not load into TensorFlow 2.21; so each
worker has the bucket mounted by rclone, in a mount namespace of its own that ends with it.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.bucket.network import inside
from benchmarks.cluster import storage
from benchmarks.cluster.network import Lan, address

REPOSITORY = Path(__file__).resolve().parents[2]
PORT = 5050
DISPATCHER = f"grpc://{address(0)}:{PORT}"
THREADS = 2
"""Of a worker server, for reading and preparing."""


class NoService(RuntimeError):
    """tf.data service does not run here; the message says why."""


@functools.cache
def python() -> str:
    """The Python that has TensorFlow."""
    found = os.environ.get("HEADRACE_BENCH_TF") or str(REPOSITORY / ".venv-tf" / "bin" / "python")
    if not os.access(found, os.X_OK):
        raise NoService(f"there is no {found}")
    for tool, package in (("rclone", "rclone"), ("fusermount3", "fuse3")):
        if shutil.which(tool) is None:
            raise NoService(f"{tool} was not found (Debian: {package})")
    run = subprocess.run(
        [found, "-c", "import importlib.util as u, sys; sys.exit(u.find_spec('tensorflow') is None)"]
    )
    if run.returncode:
        raise NoService(f"{found} has no TensorFlow")
    return found


class TfService:
    """The servers, from their start to their end; ``source`` is where workers see the photos."""

    def __init__(self, lan: Lan) -> None:
        self._place = Path(tempfile.mkdtemp(prefix="hr-tf-", dir="/tmp"))
        (self._place / "bucket").mkdir()
        self.source = str(self._place / "bucket" / "train")
        self._processes: list[subprocess.Popen[bytes]] = []
        self._python = python()
        try:
            self._start(lan.nodes[0], "dispatcher")
            for node, name in enumerate(lan.nodes):
                self._start(name, "worker", address(node), str(self._place / "bucket"))
            for number in range(len(self._processes)):
                self._wait(number)
        except BaseException:
            self.close()
            raise

    def _start(self, namespace: str, *words: str) -> None:
        command = [
            *inside(namespace), "unshare", "--mount", "--propagation", "private",
            self._python, "-m", "benchmarks.cluster.tf_service", *words,
        ]  # fmt: skip
        with open(self._place / f"log{len(self._processes)}", "wb") as log:
            self._processes.append(
                subprocess.Popen(
                    command, stdout=log, stderr=log, env=environment(), preexec_fn=_end_with_parent
                )
            )

    def _wait(self, number: int) -> None:
        until, path = time.monotonic() + 90, self._place / f"log{number}"
        while "ready" not in path.read_text().splitlines():
            if time.monotonic() > until or self._processes[number].poll() is not None:
                raise NoService(f"a server of tf.data's does not start: {path.read_text()[-600:]}")
            time.sleep(0.1)

    def close(self) -> None:
        """End all of it. Mounts go with the processes that see them."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
        shutil.rmtree(self._place, ignore_errors=True)


def environment() -> dict[str, str]:
    """Of TensorFlow's processes."""
    # (rclone refuses to start with a bundle of certificates for AWS, and there are none to check here)
    return {
        **{name: value for name, value in os.environ.items() if name != "AWS_CA_BUNDLE"},
        **storage.environment(),
        "PYTHONPATH": str(REPOSITORY),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "CUDA_VISIBLE_DEVICES": "",
    }


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


# -- what follows runs where TensorFlow is -----------------------------------------------------------------------


def epochs(source: str, photos: int, size: int, batch: int, trainer: str) -> Iterator[Any]:
    """Batches for one of several jobs over the same photos, which the service prepares once for all of them.

    As its documentation has it for concurrent trainers: one ``job_name``, a ``CrossTrainerCache``, and a dataset
    without an end, in an order of its own on each worker. So an epoch is as many batches as one would have, and not
    each photo once: a photo may come twice in it, and another not at all.
    """
    import tensorflow as tf

    service = tf.data.experimental.service
    made = dataset(source, photos, size, batch).apply(
        service.distribute(
            processing_mode=service.ShardingPolicy.OFF,
            service=DISPATCHER,
            job_name="photos",
            compression=None,  # (photos hardly get smaller by snappy, the default)
            cross_trainer_cache=service.CrossTrainerCache(trainer_id=trainer),
        )
    )
    batches = _endless(made)
    while True:
        yield itertools.islice(batches, -(-photos // batch))


def _endless(made: Any) -> Iterator[Any]:
    # (the job begins with the first batch that is asked for, inside what is measured, as others' workers do)
    yield from made.as_numpy_iterator()


def dataset(source: str, photos: int, size: int, batch: int) -> Any:
    """What each worker runs. ``source`` is looked at there, and not by the jobs.

    Bytes are not cached: a worker prepares about a quarter of what the jobs take, in three epochs less than all
    photos once.
    """
    import tensorflow as tf

    whole = tf.constant([[[0.0, 0.0, 1.0, 1.0]]])

    def prepare(path: Any) -> Any:
        jpeg = tf.io.read_file(path)
        begin, extent, _ = tf.image.sample_distorted_bounding_box(
            tf.image.extract_jpeg_shape(jpeg), whole, min_object_covered=0.0, aspect_ratio_range=(3 / 4, 4 / 3),
            area_range=(0.08, 1.0), max_attempts=10,
        )  # fmt: skip
        box = tf.concat([begin[:2], extent[:2]], 0)
        image = tf.image.decode_and_crop_jpeg(jpeg, box, channels=3)
        image = tf.cast(tf.round(tf.image.resize(image, (size, size))), tf.uint8)
        return {"image": tf.image.random_flip_left_right(image)}

    def listed(pattern: Any) -> Any:
        return tf.data.Dataset.from_tensor_slices(tf.io.matching_files(pattern))

    options = tf.data.Options()
    options.threading.private_threadpool_size = THREADS
    options.deterministic = False
    return (
        tf.data.Dataset.from_tensors(f"{source}/*/*.jpg")
        .flat_map(listed)
        .cache()
        .shuffle(photos)
        .repeat()
        .map(prepare, num_parallel_calls=THREADS)
        .batch(batch)
        .prefetch(1)
        .with_options(options)
    )


def _mount(where: str) -> None:
    """The bucket as a folder: read only, nothing kept on disk; sizes and times from the listing."""
    command = [
        "rclone", "mount", f":s3:{storage.BUCKET}", where, "--config", "/dev/null", "--s3-provider", "Other",
        "--s3-env-auth", "--s3-endpoint", storage.ENDPOINT, "--s3-region", storage.REGION, "--read-only",
        "--vfs-cache-mode", "off", "--dir-cache-time", "1h", "--no-modtime", "--no-checksum",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_end_with_parent)
    until = time.monotonic() + 30
    while not os.path.ismount(where):
        if process.poll() is not None or time.monotonic() > until:
            sys.exit("rclone cannot mount the bucket")
        time.sleep(0.05)


def main() -> None:
    """``dispatcher``, or ``worker HOST MOUNT``."""
    if sys.argv[1] == "worker":
        _mount(sys.argv[3])
    import tensorflow as tf

    service = tf.data.experimental.service
    if sys.argv[1] == "dispatcher":
        server = service.DispatchServer(service.DispatcherConfig(port=PORT))
    else:
        config = service.WorkerConfig(
            dispatcher_address=DISPATCHER.removeprefix("grpc://"), worker_address=f"{sys.argv[2]}:%port%"
        )
        server = service.WorkerServer(config)
    print("ready", flush=True)
    server.join()


if __name__ == "__main__":
    main()
