"""Builds what is in C; everything else is in pyproject.toml.

That needs a C compiler and Python's headers, and no library. One build serves every Python from 3.11 on, except
those without a GIL, which have no stable interface yet. Without a compiler headrace installs with slower counterparts
in Python; HEADRACE_REQUIRE_NATIVE=1 fails instead.
"""

import os
import sysconfig
from glob import glob

from setuptools import Extension, setup

stable = not sysconfig.get_config_var("Py_GIL_DISABLED")


def extension(name: str, folder: str) -> Extension:
    """The module made of the C files of a folder."""
    return Extension(
        name,
        sources=sorted(glob(f"{folder}/*.c")),
        depends=sorted(glob(f"{folder}/*.h")),
        define_macros=[("Py_LIMITED_API", "0x030B0000")] if stable else [],
        py_limited_api=stable,
        # Contraction to fused multiply-add would make float results depend on the machine.
        extra_compile_args=["-O3", "-std=c11", "-fvisibility=hidden", "-ffp-contract=off"],
        libraries=["m"],
        optional=not os.environ.get("HEADRACE_REQUIRE_NATIVE"),
    )


setup(
    ext_modules=[
        extension("headrace.core._native", "src/headrace/core"),
        extension("headrace.recipes.image._kernels", "src/headrace/recipes/image"),
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if stable else {},
)
