"""Row orders: whichever form rows enter in, and what is kept of them."""

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import image
from headrace.cache import extents
from headrace.coordinate.messages import OrderDone
from headrace.core.addresses import Tier, pack
from headrace.core.forms import CACHEABLE, Form
from headrace.core.layout import aligned
from headrace.engine.bodies import Body
from headrace.recipes import Recipe
from tests.engine.rig import AUGMENTED, DECODED, ENCODED, CountingSource, Rig, entered, only, published
from tests.recipes.helpers import jpeg, picture, png
from tests.recipes.test_forms import CHAINS

SIZES = [(60, 80), (97, 41), (64, 64), (33, 120), (50, 49), (40, 40)]
BLOBS = [
    png(picture(*size, seed)) if seed == 2 else jpeg(picture(*size, seed)) for seed, size in enumerate(SIZES)
]
ALL = list(range(len(BLOBS)))
CROP = [image.random_resized_crop(16), image.horizontal_flip()]


class Pair(NamedTuple):
    """What user code may return."""

    small: Any
    mean: Any


def as_dict(value):
    return {"image": value, "box": np.random.rand(3), "flag": True, "none": np.zeros((0, 4), np.int32)}


def as_pair(value):
    return Pair(value[::2].astype(np.float32), [float(value.mean()), np.random.randint(100)])


def doubled(target):
    return target * 2


def noisy_target(target):
    return {"label": target, "noise": np.random.rand(2)}


def failing(target):
    if target == 30:
        raise LookupError("no such class")
    return np.array([target, target + 1], np.int16)


TARGETS: dict[str, tuple[Any, Any]] = {
    "no targets": (None, None),
    "targets": (np.arange(len(BLOBS)) * 10, None),
    "vectors": (np.arange(len(BLOBS) * 3, dtype=np.float32).reshape(-1, 3), None),
    "a list": ([(at, at / 2) for at in ALL], None),
    "transformed": (np.arange(len(BLOBS)) * 10, doubled),
    "nested": (np.arange(len(BLOBS)) * 10, noisy_target),
}


@pytest.fixture
def rig():
    """Makes rigs, and closes them."""
    rigs = []

    def make(augment=CROP, targets="targets", decode=image.decode, **options):
        values, transform = TARGETS[targets]
        source = CountingSource(BLOBS, values)
        recipe = Recipe(source, decode and decode(), augment, target_transform=transform)
        rigs.append(Rig(recipe, **options))
        return rigs[-1]

    yield make
    for one in rigs:
        one.close()


def check_hits(made):
    """What was kept comes back bit for bit, whatever the seed, and targets are those of the order's own seed."""
    kept, rows = made.run(ALL, keep=AUGMENTED, before=2, after=1)
    assert not kept.faults
    hits = entered(kept, Form.AUGMENTED)
    assert set(hits) == set(ALL)
    body = Body.of(made.layout, targets=made.source.targets is not None)
    assert {nbytes for _, _, nbytes in hits.values()} == {body.nbytes}
    made.source.reads.clear()
    done, got = made.run(ALL, entering=hits, keep=ENCODED | DECODED | AUGMENTED, seed=5, epoch=2, before=1)
    assert not done.faults
    assert not done.published, "what is in the cache is not kept again"
    assert made.source.reads == []
    assert done.spent.fetched == done.spent.decoded == 0
    _, fresh = made.run(ALL, seed=5, epoch=2)
    for at, memory in enumerate(got):
        np.testing.assert_array_equal(memory, (rows if at < body.fields else fresh)[at])
    return rows, got, fresh


@pytest.mark.parametrize("name", CHAINS)
def test_an_augmented_hit_is_what_was_kept(rig, name):
    rows, _, fresh = check_hits(rig(CHAINS[name], budget=1 << 22))
    if "validation" not in name and "declared" not in name:
        assert (rows[0] != fresh[0]).any(), "another seed would show"


@pytest.mark.parametrize("targets", TARGETS)
@pytest.mark.parametrize(
    "augment", [CROP, [*CROP, as_dict], [*CROP, as_pair]], ids=["array", "dict", "tuple"]
)
def test_an_augmented_hit_with_targets_of_all_kinds(rig, augment, targets):
    check_hits(rig(augment, targets))


@pytest.mark.parametrize("name", ["training", "bfloat16", "planar"])
def test_an_augmented_hit_without_decoded_forms_and_with_a_layout_that_travels(rig, name):
    check_hits(rig(CHAINS[name], caches=False, learned=True))


def test_bodies_lie_field_by_field_on_cache_lines(rig):
    made = rig([*CROP, as_dict], "targets")
    done, rows = made.run([1, 4], keep=AUGMENTED)
    for row in range(2):
        extent = made.extent(*published(done)[row, Form.AUGMENTED])
        at = 0
        for memory in rows[:-1]:
            data = memory[row].tobytes()
            assert bytes(extent[at : at + len(data)]) == data
            at += aligned(len(data))


FORMS = st.lists(st.sampled_from(list(Form)), min_size=len(BLOBS), max_size=len(BLOBS))
BUDGET = 1 << 21
KEEPS = st.lists(st.integers(0, 15), min_size=len(BLOBS), max_size=len(BLOBS))


