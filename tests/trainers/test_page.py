"""The page says what the tests found. Part of the default suite: it needs no trainer."""

from tests.trainers import page
from tests.trainers.cases import CASES
from tests.trainers.data import KINDS


def test_the_matrix_is_that_of_the_results() -> None:
    text = page.PAGE.read_text()
    assert text.partition(page.BEGIN)[2].partition(page.END)[0] == page.table()


def test_the_results_are_of_all_cases_and_no_others() -> None:
    import json

    found = json.loads(page.RESULTS.read_text())["found"]
    expected = {
        (case.trainer, case.name, str(world), kind)
        for case in CASES
        for world in case.worlds
        for kind in KINDS
    }
    stored = {
        (trainer, name, world, kind)
        for trainer, names in found.items()
        for name, worlds in names.items()
        for world, kinds in worlds.items()
        for kind in kinds
    }
    assert stored == expected
