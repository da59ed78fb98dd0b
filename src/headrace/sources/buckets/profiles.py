"""Credentials of AWS's own files, which the library does not read: profiles in ``~/.aws``."""

from __future__ import annotations

import configparser
import contextlib
import importlib
from typing import Any

from headrace.core import environment
from headrace.core.errors import OptionError

_KEYS = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
}
_MORE = ("sso_session", "sso_start_url", "role_arn", "credential_process", "source_profile", "login_session")
"""What only AWS's own library makes credentials of."""


def from_profile(asked: str = "") -> tuple[dict[str, Any], Any]:
    """Options of the profile that was asked for, in the environment or here, and who provides credentials if they are
    not plain keys. Both may be empty: then there are other places to look."""
    said = asked or environment.aws_profile()
    if not asked and environment.aws_keys():
        return {}, None  # they come first, as with AWS's own tools
    name = said or "default"
    credentials, config = environment.aws_files()
    section = {**_section(config, name, prefixed=True), **_section(credentials, name)}
    if not section:
        if said:
            raise OptionError(
                f"there is no AWS profile {name!r} in {credentials} or {config}; name one of those that are there in "
                "AWS_PROFILE or storage_options={'profile': ...}"
            )
        return {}, None
    out: dict[str, Any] = {}
    if "region" in section and not environment.aws_region():
        out["region"] = section["region"]
    if "endpoint_url" in section and not environment.aws_endpoint():
        out["endpoint"] = section["endpoint_url"]
    if "aws_access_key_id" in section:
        out.update({ours: section[theirs] for theirs, ours in _KEYS.items() if section.get(theirs)})
        return out, None
    if any(word in section for word in _MORE):
        return out, _boto3(name)
    return out, None


def _section(path: str, name: str, *, prefixed: bool = False) -> dict[str, str]:
    parser = configparser.RawConfigParser(strict=False)
    with contextlib.suppress(OSError, configparser.Error, UnicodeDecodeError):
        parser.read(path, encoding="utf-8")
    for section in (f"profile {name}", name) if prefixed else (name,):
        if parser.has_section(section):
            return dict(parser.items(section))
    return {}


def _boto3(name: str) -> Any:
    try:
        boto3 = importlib.import_module("boto3")
        provider = importlib.import_module("obstore.auth.boto3")
    except ImportError:
        raise OptionError(
            f"the AWS profile {name!r} has no keys of its own but a role or a login, which boto3 makes keys of: pip "
            "install boto3, or put keys into the environment (aws configure export-credentials --format env)"
        ) from None
    return provider.Boto3CredentialProvider(boto3.session.Session(profile_name=name))
