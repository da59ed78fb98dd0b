"""Datasets on this machine's disk: fetched once, unpacked, checked, shared by all jobs, under a quota."""

from headrace.datastore.care import Dataset, Overview, evict, overview, pin, set_quota
from headrace.datastore.errors import (
    BadArchive,
    DataError,
    FetchFailed,
    NoRoom,
    NoSuchDataset,
    SourceChanged,
    Stopped,
    UnsafeArchive,
)
from headrace.datastore.fetcher import Progress
from headrace.datastore.store import Store
from headrace.datastore.stored import stored
from headrace.datastore.verify import Fault, repair, verify

__all__ = [
    "BadArchive",
    "DataError",
    "Dataset",
    "Fault",
    "FetchFailed",
    "NoRoom",
    "NoSuchDataset",
    "Overview",
    "Progress",
    "SourceChanged",
    "Stopped",
    "Store",
    "UnsafeArchive",
    "evict",
    "overview",
    "pin",
    "repair",
    "set_quota",
    "stored",
    "verify",
]
