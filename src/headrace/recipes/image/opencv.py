"""OpenCV, imported when it is first used: JPEG recipes of crops and flips never do, and it takes 10 MB."""

from __future__ import annotations

import importlib
from typing import Any


class _Late:
    def __getattr__(self, name: str) -> Any:
        value = getattr(importlib.import_module("cv2"), name)
        setattr(self, name, value)
        return value


cv2: Any = _Late()
