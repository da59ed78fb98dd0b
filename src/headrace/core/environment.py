"""The environment variables that headrace reads, all of them. No other module touches the environment.

Each is read when it is asked for, so that it may be set at any time before. docs/environment.md lists them.
"""

from __future__ import annotations

import os
import re

from headrace.core.errors import OptionError

_NO = ("0", "false", "no")
_PATIENCE = 60.0
"""Seconds for which a host may be silent. One that numbers tens of millions of samples is for a while."""
_STORAGE_PATIENCE = 300.0
"""Seconds for which storage is asked again for a sample."""
_LAUNCHES = (("TORCHELASTIC_RUN_ID",), ("SLURM_JOB_ID", "SLURM_STEP_ID"), ("MASTER_ADDR", "MASTER_PORT"))
"""What all processes of one job, and only those, have in common."""
_RANKS_HERE = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE")
_LOCAL_RANK = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")

_AWS_KEYS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)

# -- headrace's own ------------------------------------------------------------------------------------------


def native() -> bool:
    """``HEADRACE_NATIVE=0``: what is written in C is not used, but its counterpart in Python."""
    return os.environ.get("HEADRACE_NATIVE") != "0"


def libjpeg() -> str:
    """``HEADRACE_LIBJPEG``: the libjpeg to use, a path; empty: one that is found."""
    return os.environ.get("HEADRACE_LIBJPEG", "")


def shared_memory_dir() -> str:
    """``HEADRACE_SHM_DIR``: the directory of the memory for batches; empty: it needs none."""
    return os.environ.get("HEADRACE_SHM_DIR", "")


def affinity() -> bool:
    """``HEADRACE_AFFINITY=0``: workers run on whatever CPUs the job may run on."""
    return os.environ.get("HEADRACE_AFFINITY", "") not in _NO


def rails() -> bool:
    """``HEADRACE_RAILS=0``: between machines, the system chooses the network interface."""
    return os.environ.get("HEADRACE_RAILS", "") not in _NO


def sharing() -> bool | str | None:
    """``HEADRACE_SHARE=1``: loaders of recipes share unless they are told otherwise; ``ray``: on all nodes of a Ray
    cluster. None: nothing is said."""
    said = os.environ.get("HEADRACE_SHARE", "")
    return None if not said else False if said in _NO else said if said == "ray" else True


def profiling() -> bool:
    """``HEADRACE_PROFILES=0``: loaders neither read nor keep profiles."""
    return os.environ.get("HEADRACE_PROFILES", "") not in _NO


def recording() -> bool:
    """``HEADRACE_RECORD=0``: loaders keep no records of their runs."""
    return os.environ.get("HEADRACE_RECORD", "").lower() not in _NO


def fixed_staff() -> bool:
    """``HEADRACE_STAFF=fixed``: threads are not moved between ranks, nor between fetching and preparing."""
    said = os.environ.get("HEADRACE_STAFF", "")
    if said not in ("", "auto", "fixed"):
        raise OptionError(f"HEADRACE_STAFF={said!r}: it may be 'auto' or 'fixed'")
    return said == "fixed"


def niceness() -> int:
    """``HEADRACE_NICE``: by how much less urgent workers are than the loop that they serve, as in ``nice -n``."""
    said = os.environ.get("HEADRACE_NICE", "10")
    if not (said.isdecimal() and int(said) <= 19):
        raise OptionError(f"HEADRACE_NICE={said!r} is no number from 0 to 19")
    return int(said)


def reads() -> int:
    """``HEADRACE_READS``: reads that each worker has under way, exactly; 0: as many as are of use."""
    said = os.environ.get("HEADRACE_READS", "")
    if said and not (said.isdecimal() and 0 < int(said) <= 1024):
        raise OptionError(f"HEADRACE_READS={said!r} is no number from 1 to 1024")
    return int(said or 0)


def runtime_dir() -> str:
    """``HEADRACE_RUNTIME_DIR``: the shared host's directory; empty: one of the usual places."""
    return os.environ.get("HEADRACE_RUNTIME_DIR", "")


def host_patience() -> float:
    """``HEADRACE_HOST_PATIENCE``: seconds for which a host may be silent where somebody waits for its answer."""
    return _seconds("HEADRACE_HOST_PATIENCE", _PATIENCE)


def storage_patience() -> float:
    """``HEADRACE_STORAGE_PATIENCE``: seconds for which storage is asked again for a sample that it does not give."""
    return _seconds("HEADRACE_STORAGE_PATIENCE", _STORAGE_PATIENCE)


def _seconds(name: str, usual: float) -> float:
    asked = os.environ.get(name) or usual
    try:
        seconds = float(asked)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise OptionError(f"{name}={asked!r} is no number of seconds")
    return seconds


def host_idle(otherwise: float) -> float:
    """``HEADRACE_HOST_IDLE``: seconds without jobs after which a shared host ends."""
    return float(os.environ.get("HEADRACE_HOST_IDLE", otherwise))


def paced() -> bool:
    """``HEADRACE_PACING``: whether bytes on their way to one receiver are bounded by measured delays."""
    return os.environ.get("HEADRACE_PACING", "").lower() not in ("0", "false", "no")


def helped() -> bool:
    """``HEADRACE_HELP``: whether other nodes may prepare rows of this job."""
    return os.environ.get("HEADRACE_HELP", "").lower() not in _NO


def host_events() -> str:
    """``HEADRACE_HOST_EVENTS``: a file to which a shared host writes all that it is told; empty: none."""
    return os.environ.get("HEADRACE_HOST_EVENTS", "")


def data_dir() -> str:
    """``HEADRACE_DATA``: the folder of the dataset store; empty: the usual one."""
    return os.environ.get("HEADRACE_DATA", "")


