"""``headrace profile``."""

from __future__ import annotations

import argparse
import contextlib
import sys

import msgspec

from headrace.cli.arguments import seconds
from headrace.cli.find_recipe import find_recipe
from headrace.cli.show_profile import show_profile
from headrace.core.bar import Bar
from headrace.core.errors import OptionError
from headrace.core.forms import Form
from headrace.measure import forget_profile, load_profile, save_profile, take_profile


def describe(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.description = (
        "Measure storage, CPU, sizes and memory for a recipe on this machine, show what limits it, and "
        "keep the figures for the next start of a loader."
    )
    parser.add_argument(
        "recipe",
        metavar="RECIPE",
        help="module:recipe, file.py:recipe (a Recipe, or a function that makes one), or a folder of images",
    )
    parser.add_argument(
        "--seconds", type=seconds, default=15.0, metavar="S", help="about how long to measure (default: 15)"
    )
    parser.add_argument("--json", action="store_true", help="print all numbers as JSON")
    parser.add_argument("--forget", action="store_true", help="remove what was kept, and measure nothing")


def run(options: argparse.Namespace) -> int:
    """Measure a recipe, keep what was found and show it; or forget it."""
    with contextlib.redirect_stdout(sys.stderr):  # what the user's own code prints is no result
        recipe = find_recipe(options.recipe)
    if options.forget:
        print("forgotten" if forget_profile(recipe) else "there was nothing to forget")
        return 0
    with Bar("profile") as bar, contextlib.redirect_stdout(sys.stderr):
        found = take_profile(recipe, options.seconds, bar)
    kept = ""
    if not found.fingerprint:
        try:
            recipe.fingerprint(Form.AUGMENTED)
        except OptionError as error:
            kept = f"not kept: a step of the recipe cannot be told from another: {error}"
    else:
        try:
            kept = str(save_profile(found))
            found = load_profile(recipe) or found  # with what jobs have learned
        except OSError as error:
            kept = f"not kept: {error}"
            print(f"headrace: the profile could not be kept: {error}", file=sys.stderr)
    if options.json:
        print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        print(show_profile(found, kept))
    return 0
