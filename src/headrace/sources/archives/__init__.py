"""Samples in archives and tables: tar, zip, Parquet and Arrow files, with exact access to each sample."""

from headrace.sources.archives.shards import shards
from headrace.sources.archives.source import ShardSource
from headrace.sources.archives.table import table
from headrace.sources.archives.table_source import TableSource

__all__ = ["ShardSource", "TableSource", "shards", "table"]
