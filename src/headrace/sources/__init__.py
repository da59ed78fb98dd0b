"""Where samples lie: sources read the encoded bytes of many samples at once."""

from headrace.sources.archives import ShardSource, TableSource, shards, table
from headrace.sources.arrow import ArrowSource, hf
from headrace.sources.folders import IMAGE_EXTENSIONS, files, folder
from headrace.sources.identity import identities
from headrace.sources.local import FileReader, FileSource
from headrace.sources.location import Locating, Location, LocationReader, locating
from headrace.sources.simulated import SyntheticSource, synthetic
from headrace.sources.source import Source

__all__ = [
    "IMAGE_EXTENSIONS",
    "ArrowSource",
    "FileReader",
    "FileSource",
    "Locating",
    "Location",
    "LocationReader",
    "ShardSource",
    "Source",
    "SyntheticSource",
    "TableSource",
    "files",
    "folder",
    "hf",
    "identities",
    "locating",
    "shards",
    "synthetic",
    "table",
]
