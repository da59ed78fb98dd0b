"""What a bucket is opened with: options as the library takes them, and credentials, which are kept to themselves."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from multiprocessing.context import get_spawning_popen
from typing import Any

from headrace.core.errors import OptionError

_CLIENT = frozenset(
    (
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "default_headers",
        "http1_only",
        "http2_keep_alive_interval",
        "http2_keep_alive_timeout",
        "http2_keep_alive_while_idle",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_url",
        "proxy_ca_certificate",
        "proxy_excludes",
        "root_certificate",
        "randomize_addresses",
        "read_timeout",
        "timeout",
        "user_agent",
    )
)
"""Options of the connection; all others are the bucket's own."""
_PUBLIC = frozenset(
    (
        "endpoint",
        "endpoint_url",
        "aws_endpoint_url",
        "aws_endpoint",
        "aws_endpoint_url_s3",
        "region",
        "default_region",
        "profile",
        "skip_signature",
        "virtual_hosted_style_request",
        "request_payer",
        "unsigned_payload",
        "imdsv1_fallback",
        "s3_express",
        "account_name",
        "azure_storage_account_name",
        "container_name",
        "use_emulator",
        "use_azure_cli",
        "use_fabric_endpoint",
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "read_timeout",
        "timeout",
        "http1_only",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "randomize_addresses",
        "user_agent",
    )
)
"""Options that anybody may see, and that belong to a dataset's definition. All others count as secret."""


class Options:
    """Options of a bucket. The secret ones are in no text, digest or file that is made of it.

    They travel to a process that is being started, and in no other pickle: a copy that was read back without them
    uses the credentials of the environment.
    """

    __slots__ = ("_public", "_secret", "digest")

    def __init__(self, given: Mapping[str, Any] | None = None) -> None:
        options = dict(given or {})
        for name in options:
            if not isinstance(name, str):
                raise OptionError(f"storage_options: the name {name!r} is no text")
        lower = {name.lower(): value for name, value in options.items()}
        self._public = {name: value for name, value in lower.items() if name in _PUBLIC}
        for name, value in self._public.items():
            if not isinstance(value, str | bool | int | float):
                raise OptionError(f"storage_options: {name} is of type {type(value).__name__}; expected text")
            if "endpoint" in name and "@" in str(value):
                raise OptionError(f"storage_options: {name} must not have a user or a password in it")
        self._secret = {name: value for name, value in lower.items() if name not in _PUBLIC}
        text = json.dumps(self._public, sort_keys=True)
        self.digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        """Of the public ones."""

    def __reduce__(self) -> tuple[Any, ...]:
        secret = self._secret if get_spawning_popen() is not None else {}
        return Options, ({**self._public, **secret},)

    def __repr__(self) -> str:
        return f"Options({self._public}{', and secret ones' if self._secret else ''})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Options) and self.digest == other.digest and self._secret == other._secret

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def public(self) -> dict[str, Any]:
        """What belongs to a dataset's definition."""
        return dict(self._public)

    @property
    def endpoint(self) -> str:
        """The server that was said, if one was."""
        return next((str(value) for name, value in self._public.items() if "endpoint" in name), "")

    def config(self) -> dict[str, Any]:
        """The bucket's own options."""
        mine = {**self._public, **self._secret}
        return {
            name: _text(value) for name, value in mine.items() if name not in _CLIENT and name != "profile"
        }

    def client(self) -> dict[str, Any]:
        """Those of the connection."""
        mine = {**self._public, **self._secret}
        return {name: value for name, value in mine.items() if name in _CLIENT}

    def has_credentials(self) -> bool:
        """Whether they were given here."""
        words = ("key", "token", "sas", "credential", "service_account", "client_secret")
        given = any(any(word in name for word in words) for name in self._secret)
        return given or bool(self._public.get("skip_signature"))

    @property
    def profile(self) -> str:
        """The AWS profile that was asked for; empty: none."""
        return str(self._public.get("profile", ""))


def _text(value: Any) -> Any:
    """As the library takes it: numbers as text."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
