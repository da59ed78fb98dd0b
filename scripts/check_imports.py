#!/usr/bin/env python3
"""Names the import circles among a package's modules, those that are there for types alone included.

import-linter keeps the layers and leaves imports under ``if TYPE_CHECKING:`` out. But modules that need each other
for their types cannot be understood one without the other, either.
"""

from __future__ import annotations

import sys

import grimp


def circles(package: str) -> list[list[str]]:
    """The shortest circle through each import that lies on one, each circle once."""
    graph = grimp.build_graph(package, exclude_type_checking_imports=False, cache_dir=None)
    found: dict[frozenset[str], list[str]] = {}
    for importer in sorted(graph.modules):
        for imported in sorted(graph.find_modules_directly_imported_by(importer)):
            way_back = graph.find_shortest_chain(imported, importer)
            if way_back:
                found.setdefault(frozenset(way_back), [importer, *way_back])
    return list(found.values())


def main() -> int:
    """Print what is found. The exit status is 1 where there is a circle."""
    package = sys.argv[1] if len(sys.argv) > 1 else "headrace"
    found = circles(package)
    for circle in found:
        print("import circle:", " -> ".join(circle))
    if not found:
        print(f"No import circle in {package}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