def data_quota() -> str:
    """``HEADRACE_DATA_QUOTA``: what the dataset store may take, as ``"500GiB"``; empty: as it was set."""
    return os.environ.get("HEADRACE_DATA_QUOTA", "")


# -- those of the user's session -----------------------------------------------------------------------------


def session_dir() -> str:
    """``XDG_RUNTIME_DIR``: where the sockets of a user's session lie; empty: not said."""
    return os.environ.get("XDG_RUNTIME_DIR", "")


def cache_home() -> str:
    """``XDG_CACHE_HOME``: where files lie that can be made again; by default ``~/.cache``."""
    return _at_home("XDG_CACHE_HOME", ".cache")


def disk_dir() -> str:
    """``HEADRACE_DISK``: the folder of the disk tier; by default one in the folder of caches."""
    said = os.environ.get("HEADRACE_DISK", "")
    return os.path.abspath(said) if said else os.path.join(cache_home(), "headrace", "disk")


def data_home() -> str:
    """``XDG_DATA_HOME``: where files lie that a user wants to have; by default ``~/.local/share``."""
    return _at_home("XDG_DATA_HOME", os.path.join(".local", "share"))


def state_home() -> str:
    """``XDG_STATE_HOME``: where files lie that tell what was; by default ``~/.local/state``."""
    return _at_home("XDG_STATE_HOME", os.path.join(".local", "state"))


def _at_home(name: str, usual: str) -> str:
    said = os.environ.get(name, "")
    return said if os.path.isabs(said) else os.path.join(os.path.expanduser("~"), usual)


# -- those of AWS's own tools (others are read by the library that talks to buckets) ---------------------------


def aws_profile() -> str:
    """``AWS_PROFILE``, or its older name: whose credentials to use, of those in AWS's files; empty: not said."""
    return os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE", "")


def aws_keys() -> bool:
    """Whether the environment has credentials itself, or says where those of a container or a role come from."""
    return any(os.environ.get(name) for name in _AWS_KEYS)


def aws_region() -> str:
    """``AWS_REGION`` or ``AWS_DEFAULT_REGION``."""
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION", "")


def aws_endpoint() -> str:
    """``AWS_ENDPOINT_URL_S3``, ``AWS_ENDPOINT_URL`` or ``AWS_ENDPOINT``: the S3 server, if not Amazon's."""
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    return next((os.environ[name] for name in names if os.environ.get(name)), "")


def aws_files() -> tuple[str, str]:
    """``AWS_SHARED_CREDENTIALS_FILE`` and ``AWS_CONFIG_FILE``; by default two files in ``~/.aws``."""
    home = os.path.join(os.path.expanduser("~"), ".aws")
    credentials = os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or os.path.join(home, "credentials")
    return credentials, os.environ.get("AWS_CONFIG_FILE") or os.path.join(home, "config")


# -- those of launchers --------------------------------------------------------------------------------------


def place() -> tuple[int, int] | None:
    """``RANK`` and ``WORLD_SIZE``: which of how many ranks this process is, where that is said."""
    try:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except KeyError:
        return None
    except ValueError:
        raise OptionError(
            f"RANK={os.environ.get('RANK')!r} and WORLD_SIZE={os.environ.get('WORLD_SIZE')!r} in the environment "
            "are not numbers; mend them or pass rank= and world_size="
        ) from None


def local_rank() -> int | None:
    """``LOCAL_RANK``, or what Open MPI and Slurm call it: which of the ranks on this machine this process is."""
    for name in _LOCAL_RANK:
        said = os.environ.get(name, "")
        if said.isdigit():
            return int(said)
    return None


def ranks_here() -> int | None:
    """``LOCAL_WORLD_SIZE``, or what Open MPI, MPICH and Slurm call the number of ranks on this machine."""
    for name in _RANKS_HERE:
        found = re.match(r"\d+", os.environ.get(name, ""))
        if found and int(found[0]):
            return int(found[0])
    return None


def cpus_per_task() -> int | None:
    """``SLURM_CPUS_PER_TASK``: CPUs of one task: of this rank, or of it and others (``task_is_rank``)."""
    said = os.environ.get("SLURM_CPUS_PER_TASK", "")
    return int(said) or None if said.isdigit() else None


def task_is_rank() -> bool:
    """Whether a task of Slurm's is a rank: not where it is torchrun, which starts several and says so."""
    return not ("TORCHELASTIC_RUN_ID" in os.environ and "LOCAL_WORLD_SIZE" in os.environ)


def launch() -> list[str]:
    """What torchrun, Slurm or whoever set the address of the first rank calls this start of a job; else nothing."""
    for names in _LAUNCHES:
        values = [os.environ.get(name, "") for name in names]
        if all(values) and values != ["none"]:
            return values
    return []


# -- what is said to others ----------------------------------------------------------------------------------


def of_host(runtime_dir: str) -> dict[str, str]:
    """The environment of a shared host that is started in ``runtime_dir``."""
    # It does no linear algebra: numpy would start threads for that, and take memory for each.
    return {**os.environ, "HEADRACE_RUNTIME_DIR": runtime_dir, "OPENBLAS_NUM_THREADS": "1"}


def quiet_nixl() -> None:
    """``NIXL_LOG_LEVEL``: said to NIXL, which reads it when it is first imported, where nobody else has."""
    os.environ.setdefault("NIXL_LOG_LEVEL", "error")


def one_opencv_thread() -> None:
    """``OPENCV_FOR_THREADS_NUM``: said to OpenCV, which reads it when it is first imported."""
    os.environ["OPENCV_FOR_THREADS_NUM"] = "1"
