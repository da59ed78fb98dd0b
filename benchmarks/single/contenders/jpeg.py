"""simplejpeg into memory that is there already: fresh memory for each image costs page faults."""

from __future__ import annotations

from typing import Any

import numpy as np
import simplejpeg


class Decoder:
    """Decodes whole JPEG images; each result is valid until the next."""

    def __init__(self) -> None:
        self._buffer = np.empty(1 << 20, np.uint8)

    def decode(self, jpeg: bytes) -> np.ndarray[Any, Any]:
        """The image as RGB."""
        try:
            return simplejpeg.decode_jpeg(jpeg, buffer=self._buffer)
        except ValueError:
            height, width, *_ = simplejpeg.decode_jpeg_header(jpeg)
            if 3 * height * width <= len(self._buffer):
                raise
            self._buffer = np.empty(3 * height * width, np.uint8)
            return simplejpeg.decode_jpeg(jpeg, buffer=self._buffer)
