"""The disk tier: samples on a disk of this machine, by key, for all jobs and for the next start."""

from headrace.cache.disk.speed import read_speed
from headrace.cache.disk.tier import LEAST, DiskTier, OpenDisk

__all__ = ["LEAST", "DiskTier", "OpenDisk", "read_speed"]
