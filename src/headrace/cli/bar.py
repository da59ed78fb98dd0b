"""The progress bar of commands: the one that everybody has."""

from headrace.core.bar import Bar as Bar
