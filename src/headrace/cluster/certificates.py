"""Certificates of node servers: made at each start, signed by nobody, and known by their fingerprints."""

from __future__ import annotations

import datetime
import os
import ssl
import tempfile

from headrace.channel.wire import fingerprint_of, server_context
from headrace.core.errors import MissingExtra

_DAYS = 3650


def make_certificate(name: str) -> tuple[ssl.SSLContext, str]:
    """A context for a server of this name, and the fingerprint by which others know it."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise MissingExtra("cryptography", "ray", "a node server") from None
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"headrace {name}"[:64])])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=_DAYS))
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    # (Python takes them from files alone; the folder is this user's, and gone at once)
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        paths = os.path.join(folder, "certificate.pem"), os.path.join(folder, "key.pem")
        for path, content in zip(
            paths, (certificate.public_bytes(serialization.Encoding.PEM), secret), strict=True
        ):
            with open(path, "wb", opener=_private) as file:
                file.write(content)
        context = server_context(*paths)
    return context, fingerprint_of(certificate.public_bytes(serialization.Encoding.DER))


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