@pytest.fixture(scope="module")
def mixed():
    """A rig with a bad target, all good samples in all forms, and the rows as they should be."""
    source = CountingSource(BLOBS, np.arange(len(BLOBS)) * 10)
    recipe = Recipe(source, image.decode(), [*CROP, as_dict], target_transform=failing)
    made = Rig(recipe, budget=BUDGET)
    kept, rows = made.run(ALL, keep=ENCODED | DECODED | AUGMENTED)
    assert [row for row, _, _ in kept.faults] == [3]
    places = published(kept)
    places[3, Form.AUGMENTED] = places[0, Form.AUGMENTED]  # the row fails by its target
    yield made, rows, places
    made.close()


@settings(max_examples=40, deadline=None)
@given(forms=FORMS, keep=KEEPS)
def test_rows_are_the_same_in_whichever_forms_they_enter(mixed, forms, keep):
    made, rows, places = mixed
    for at, form in enumerate(CACHEABLE):  # beside what ``places`` needs, and empty for each example
        made.levels[form] = at * BUDGET + BUDGET // 2
    forms = [form if (row, form) in places else Form.NONE for row, form in enumerate(forms)]
    entering = {row: (form, *places[row, form]) for row, form in enumerate(forms) if form}
    made.source.reads.clear()
    done, got = made.run(ALL, entering=entering, keep=keep)
    assert [(row, reason) for row, reason, _ in done.faults] == [(3, "LookupError: no such class")]
    missing = [row for row in ALL if forms[row] == Form.NONE]
    assert sorted(made.source.reads) == missing
    assert done.spent.fetched == len(missing)
    assert done.spent.decoded == sum(form in (Form.NONE, Form.ENCODED) for form in forms)
    for row in ALL:
        if row != 3:
            for memory, expected in zip(got, rows, strict=True):
                np.testing.assert_array_equal(memory[row], expected[row])
    for (row, form), (offset, nbytes) in published(done).items():
        assert keep[row] & 1 << form
        assert forms[row] < form
        here, there = made.extent(offset, nbytes), made.extent(*places[row, form])
        if form == Form.DECODED:
            np.testing.assert_array_equal(extents.load(here), extents.load(there))
        else:
            assert here == there
    expected = {
        (row, form)
        for row in ALL
        for form in CACHEABLE
        # Encoded bytes that came from the source are kept, whatever becomes of the row.
        if keep[row] & 1 << form and forms[row] < form and (row != 3 or form == Form.ENCODED)
    }
    assert set(published(done)) == expected


def damaged(made, form, how):
    """An extent of a form for row 1 that cannot be read."""
    kept, _ = made.run(ALL, keep=ENCODED | DECODED | AUGMENTED)
    hits = entered(kept, form)
    _, offset, nbytes = hits[1]
    if how == "outside":
        hits[1] = (form, made.cache.span - 1, nbytes)
    elif how == "below":
        hits[1] = (form, -1, nbytes)
    elif how == "length":
        hits[1] = (form, offset, nbytes - 1)
    else:
        made.extent(offset, nbytes)[:4] = b"abcd"
    return hits


@pytest.mark.parametrize(
    ("form", "how"),
    [
        *(
            (form, how)
            for form in (Form.ENCODED, Form.DECODED, Form.AUGMENTED)
            for how in ("outside", "below")
        ),
        (Form.AUGMENTED, "length"),
        (Form.DECODED, "header"),
    ],
)
def test_a_row_whose_extent_cannot_be_read_is_fetched(rig, form, how):
    made = rig()
    _, rows = made.run(ALL)
    hits = damaged(made, form, how)
    made.source.reads.clear()
    done, got = made.run(ALL, entering=hits)
    assert not done.faults
    assert made.source.reads == [1]
    assert done.spent.fetched == 1
    for memory, expected in zip(got, rows, strict=True):
        np.testing.assert_array_equal(memory, expected)


def test_a_row_that_had_to_be_fetched_after_all_may_be_kept(rig):
    made = rig()
    hits = damaged(made, Form.AUGMENTED, "length")
    done, _ = made.run(ALL, entering=hits, keep=AUGMENTED)
    assert set(published(done)) == {(1, Form.AUGMENTED)}


def test_bodies_that_find_no_room_are_not_kept(rig):
    made = rig(budget=1024)  # of 16 x 16 x 3 bytes each
    done, _ = made.run(ALL, keep=AUGMENTED)
    assert len(published(done)) == 1
    assert not done.faults


@pytest.mark.parametrize(
    "where", [1 << 40, pack(Tier.DISK, 0), -64], ids=["beyond", "another tier", "nowhere"]
)
def test_room_that_lies_outside_of_the_cache_costs_no_row(rig, where):
    made = rig()
    _, rows = made.run(ALL)
    blocks = [(int(form), where, 1 << 16) for form in CACHEABLE for _ in ALL]
    made.grants = lambda keep: np.array(blocks, np.int64).tobytes()
    done, got = made.run(ALL, keep=ENCODED | DECODED | AUGMENTED)
    assert not done.faults
    assert not done.published
    np.testing.assert_array_equal(got[0], rows[0])


