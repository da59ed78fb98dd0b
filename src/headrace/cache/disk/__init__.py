"""The disk tier: samples on a disk of this machine, by key, for all jobs and for the next start."""

from headrace.cache.disk.speed import read_speed
from headrace.cache.disk.tier import LEAST, DiskTier, OpenDisk
from headrace.cache.disk.upkeep import look_at, remove_all

__all__ = ["LEAST", "DiskTier", "OpenDisk", "look_at", "read_speed", "remove_all"]
