"""What counts in each measure, by base item, and that it is what an evaluation's own numbers say."""

from __future__ import annotations

from explicit_learning.report.compare.measures import ItemCount, measure_title, measured, totals, what_counts
from explicit_learning.rundir.evaluation_summary import summarise
from tests.support.compared_arms import answers
from tests.support.evaluations import answer_to

WRONG = [(0, "FULL"), (1, "CONTROL"), (1, "FULL"), (2, "erased"), (3, "SUBSTITUTE"), (2, "SUBSTITUTE")]


def test_each_measure_counts_its_rows_by_base_item() -> None:
    found = measured(answers(WRONG))
    right = {name: [count.right for count in items.values()] for name, items in found.items()}
    assert right == {
        "full_accuracy": [0, 0, 1, 1],
        "control_accuracy": [1, 0, 1, 1],
        "missing_abstention:erased": [1, 1, 0, 1],
        "missing_abstention:shuffled": [1, 1, 1, 1],
        "substitute_flips": [1, 1, 0, 0],
        "consistency": [0, 1, 1, 1],  # in item 1 both are the same wrong answer
        "all_relations_right": [0, 0, 0, 0],
    }
    assert {count.rows for items in found.values() for count in items.values()} == {1}
    assert list(found["full_accuracy"]) == ["item-0", "item-1", "item-2", "item-3"]


def test_totals_are_the_numbers_of_the_evaluation() -> None:
    answered = answers([*WRONG, (0, "shuffled")])
    found = {name: totals(items) for name, items in measured(answered).items()}
    numbers = summarise(answered)
    relations = numbers["relations"]
    states = relations["MISSING"]["states"]
    assert {name: (total.right, total.rows) for name, total in found.items()} == {
        "full_accuracy": (relations["FULL"]["right"], relations["FULL"]["rows"]),
        "control_accuracy": (relations["CONTROL"]["right"], relations["CONTROL"]["rows"]),
        "missing_abstention:erased": (states["erased"]["right"], states["erased"]["rows"]),
        "missing_abstention:shuffled": (states["shuffled"]["right"], states["shuffled"]["rows"]),
        "substitute_flips": (relations["SUBSTITUTE"]["right"], relations["SUBSTITUTE"]["rows"]),
        "consistency": (numbers["consistency"]["equal"], numbers["consistency"]["pairs"]),
        "all_relations_right": (numbers["groups"]["all_right"], numbers["groups"]["groups"]),
    }


def test_answers_to_blank_images_count_nowhere() -> None:
    blank = [answer_to("FULL", "7", group="other", image="blank")]
    assert measured([*answers(), *blank]) == measured(answers())


def test_a_group_with_several_rows_of_a_relation_counts_each() -> None:
    answered = [
        answer_to("FULL", "7", number=0),
        answer_to("CONTROL", "7", number=1, state="one"),
        answer_to("CONTROL", "5", number=2, state="two"),
        answer_to("CONTROL", None, number=3, state="three"),
    ]
    found = measured(answered)
    assert found["control_accuracy"] == {"g": ItemCount(right=1, rows=3)}
    assert found["consistency"] == {"g": ItemCount(right=1, rows=3)}
    assert "substitute_flips" not in found


def test_titles_name_the_removal_operator() -> None:
    assert measure_title("missing_abstention:a:b") == "MISSING abstention, a:b"
    assert measure_title("full_accuracy") == "FULL accuracy"
    assert what_counts("missing_abstention:erased").endswith("removed by erased")
