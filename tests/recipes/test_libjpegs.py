"""The libjpeg-turbo that the C kernels find: of every interface, with any headers; and what is said without one."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import site
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.recipes.image import kernels
from headrace.recipes.image.kernels import RowSpec, Workspace
from headrace.recipes.image.rowspec import STATUS_TRUNCATED
from tests.recipes.test_kernels import ENCODINGS, job_for, jpeg, native, picture


def libraries() -> list[str]:
    """Every libjpeg-turbo of this machine: Pillow's, the system's, torchvision's, and HEADRACE_TEST_LIBJPEGS."""
    found = [path for path in os.environ.get("HEADRACE_TEST_LIBJPEGS", "").split(":") if path]
    for place in map(Path, site.getsitepackages()):
        found += [str(path) for path in place.glob("*.libs/libjpeg*.so*")]
    found += ["libjpeg.so.62", "libjpeg.so.7", "libjpeg.so.8"]
    usable = []
    for path in found:
        with contextlib.suppress(OSError):
            ctypes.CDLL(path)
            usable.append(path)
    return usable


@native
@pytest.mark.parametrize("interface", [62, 70, 80])
def test_libraries_of_every_interface_decode_alike(interface: int) -> None:
    blobs = [blob for name, blob in ENCODINGS.items() if "97x75" in name]
    origins = np.full((len(blobs), 2), 19, np.int32)
    spec, box = RowSpec(30, 40), (3.5, 5, 90, 66)
    jobs = np.concatenate([job_for(blob, box, (0, 0, 97, 75)) for blob in blobs])

    def everything() -> list[NDArray[Any]]:
        ws = Workspace()
        wholes = np.empty((len(blobs), 75, 97, 3), np.uint8)
        assert not kernels.decode_many(ws, blobs, None, list(wholes)).any()
        parts = np.empty((len(blobs), 25, 33, 3), np.uint8)
        assert not kernels.decode_many(ws, blobs, None, list(parts), origins=origins).any()
        assert np.array_equal(parts, wholes[:, 19:44, 19:52])
        rows = np.empty((len(blobs), *spec.shape), np.uint8)
        assert not kernels.rows_many(ws, blobs, jobs, rows, spec).any()
        cut = blobs[0][:-200]
        assert kernels.decode_many(ws, [cut], None, [wholes[0].copy()]).tolist() == [STATUS_TRUNCATED]
        return [wholes, rows]

    expected, tried = everything(), 0
    try:
        for path in libraries():
            if kernels.load_libjpeg(path) == interface:
                tried += 1
                for ours, theirs in zip(expected, everything(), strict=True):
                    # (releases differ in how they upsample; interfaces do not)
                    apart = np.abs(ours.astype(int) - theirs.astype(int))
                    assert apart.mean() < 0.5, f"{path}: {apart.mean()} on average, {apart.max()} at most"
    finally:
        kernels.load_libjpeg(kernels.LIBJPEG)
    if not tried:
        pytest.skip(f"no libjpeg-turbo of interface {interface} here; name one in HEADRACE_TEST_LIBJPEGS")


@native
def test_what_is_no_libjpeg_is_refused() -> None:
    with pytest.raises(OSError, match="no libjpeg-turbo"):
        kernels.load_libjpeg("libm.so.6")
    with pytest.raises(OSError):
        kernels.load_libjpeg("/nowhere/libjpeg.so")
    from headrace.recipes.image import _kernels

    with pytest.raises(ValueError, match="one address"):
        _kernels.load("nothing", ())


_FIELDS = {
    ("JpegErrors", "jpeg_error_mgr"): "error_exit emit_message output_message format_message reset_error_mgr "
    "msg_code msg_parm trace_level num_warnings jpeg_message_table last_jpeg_message addon_message_table "
    "first_addon_message last_addon_message",
    ("JpegSource", "jpeg_source_mgr"): "next_input_byte bytes_in_buffer init_source fill_input_buffer "
    "skip_input_data resync_to_restart term_source",
    (
        "JpegProgress",
        "jpeg_progress_mgr",
    ): "progress_monitor pass_counter pass_limit completed_passes total_passes",
    ("JpegInfo", "jpeg_decompress_struct"): "err progress is_decompressor src image_width image_height "
    "num_components jpeg_color_space out_color_space scale_num scale_denom buffered_image raw_data_out dct_method "
    "do_fancy_upsampling do_block_smoothing quantize_colors output_width output_height out_color_components "
    "output_components rec_outbuf_height colormap output_scanline input_scan_number output_iMCU_row coef_bits "
    "quant_tbl_ptrs ac_huff_tbl_ptrs data_precision",
}


