"""Samples that cannot be prepared: named, and handled as the user said."""

import numpy as np
import pytest
import torch

import headrace as hr
from tests.loader.helpers import Squares, flat, images, index_of, jpeg_folder, targets

BAD = {5, 6, 21}


def picky(data):
    if index_of(data) in BAD:
        raise LookupError(f"no such thing as {index_of(data)}")
    return np.frombuffer(data, np.uint8)[:12].copy()


def make(decode=picky, size=32, **options):
    options = {"batch_size": 8, "num_workers": 2, **options}
    source = hr.synthetic.source(size, classes=size)
    return hr.DataLoader(hr.Recipe(source, decode=decode), **options)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_raise_names_the_sample_and_shows_where(num_workers):
    with make(num_workers=num_workers) as loader, pytest.raises(hr.SampleError) as caught:
        list(loader)
    bad = caught.value.bad
    assert (bad.index, bad.name, bad.reason) == (5, "synthetic:5", "LookupError: no such thing as 5")
    text = str(caught.value)
    assert "sample 5 (synthetic:5): LookupError: no such thing as 5" in text
    assert 'on_error="skip"' in text
    assert "in picky" in text, "the worker's traceback"


@pytest.mark.parametrize("num_workers", [0, 2])
def test_after_an_error_the_next_batch_can_be_asked_for(num_workers):
    found = []
    with make(num_workers=num_workers) as loader:
        iterator = iter(loader)
        for _ in range(5):
            try:
                found.append(next(iterator)[1].tolist())
            except hr.SampleError as error:
                found.append(error.bad.index)
            except StopIteration:
                break
    assert found == [5, list(range(8, 16)), 21, list(range(24, 32))]


@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize("cache", [None, "1MiB"])
def test_skip_leaves_them_out(num_workers, cache):
    with make(num_workers=num_workers, on_error="skip", error_budget=3, cache=cache) as loader:
        batches = list(loader)
        assert [labels.tolist() for _, labels in batches] == [
            [0, 1, 2, 3, 4, 7], list(range(8, 16)), [16, 17, 18, 19, 20, 22, 23], list(range(24, 32)),
        ]  # fmt: skip
        for values, labels in batches:
            for value, label in zip(values, labels.tolist(), strict=True):
                assert index_of(bytes(value.tolist())) == label, "values and targets stay together"
        assert [bad.index for bad in loader.bad_samples] == [5, 6, 21]
        assert loader.stats().bad_samples == 3
        assert flat(targets(loader)) == [index for index in range(32) if index not in BAD]
        assert len(loader.bad_samples) == 3, "the same samples in a second epoch count once"


@pytest.mark.parametrize("num_workers", [0, 2])
def test_substitute_keeps_batches_whole(num_workers):
    with make(num_workers=num_workers, on_error="substitute", error_budget=3) as loader:
        batches = [(values.clone(), labels.tolist()) for values, labels in loader]
    assert [len(labels) for _, labels in batches] == [8] * 4
    for values, labels in batches:
        assert not BAD & set(labels)
        for value, label in zip(values, labels, strict=True):
            assert index_of(bytes(value.tolist())) == label, "a stand-in brings its own target"
    assert set(flat(labels for _, labels in batches)) == set(range(32)) - BAD


