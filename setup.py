"""Builds the optional C kernels; everything else is in pyproject.toml."""

import os

from setuptools import Extension, setup

kernels = Extension(
    "headrace.recipes.image._native",
    sources=["src/headrace/recipes/image/native.c"],
    extra_compile_args=["-O3", "-std=c11", "-fvisibility=hidden"],
    libraries=["dl", "m"],
    optional=not os.environ.get("HEADRACE_REQUIRE_NATIVE"),
)
setup(ext_modules=[kernels])
