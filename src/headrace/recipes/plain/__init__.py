"""Recipes as plain data and back: what a definition is made of, in dicts, lists, strings and numbers alone.

Fingerprints and plain data have one description of a step, its options (``op.options_of``), whose names are as fixed
as the fingerprints on users' disks. They cannot be one beyond that: a fingerprint says what something is, and plain
data how to make it again. So user code is digested by its code and written by its import path, a source is
digested by its samples and written by its arguments. Steps that are made of others are digested by position, which
cannot change any more, and written by name.

``registry`` has the names of steps, ``writing`` and ``reading`` go over a recipe by the types of its options,
``values`` are those of any type, and ``code`` is what the user wrote. Nothing is imported for a document, unless
``trust_code`` says so.
"""

from headrace.recipes.plain.reading import from_plain, source_from_plain
from headrace.recipes.plain.writing import source_to_plain, to_plain

__all__ = ["from_plain", "source_from_plain", "source_to_plain", "to_plain"]
