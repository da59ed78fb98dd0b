"""OpenCV's own threads and forked workers."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest


@pytest.mark.slow
def test_workers_start_although_the_job_has_used_opencv_s_threads(tmp_path):
    """A fork leaves OpenCV's pool behind without its threads: whoever waits for them waits for ever."""
    program = textwrap.dedent(
        """
        import sys
        import cv2
        import numpy as np
        import headrace as hr

        rng = np.random.default_rng(0)
        paths = []
        for number in range(16):
            small = rng.integers(0, 255, (60, 80, 3), np.uint8)
            image = cv2.GaussianBlur(cv2.resize(small, (1000, 750), interpolation=cv2.INTER_CUBIC), (9, 9), 3)
            paths.append(f"{sys.argv[1]}/{number}.jpg")
            cv2.imwrite(paths[-1], image)
        augment = [hr.image.resize((64, 64)), hr.image.color_jitter(0.4, 0.4), hr.image.gaussian_blur(5)]
        recipe = hr.Recipe(hr.files(paths), hr.image.decode(), augment)
        for _ in range(3):
            with hr.DataLoader(recipe, batch_size=8, num_workers=2) as loader:
                assert sum(len(images) for images in loader) == 16
        print("whole")
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.strip() == "whole", done.stderr
