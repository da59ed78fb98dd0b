"""``headrace profile``."""

from __future__ import annotations

import contextlib
import sys

import msgspec

from headrace.cli.bar import Bar
from headrace.cli.find_recipe import find_recipe
from headrace.cli.show_profile import show_profile
from headrace.core.errors import OptionError
from headrace.core.forms import Form
from headrace.measure import forget_profile, load_profile, save_profile, take_profile


def profile(text: str, seconds: float, *, as_json: bool, forget: bool) -> int:
    """Measure a recipe, keep what was found and show it; or forget it."""
    with contextlib.redirect_stdout(sys.stderr):  # what the user's own code prints is no result
        recipe = find_recipe(text)
    if forget:
        print("forgotten" if forget_profile(recipe) else "there was nothing to forget")
        return 0
    with Bar("profile") as bar, contextlib.redirect_stdout(sys.stderr):
        found = take_profile(recipe, seconds, bar)
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
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        print(show_profile(found, kept))
    return 0
