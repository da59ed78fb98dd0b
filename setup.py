"""Builds the optional C kernels; everything else is in pyproject.toml."""

import os
from glob import glob

from setuptools import Extension, setup

kernels = Extension(
    "headrace.recipes.image._native",
    sources=sorted(glob("src/headrace/recipes/image/*.c")),
    depends=sorted(glob("src/headrace/recipes/image/*.h")),
    # Contraction to fused multiply-add would make float results depend on the machine.
    extra_compile_args=["-O3", "-std=c11", "-fvisibility=hidden", "-ffp-contract=off"],
    libraries=["dl", "m"],
    optional=not os.environ.get("HEADRACE_REQUIRE_NATIVE"),
)
setup(ext_modules=[kernels])
