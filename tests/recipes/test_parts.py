"""Parts of recipes: lengths, subsets and splits."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import headrace as hr
from headrace.core.forms import Form
from headrace.sources import identities
from tests.loader.helpers import images, jpeg_folder, recipe


def indices(part: hr.Recipe) -> list[int]:
    """The samples of a part, known by their targets."""
    assert part.source.targets is not None
    return [int(target) for target in part.source.targets]


def test_a_recipe_has_a_length_and_is_always_true() -> None:
    assert len(recipe(7)) == 7
    assert recipe(7).subset([])  # (it is something, if with nothing in it)


def test_a_recipe_makes_no_samples_by_itself() -> None:
    with pytest.raises(TypeError, match=r"loader\.dataset\[i\]"):
        recipe(7)[0]


def test_subsets_keep_what_samples_are() -> None:
    whole = recipe(10)
    part = whole.subset([7, 2, -1])
    assert indices(part) == [7, 2, 9]
    assert [part.source.name(at) for at in range(3)] == [whole.source.name(at) for at in (7, 2, 9)]
    assert part.source.read_many([0, 2]) == whole.source.read_many([7, 9])
    assert np.array_equal(identities(part.source), identities(whole.source)[[7, 2, 9]])
    assert whole.share_key(Form.DECODED) == part.share_key(Form.DECODED)
    assert whole.fingerprint(Form.DECODED) != part.fingerprint(Form.DECODED)
    assert part.fingerprint(Form.DECODED) == whole.subset([7, 2, 9]).fingerprint(Form.DECODED)
    again = part.subset(np.array([2, 0]))
    assert indices(again) == [9, 7]
    assert again.fingerprint(Form.DECODED) == whole.subset([9, 7]).fingerprint(Form.DECODED)
    assert indices(pickle.loads(pickle.dumps(part))) == [7, 2, 9]
    with pytest.raises(IndexError):
        part.source.read_many([3])


def test_subsets_of_files_keep_their_classes(tmp_path) -> None:
    whole = images(jpeg_folder(tmp_path))
    part = whole.subset([0, 5])
    assert part.source.classes == whole.source.classes  # type: ignore[attr-defined]
    assert part.source.encoded
    assert np.array_equal(identities(part.source), identities(whole.source)[[0, 5]])


@pytest.mark.parametrize("wrong", [[10], [-11], [0.5], [True, False], [[1]], "ab"])
def test_what_is_no_subset_is_refused(wrong: object) -> None:
    with pytest.raises(hr.OptionError, match="subset"):
        recipe(10).subset(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("parts", "sizes"),
    [((0.9,), [90, 10]), ((0.5, 0.25), [50, 25, 25]), ((0.8, 0.1, 0.1), [80, 10, 10]), ((30,), [30, 70]),
     ((30, 70), [30, 70]), ((1.0,), [100]), ((1 / 3, 1 / 3, 1 / 3), [33, 33, 34])],
)  # fmt: skip
def test_splits_have_every_sample_once(parts: tuple[float, ...], sizes: list[int]) -> None:
    found = recipe(100).split(*parts)
    assert [len(part) for part in found] == sizes
    assert sorted(index for part in found for index in indices(part)) == list(range(100))
    assert all(indices(part) == sorted(indices(part)) for part in found)


def test_splits_are_random_and_the_same_again() -> None:
    one, other = recipe(100).split(0.5), recipe(100).split(0.5, seed=0)
    assert indices(one[0]) == indices(other[0]) != list(range(50))
    assert indices(recipe(100).split(0.5, seed=1)[0]) != indices(one[0])
    assert indices(recipe(100).split(0.5, seed=None)[0]) == list(range(50))


@pytest.mark.parametrize(
    "wrong", [(), (0.0,), (-0.1,), (1.5,), (101,), (0.6, 0.6), ("0.9",), (True,), (0.001,), (0.999,)]
)
def test_splits_that_cannot_be_are_refused(wrong: tuple[float, ...]) -> None:
    with pytest.raises(hr.OptionError, match="split"):
        recipe(100).split(*wrong)
