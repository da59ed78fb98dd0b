"""The C counterparts of what is called often on little data; None where they are not built, or switched off.

``HEADRACE_NATIVE=0`` switches them off, with the kernels for images.
"""

from __future__ import annotations

from headrace.core import environment

try:
    from headrace.core import _native
except ImportError:
    _native = None  # type: ignore[assignment]

calls = _native if environment.native() else None
