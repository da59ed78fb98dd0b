"""Photos as PIL decodes them, for steps that want PIL's own images."""

from __future__ import annotations

import io
from typing import Any


def pil_decode(data: bytes) -> Any:
    """What torchvision's ``pil_loader`` does, from bytes."""
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        return image.convert("RGB")
