"""URLs of objects: which bucket, which key. Never one that carries credentials."""

from __future__ import annotations

import os
import re
from typing import NamedTuple
from urllib.parse import quote, unquote

from headrace.core.errors import OptionError

SCHEMES = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gs",
    "az": "az",
    "azure": "az",
    "adl": "az",
    "abfs": "az",
    "abfss": "az",
    "http": "http",
    "https": "http",
}
"""Kinds of storage by what URLs begin with."""
_URL = re.compile(r"([a-z0-9+.-]+)://([^/?#]*)(/?)(.*)", re.IGNORECASE | re.DOTALL)


class Url(NamedTuple):
    """A bucket (or a server), and what lies in it."""

    root: str
    """Scheme and bucket, without a slash at the end."""
    key: str
    """As the bucket has it: nothing in it is written as %20 or the like."""

    @property
    def kind(self) -> str:
        """One of the values of ``SCHEMES``."""
        return SCHEMES[self.root.partition("://")[0]]

    def __str__(self) -> str:
        return join(self.root, self.key) if self.key else self.root


def parse(what: str | bytes | os.PathLike[str]) -> Url:
    """The bucket and the key that a URL names. Raises ``OptionError`` for what is no URL of a bucket.

    What is wrong with it is shown without what might be a secret: user and password, or a signature.
    """
    text = os.fsdecode(what)
    found = _URL.fullmatch(text)
    scheme = found[1].lower() if found else ""
    if found is None or scheme not in SCHEMES or not found[2]:
        raise OptionError(
            f"{stripped(text)!r} is no URL of a bucket; expected s3://bucket/key, gs://bucket/key, "
            "az://container/key or https://server/path"
        )
    kind, server, key = SCHEMES[scheme], found[2], found[4]
    if "@" in server and scheme not in ("abfs", "abfss"):
        raise OptionError(
            f"{stripped(text)!r} was given with a user and a password in it; give credentials by the environment or "
            "storage_options="
        )
    if kind == "http":
        if "?" in key or "#" in key:
            raise OptionError(
                f"{stripped(text)!r} was given with a query behind it, such as a signature; only plain URLs can be "
                "read. Signed ones end soon: use s3://, gs:// or az:// with credentials"
            )
        key = unquote(key)
    return Url(f"{scheme}://{server}", key.rstrip("/") if key.endswith("/") else key)


def join(root: str, key: str) -> str:
    """The URL of a key in a bucket."""
    return f"{root}/{quote(key)}" if root.startswith("http") else f"{root}/{key}"


def stripped(text: str) -> str:
    """A URL without what may be secret in it."""
    scheme, colon, rest = text.partition("://")
    if not colon:
        return text
    server, slash, path = rest.partition("/")
    if scheme.lower() in ("http", "https") or "@" in server:
        path = path.partition("?")[0]
        server = server.partition("?")[0]
    return f"{scheme}://{server.rpartition('@')[2]}{slash}{path}"
