"""What a bucket's answers mean: whose fault it is, and what to do. Nothing of the library's own text is passed on, as
that may have URLs with signatures in it."""

from __future__ import annotations

import errno
import re
from urllib.parse import urlsplit

from headrace.core.errors import HeadraceError, NotNow

_STATUS = re.compile(r"status(?: code)?: (\d{3})|HTTP status [a-z ]*\((\d{3})")
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")
_KIND = re.compile(r"kind: (Timeout|Interrupted|Connect|Request|Decode|Unknown)\b")
_BUSY = frozenset((408, 425, 429, 500, 502, 503, 504, 509))
_METADATA = ("169.254.169.254", "169.254.170.2", "metadata.google.internal", "fd00:ec2::254")
_NO_RIGHTS = {
    "InvalidAccessKeyId": "it does not know the access key",
    "SignatureDoesNotMatch": "the secret key does not belong to the access key",
    "ExpiredToken": "the credentials have expired",
    "TokenRefreshRequired": "the credentials have expired",
    "InvalidToken": "the session token is not valid",
    "RequestTimeTooSkewed": "the clock of this machine is wrong",
}
_LOOK = {
    "s3": "look at AWS_ACCESS_KEY_ID, AWS_PROFILE or storage_options=, and at the bucket's policy (s3:GetObject and "
    "s3:ListBucket; without the latter, an object that does not exist is denied, too). A public bucket: "
    'storage_options={"skip_signature": True}',
    "gs": "look at GOOGLE_APPLICATION_CREDENTIALS, `gcloud auth application-default login` or storage_options=, and "
    'at the rights on the bucket. A public bucket: storage_options={"skip_signature": True}',
    "az": "look at AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY (or the SAS token, or the identity) or "
    'storage_options=, and at the rights on the container. A public one: storage_options={"skip_signature": True}',
    "http": "the server wants credentials, or the path is not public",
}


class Changed(OSError):
    """An object is no longer the one that was listed."""


def changed(url: str) -> Changed:
    """The error for an object that was replaced since it was listed."""
    return Changed(
        errno.EREMCHG,
        "the object was changed since it was listed, so it is another sample than the one that is meant; list the "
        "bucket anew with refresh=True",
        url,
    )


def ends_early(url: str, stop: int) -> OSError:
    """The error for a part of an object that has fewer bytes."""
    return OSError(errno.ENODATA, f"it ends before byte {stop}", url)


def translate(error: BaseException, url: str, kind: str) -> Exception:
    """What an error of the library's means for whoever asked for the object. Interrupts are raised again."""
    if isinstance(error, HeadraceError) or (isinstance(error, OSError) and error.errno is not None):
        return error  # (our own: those of the library have no number)
    name = type(error).__name__
    if not isinstance(error, Exception) and name != "PanicException":
        raise error
    text = str(error)
    status, code = _status(text), _CODE.search(text)
    said = code[1] if code else ""
    if any(place in text for place in _METADATA):
        return PermissionError(errno.EACCES, f"no credentials were found for it; {_LOOK[kind]}", url)
    if isinstance(error, FileNotFoundError) or status == 404:
        what = "bucket" if said in ("NoSuchBucket", "ContainerNotFound") else "object"
        return FileNotFoundError(errno.ENOENT, f"there is no such {what}", url)
    if status in (401, 403) or name in ("PermissionDeniedError", "UnauthenticatedError"):
        why = _NO_RIGHTS.get(said, "access is denied")
        return PermissionError(errno.EACCES, f"{why} ({said or status or 403}); {_LOOK[kind]}", url)
    if status in _BUSY:
        return NotNow(f"{url}: status {status} {said}".rstrip(), paced=True)
    if status == 416:
        return OSError(errno.ENODATA, "it ends before the part that was asked for", url)
    if status in (301, 307, 308) or said in ("AuthorizationHeaderMalformed", "PermanentRedirect"):
        return OSError(
            errno.EINVAL, 'the bucket lies in another region; pass storage_options={"region": ...}', url
        )
    if isinstance(error, ValueError):
        return OSError(errno.EINVAL, "the library cannot read an object of this name", url)
    trouble = _KIND.search(text)
    if status is None and trouble:
        words = {"Timeout": "no answer in time", "Connect": f"no connection to {_host(text)}"}
        return NotNow(f"{url}: {words.get(trouble[1], 'the connection was lost')}", paced=True)
    return OSError(errno.EIO, f"storage gave no answer that can be used ({name} {status or ''} {said})", url)


def _status(text: str) -> int | None:
    found = _STATUS.search(text)
    return int(found[1] or found[2]) if found else None


def _host(text: str) -> str:
    found = re.search(r"https?://[^\s/\"]+", text)
    return (urlsplit(found[0]).hostname or "the server") if found else "the server"


def timed_out(error: BaseException) -> bool:
    """Whether the library gave up waiting."""
    found = _KIND.search(str(error))
    return found is not None and found[1] == "Timeout"
