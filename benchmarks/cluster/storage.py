"""The storage of the cluster: a real S3 server in its own namespace, with the photos in a bucket."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from benchmarks.bucket.network import inside
from benchmarks.cluster.network import STORAGE

PORT = 8333
KEY, SECRET, REGION = "bench", "benchbench", "us-east-1"
ENDPOINT = f"http://{STORAGE}:{PORT}"
BUCKET = "photos"


def environment() -> dict[str, str]:
    """What tells S3 clients where the bucket is, and who they are."""
    return {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ENDPOINT_URL": ENDPOINT,
        "AWS_ALLOW_HTTP": "true",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


class Storage:
    """The server, from its start to its end."""

    def __init__(self, namespace: str, folder: Path, photos: Path) -> None:
        self.namespace, self._folder = namespace, folder
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "data").mkdir(parents=True)
        identity = {
            "name": "bench",
            "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
            "actions": ["Admin", "Read", "List", "Write"],
        }
        (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
        weed = shutil.which("weed") or str(Path(sys.executable).parent / "weed")
        with open(folder / "log", "wb") as log:
            self._process = subprocess.Popen(
                [
                    *inside(namespace), weed, "-logtostderr", "server", f"-dir={folder / 'data'}", "-ip=127.0.0.1",
                    "-ip.bind=127.0.0.1", "-master.telemetry=false", "-master.volumeSizeLimitMB=128",
                    "-volume.max=16", "-filer=true", "-s3=true", f"-s3.port={PORT}", f"-s3.ip.bind={STORAGE}",
                    f"-s3.config={folder / 's3.json'}", "-s3.iam=false", "-s3.port.iceberg=0", "-s3.port.lance=0",
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                preexec_fn=lambda: ctypes.CDLL(None).prctl(1, signal.SIGKILL),
            )  # fmt: skip
        self._wait()
        command = [*inside(namespace), sys.executable, "-m", "benchmarks.cluster.storage", str(photos)]
        subprocess.run(command, check=True, env={**os.environ, **environment()})

    def _wait(self) -> None:
        until = time.monotonic() + 60
        probe = [*inside(self.namespace), sys.executable, "-c", _PROBE, f"{ENDPOINT}/status"]
        while time.monotonic() < until:
            if self._process.poll() is not None:
                raise RuntimeError(f"the S3 server ended: {(self._folder / 'log').read_text()[-400:]}")
            if subprocess.run(probe, capture_output=True).returncode == 0:
                return
            time.sleep(0.3)
        raise RuntimeError("the S3 server did not start")

    def close(self) -> None:
        """End it, and take its data away."""
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


_PROBE = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=2)"


def upload(folder: Path) -> None:
    """All photos of a folder, as objects."""
    import obstore
    from obstore.store import S3Store

    with contextlib.suppress(Exception):
        request = urllib.request.Request(f"{ENDPOINT}/{BUCKET}", method="PUT")
        urllib.request.urlopen(request, timeout=10)
    store = S3Store(BUCKET, endpoint=ENDPOINT, client_options={"allow_http": True})
    for path in sorted(folder.rglob("*.jpg")):
        obstore.put(store, f"train/{path.parent.name}/{path.name}", path.read_bytes())


if __name__ == "__main__":
    upload(Path(sys.argv[1]))
