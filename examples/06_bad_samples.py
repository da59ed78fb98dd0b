"""Broken files: named, counted, and handled as you say: raise, skip, or substitute."""

from __future__ import annotations

from pathlib import Path

import headrace as hr
from _data import image_folder, picture_path


def break_two(root: Path) -> None:
    """Cut one file short and fill another with something else."""
    cut = picture_path(root, 11)
    cut.write_bytes(cut.read_bytes()[:900])
    picture_path(root, 42).write_bytes(b"<html>404 not found</html>")


def main() -> None:
    """The same broken folder under each rule."""
    with image_folder(96) as root:
        break_two(root)
        recipe = hr.Recipe(
            hr.folder(root), decode=hr.image.decode(), augment=[hr.image.random_resized_crop(32)]
        )
        try:
            for _ in hr.DataLoader(recipe, batch_size=32):
                pass
        except hr.SampleError as error:
            print("raise (the default):", error.bad.name.removeprefix(str(root)), "-", error.bad.reason)

        for rule in ("skip", "substitute"):
            with hr.DataLoader(recipe, batch_size=32, on_error=rule, error_budget=5) as loader:
                sizes = [len(labels) for _, labels in loader]
                print(f"{rule}: batches of {sizes}")
        for bad in loader.bad_samples:
            print(f"  sample {bad.index}: {bad.reason}")

        try:
            with hr.DataLoader(recipe, batch_size=32, on_error="skip", error_budget=1) as loader:
                for _ in loader:
                    pass
        except hr.TooManyBadSamples as error:
            print("over the budget:", str(error).splitlines()[0])


if __name__ == "__main__":
    main()