def test_the_store_is_told_what_was_published_before_anybody_else(rig):
    made = rig()
    done, _ = made.run(ALL, keep=AUGMENTED)
    assert [told.published for told in made.store.told] == [done.published]
    assert made.store.told[0] is done


# -- fills ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("augment", [CROP, [*CROP, as_pair]], ids=["declared", "learned"])
def test_a_fill_keeps_what_an_order_for_a_slot_would(rig, augment):
    made = rig(augment)
    bits = ENCODED | DECODED | AUGMENTED
    done, _ = made.run(ALL, keep=bits)
    filled, _ = made.run(ALL, keep=bits, fill=True)
    assert not filled.faults
    assert filled.spent.decoded == filled.spent.fetched == len(ALL)
    ours, theirs = published(filled), published(done)
    assert set(ours) == set(theirs) == {(row, form) for row in ALL for form in Form if form}
    for key, place in ours.items():
        if key[1] == Form.DECODED:
            np.testing.assert_array_equal(
                extents.load(made.extent(*place)), extents.load(made.extent(*theirs[key]))
            )
        else:
            assert made.extent(*place) == made.extent(*theirs[key])


def test_a_fill_of_encoded_samples_decodes_nothing(rig):
    made = rig()
    done, _ = made.run([4, 1], keep=ENCODED, fill=True, program=only(None))
    for row, index in enumerate([4, 1]):
        assert bytes(made.extent(*published(done)[row, Form.ENCODED])) == BLOBS[index]
    assert done.spent.decoded == 0


def test_a_fill_of_decoded_samples_augments_nothing(rig):
    made = rig()
    done, _ = made.run(ALL, keep=DECODED, fill=True, program=only(made.program, "decode"))
    reference, _ = made.run(ALL, keep=DECODED)
    for key, place in published(reference).items():
        np.testing.assert_array_equal(
            extents.load(made.extent(*published(done)[key])), extents.load(made.extent(*place))
        )
    assert done.spent.decoded == len(ALL)


def test_a_fill_does_for_each_row_what_is_to_be_kept_of_it(rig):
    made = rig()
    kept, _ = made.run(ALL, keep=DECODED | AUGMENTED)
    entering = {
        row: (form, *published(kept)[row, form])
        for row, form in {0: Form.DECODED, 1: Form.AUGMENTED, 2: Form.DECODED}.items()
    }
    made.source.reads.clear()
    wanted = [AUGMENTED, ENCODED | AUGMENTED, DECODED, DECODED | ENCODED, 0, ENCODED]
    done, _ = made.run(ALL, entering=entering, keep=wanted, fill=True)
    assert made.source.reads == [3, 5]
    assert set(published(done)) == {
        (0, Form.AUGMENTED),
        (3, Form.ENCODED),
        (3, Form.DECODED),
        (5, Form.ENCODED),
    }
    here = made.extent(*published(done)[0, Form.AUGMENTED])
    assert here == made.extent(*published(kept)[0, Form.AUGMENTED])


def test_faults_of_a_fill_are_those_of_its_rows(rig):
    made = rig()
    made.source.blobs[3] = b"no image"
    done, _ = made.run(ALL, keep=AUGMENTED, fill=True)
    assert [row for row, _, _ in done.faults] == [3]
    assert {row for row, _ in published(done)} == set(ALL) - {3}
    done, _ = made.run(ALL, keep=DECODED, fill=True)
    assert [row for row, _, _ in done.faults] == [3]


def test_fills_of_different_sizes_share_memory(rig):
    made = rig()
    reference, _ = made.run(ALL, keep=AUGMENTED)
    for indices in ([0], ALL, [5, 4]):
        done, _ = made.run(indices, keep=AUGMENTED, fill=True)
        for row, index in enumerate(indices):
            here = made.extent(*published(done)[row, Form.AUGMENTED])
            assert here == made.extent(*published(reference)[index, Form.AUGMENTED])


# -- where samples are collated ---------------------------------------------------------------------------


def collator(arena, board, order, claim, samples, faults):
    return OrderDone(order.id, [], result=str(len(samples)).encode())


def test_collated_samples_have_no_augmented_form(rig):
    made = rig(collator=collator)
    made.layout = None
    done, _ = made.run(ALL, keep=DECODED | AUGMENTED)
    assert done.result == b"6"
    assert {form for _, form in published(done)} == {Form.DECODED}
    with pytest.raises(ValueError, match="collated"):
        made.run(ALL, entering={0: (Form.AUGMENTED, 0, 768)})
    done, _ = made.run(ALL, keep=ENCODED | AUGMENTED, fill=True, program=only(None))
    assert {form for _, form in published(done)} == {Form.ENCODED}


def test_rows_without_a_decode_step_are_not_decoded(rig):
    made = rig([lambda data: np.frombuffer(data[:8], np.uint8).copy()], decode=None)
    done, _ = made.run(ALL)
    assert done.spent.fetched == len(ALL)
    assert done.spent.decoded == 0