@pytest.mark.parametrize("rule", ["skip", "substitute"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_more_than_the_budget_is_too_many(rule, num_workers):
    with (
        make(num_workers=num_workers, on_error=rule, error_budget=2) as loader,
        pytest.raises(hr.TooManyBadSamples, match="3 bad samples, and the error budget is 2") as caught,
    ):
        list(loader)
    assert {bad.index for bad in caught.value.bad} == BAD
    assert all(f"synthetic:{index}" in str(caught.value) for index in BAD)


def test_the_default_budget_is_a_hundredth():
    def all_but_one(data):
        if index_of(data) == 4:
            raise ValueError("bad")
        return np.zeros(2)

    with make(all_but_one, on_error="skip", num_workers=0) as loader:
        assert len(flat(targets(loader))) == 31, "at least one"
    with make(on_error="skip", num_workers=0) as loader, pytest.raises(hr.TooManyBadSamples):
        list(loader)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("rule", ["skip", "substitute"])
def test_a_batch_without_a_good_sample_is_left_out(num_workers, rule):
    def decode(data):
        if 8 <= index_of(data) < 16:
            raise ValueError("bad")
        return np.zeros(3, np.float32)

    with make(decode, num_workers=num_workers, on_error=rule, error_budget=8) as loader:
        assert targets(loader) == [[*range(8)], [*range(16, 24)], [*range(24, 32)]]
        assert loader.state_dict()["epoch"] == 1


def test_the_first_samples_may_be_bad():
    """Where only user code says how samples look, one that works is found."""

    def decode(data):
        if index_of(data) < 3:
            raise ValueError("bad")
        return np.zeros(3, np.float32)

    with make(decode, on_error="skip", error_budget=3) as loader:
        assert flat(targets(loader)) == [*range(3, 32)]
        assert [bad.index for bad in loader.bad_samples] == [0, 1, 2]
    with make(decode) as loader, pytest.raises(hr.SampleError, match="sample 0 "):
        list(loader)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_when_all_are_bad_the_reason_is_said(num_workers):
    def decode(data):
        raise ValueError("nothing works")

    for rule, kind in (("raise", hr.SampleError), ("skip", hr.TooManyBadSamples)):
        with (
            make(decode, on_error=rule, num_workers=num_workers) as loader,
            pytest.raises(kind, match="nothing works"),
        ):
            list(loader)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_samples_of_another_shape_are_bad(num_workers):
    def decode(data):
        return np.zeros(4 if index_of(data) == 9 else 3, np.float32)

    with make(decode, num_workers=num_workers, on_error="skip", error_budget=1) as loader:
        assert flat(targets(loader)) == [index for index in range(32) if index != 9]
        assert "collate=" in loader.bad_samples[0].reason


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("text", ["x" * 3_000_000, "ü" * 1_000_000, ""], ids=["long", "long-utf8", "none"])
def test_a_reason_of_any_length_arrives(num_workers, text):
    def decode(data):
        if index_of(data) == 3:
            raise RuntimeError(text)
        return np.zeros(3, np.float32)

    with make(decode, num_workers=num_workers, on_error="skip", error_budget=1) as loader:
        assert len(flat(targets(loader))) == 31
        assert loader.bad_samples[0].reason.startswith(f"RuntimeError: {text[:50]}")
        assert loader.stats().restarts == 0


@pytest.mark.slow
def test_many_bad_samples_with_deep_tracebacks_arrive_at_once():
    def dig(depth, data):
        if depth == 0:
            raise ValueError(f"at the bottom of {index_of(data)}: " + "spam " * 2000)
        return dig(depth - 1, data)

    with (
        make(
            lambda data: dig(40, data), size=600, batch_size=300, on_error="skip", error_budget=600
        ) as loader,
        pytest.raises(hr.HeadraceError, match="at the bottom of 0"),
    ):
        list(loader)

    def mostly(data):
        return np.zeros(1) if index_of(data) % 300 == 0 else dig(40, data)

    with make(mostly, size=600, batch_size=300, on_error="skip", error_budget=600) as loader:
        assert targets(loader) == [[0], [300]]
        assert loader.stats().restarts == 0
        assert all(bad.reason.startswith("at the bottom") for bad in loader.bad_samples)


class RaisingSource(type(hr.synthetic.source(1))):
    """Raises where it should return an error, and returns too little."""

    def read_many(self, indices):
        wanted = [int(index) for index in indices]
        if 9 in wanted:
            raise ConnectionError("the storage is gone")
        blobs = super().read_many(wanted)
        return [blob for blob, index in zip(blobs, wanted, strict=True) if index != 17]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_source_that_raises_costs_only_its_sample(num_workers):
    source = RaisingSource(32, 100, 100, None, 0.0, None, 32)
    broken = hr.Recipe(source, decode=lambda data: np.zeros(3))
    options = {"batch_size": 8, "num_workers": num_workers, "on_error": "skip", "error_budget": 2}
    with hr.DataLoader(broken, **options) as loader:
        assert flat(targets(loader)) == [index for index in range(32) if index not in (9, 17)]
        reasons = {bad.index: bad.reason for bad in loader.bad_samples}
        assert loader.stats().restarts == 0
    assert reasons[9] == "ConnectionError: the storage is gone"
    assert "asked for 1 samples and gave 0" in reasons[17]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_files_are_named_by_their_path(tmp_path, num_workers):
    jpeg_folder(tmp_path)
    broken = tmp_path / "class-1" / "004.jpg"
    broken.write_bytes(b"this is no picture")
    with (
        hr.DataLoader(images(tmp_path), batch_size=6, num_workers=num_workers) as loader,
        pytest.raises(hr.SampleError, match=str(broken)),
    ):
        list(loader)
    with hr.DataLoader(images(tmp_path), batch_size=6, num_workers=num_workers, on_error="skip") as loader:
        assert sum(len(labels) for _, labels in loader) == 23
        assert [bad.name for bad in loader.bad_samples] == [str(broken)]
        assert loader.bad_samples[0].reason


def unequal_shapes(data):
    return np.zeros((3, 4 if index_of(data) != 5 else 6), np.uint8)


def unequal_dtypes(data):
    return np.zeros(3, np.uint8 if index_of(data) != 5 else np.float64)


def unequal_parts(data):
    return [np.zeros(3)] * (2 if index_of(data) != 5 else 3)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    ("decode", "remedy"),
    [
        (unequal_shapes, "add a resize or crop that makes all samples equal, or pass collate="),
        (unequal_dtypes, "make all samples of one dtype, or pass collate="),
        (unequal_parts, "give every sample the same parts, or pass collate="),
        (None, "add a resize or crop that makes all samples equal, or pass collate="),
    ],
    ids=["shapes", "dtypes", "parts", "images"],
)
def test_samples_that_are_not_alike_are_not_to_be_skipped(decode, remedy, num_workers, tmp_path):
    def loader(**options):
        if decode is not None:
            return make(decode, num_workers=num_workers, **options)
        jpeg_folder(tmp_path)
        unlike = hr.Recipe(hr.folder(tmp_path), hr.image.decode(), [hr.image.resize(20)])
        return hr.DataLoader(unlike, batch_size=24, num_workers=num_workers, **options)

    with loader() as raising, pytest.raises(hr.SampleError) as caught:
        list(raising)
    assert remedy in str(caught.value) and "on_error" not in str(caught.value)
    with loader(on_error="skip", error_budget=0) as skipping, pytest.raises(hr.TooManyBadSamples) as caught:
        list(skipping)
    assert remedy in str(caught.value) and "change the recipe" in str(caught.value)
    assert "error_budget=" not in str(caught.value)


class Picky(Squares):
    """A torch dataset with bad samples."""

    def __getitem__(self, index):
        if index in BAD:
            raise LookupError(f"no such thing as {index}")
        return super().__getitem__(index)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_torch_datasets_skip_and_substitute(num_workers):
    options = {"batch_size": 8, "num_workers": num_workers, "error_budget": 3}
    loader = hr.DataLoader(Picky(32), on_error="skip", **options)
    assert flat(targets(loader)) == [index for index in range(32) if index not in BAD]
    assert {bad.name for bad in loader.bad_samples} == {"dataset[5]", "dataset[6]", "dataset[21]"}
    assert "LookupError" in loader.bad_samples[0].reason
    loader = hr.DataLoader(Picky(32), on_error="substitute", **options)
    batches = list(loader)
    assert [len(labels) for _, labels in batches] == [8] * 4
    assert all(torch.equal(values, labels**2) for values, labels in batches)
    loader = hr.DataLoader(Picky(32), on_error="skip", **{**options, "error_budget": 1})
    with pytest.raises(hr.TooManyBadSamples):
        list(loader)
    loader = hr.DataLoader(Picky(32), **options)
    with pytest.raises(LookupError, match="no such thing as 5"):
        list(loader)


@pytest.mark.parametrize(
    "options",
    [{"on_error": "ignore"}, {"error_budget": -1}, {"error_budget": 1.5}, {"error_budget": True}],
    ids=str,
)
def test_rules_that_cannot_be_are_refused(options):
    with pytest.raises(hr.OptionError, match=next(iter(options))):
        make(**options)