def test_our_declarations_are_those_of_every_interface(tmp_path: Path) -> None:
    """Where a header of libjpeg is installed; none is needed to build."""
    compiler, image = shutil.which("gcc") or shutil.which("cc"), Path(kernels.__file__).parent
    assert not any("jpeglib.h" in path.read_text() for path in image.glob("*.c"))
    checks = [
        f"_Static_assert(offsetof({ours}, {field}) == offsetof(struct {theirs}, {field}) && "
        f'sizeof((({ours} *)0)->{field}) == sizeof(((struct {theirs} *)0)->{field}), "{ours}.{field}");'
        for (ours, theirs), fields in _FIELDS.items()
        for field in fields.split()
    ]
    checks.append('_Static_assert(sizeof(JpegErrors) == sizeof(struct jpeg_error_mgr), "errors");')
    checks.append('_Static_assert(sizeof(struct jpeg_decompress_struct) <= MOST_INFO, "room");')
    for version in (62, 70, 80):
        lines = [
            *("#include <stdio.h>", "#include <jconfig.h>", "#define JCONFIG_INCLUDED"),
            *("#undef JPEG_LIB_VERSION", f"#define JPEG_LIB_VERSION {version}"),
            *("#include <jpeglib.h>", '#include "libjpeg.h"', *checks),
        ]
        (tmp_path / "check.c").write_text("\n".join(lines) + "\n")
        command = [str(compiler), "-fsyntax-only", f"-I{image}", str(tmp_path / "check.c")]
        result = subprocess.run(command, capture_output=True, text=True) if compiler else None
        if result is None or "No such file" in result.stderr:
            pytest.skip("no C compiler, or no header of libjpeg")
        assert result.returncode == 0, result.stderr


_LOADS = """
import sys, warnings
import cv2, numpy as np
import headrace as hr
from headrace.recipes.image import kernels

if __name__ == "__main__":
    folder = sys.argv[1]
    recipe = hr.Recipe(source=hr.folder(folder), decode=hr.image.decode(), augment=[hr.image.resize((8, 8))])
    for _ in range(2):
        with hr.DataLoader(recipe, batch_size=2, num_workers=2, multiprocessing_context="spawn") as loader:
            assert sum(len(labels) for _, labels in loader) == 4
    print(kernels.slow_path())
"""


@pytest.mark.slow
@pytest.mark.parametrize("wanted", [False, True], ids=["not built", "switched off"])
def test_the_slow_path_is_named_once_with_its_remedy(tmp_path: Path, wanted: bool) -> None:
    (tmp_path / "photos/class").mkdir(parents=True)
    for number in range(4):
        (tmp_path / f"photos/class/{number}.jpg").write_bytes(jpeg(picture(20, 20, number)))
    # the package as it is where there was no compiler
    here = Path(kernels.__file__).parents[2]
    shutil.copytree(here, tmp_path / "headrace", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (tmp_path / "job.py").write_text(_LOADS)
    result = subprocess.run(
        [sys.executable, tmp_path / "job.py", tmp_path / "photos"],
        env={**os.environ, "PYTHONPATH": str(tmp_path), **({"HEADRACE_NATIVE": "0"} if wanted else {})},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert result.returncode == 0, result.stderr
    said = result.stderr.count("images are decoded by slower kernels in Python")
    assert said == (0 if wanted else 1), result.stderr
    if not wanted:
        assert "are not built" in result.stdout
        assert "install headrace from a wheel" in result.stdout


def test_the_slow_path_names_every_libjpeg_that_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    if not kernels.NATIVE:
        pytest.skip("no C kernels")
    monkeypatch.delenv("HEADRACE_LIBJPEG", raising=False)
    monkeypatch.setattr(kernels, "_candidates", lambda: iter(["/nowhere/libjpeg.so", "libm.so.6"]))
    path, why = kernels._load()
    assert path == ""
    assert "/nowhere/libjpeg.so" in why
    assert "libm.so.6 is no libjpeg-turbo" in why
    monkeypatch.setattr(kernels, "NATIVE", False)
    monkeypatch.setattr(kernels, "_WHY_NOT", why)
    monkeypatch.setattr(kernels, "_said", False)
    with pytest.warns(RuntimeWarning, match="pip install pillow"):
        kernels.say_slow_path()
