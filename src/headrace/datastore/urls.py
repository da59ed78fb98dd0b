"""URLs without what is secret in them, and the names that things have by their URLs."""

from __future__ import annotations

import os
import re
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

_SECRET = re.compile(
    r"sig|token|key|secret|passw|credential|auth|expires|policy|^x-(amz|goog|ms)-|googleaccessid"
    r"|^(se|sp|sv|sr|st|spr|ske|skt|sks|skv|sdd|si)$",
    re.IGNORECASE,
)
"""Names of parameters of signed URLs, of all the large clouds, and what else looks like one."""


def public_url(url: str) -> str:
    """The URL without user, password and signature: what may be kept and shown.

    >>> public_url("https://me:word@host/a.tar?version=2&X-Amz-Signature=abc")
    'https://host/a.tar?version=2'
    """
    if "://" not in url:
        return url
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    query = parts.query
    said = parse_qsl(query, keep_blank_values=True)
    if any(_SECRET.search(name) for name, _ in said):
        query = urlencode([(name, value) for name, value in said if not _SECRET.search(name)])
    return urlunsplit((parts.scheme, host, parts.path, query, ""))


def normal_url(url: str | os.PathLike[str]) -> str:
    """A URL as it is, without ``#...``; a path as an absolute one, ``file://`` or not."""
    text = os.fspath(url)
    if text.startswith("file://"):
        return os.path.abspath(unquote(urlsplit(text).path))
    return text.partition("#")[0] if "://" in text else os.path.abspath(os.path.expanduser(text))


def file_name(url: str) -> str:
    """The last part of a URL's path, or of a path."""
    path = unquote(urlsplit(url).path) if "://" in url else url
    name = os.path.basename(path.rstrip("/"))
    return re.sub(r"[\0/]", "_", name) if name not in ("", ".", "..") else "data"


def good_name(name: str) -> bool:
    """Whether a dataset may be called so: it names a folder, and stands on command lines."""
    return re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}", name) is not None
