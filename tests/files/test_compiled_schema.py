"""The fast check says what jsonschema says."""

from __future__ import annotations

import copy
import json
import random
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.files.compiled_schema import _compile, _Definitions, compiled_schema
from explicit_learning.files.resources import SCHEMAS
from explicit_learning.files.schema import load_schema, validator

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES = (
    "slot-row", "sft-row", "evaluation-row", "dataset-manifest", "trace-row", "ledger-entry", "accounting-header",
)  # fmt: skip
RUN_DIRECTORY = (
    "checkpoint-mark",
    "completion-marker",
    "counters",
    "event",
    "follower-manifest",
    "launch-manifest",
    "rank-frontiers",
    "rank-outcome",
    "resume-audit",
    "run-manifest",
    "smoke-resume-boundary",
    "state-digests",
)
# Values that break one rule or another, or none.
OTHERS: tuple[Any, ...] = (
    None, True, 0, 1, 2, -1, 2.0, 70_000, 2**60, "", "x", "FULL", "MISSING", "SUBSTITUTE", "train", "evaluation",
    "choice", "sft_answer", "a" * 64, "a" * 65, "f" * 64 + "\n", "train-0\n", [], [1], {}, {"boxes": [], "masks": []},
    {"key": "A"},
)  # fmt: skip


def places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every (container, key) of a JSON value."""
    keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
    for key in keys:
        yield node, key
        yield from places(node[key])


def mutated(value: Any, chance: random.Random) -> Any:
    """Return a copy with one to three places changed, removed, added or doubled."""
    result = copy.deepcopy(value)
    for _ in range(chance.randint(1, 3)):
        left = list(places(result))
        if not left:
            break
        node, key = chance.choice(left)
        action = chance.randrange(5)
        if action == 0 and isinstance(node, dict):
            del node[key]
        elif action == 1 and isinstance(node, dict):
            node[chance.choice(["extra", "substitute_answer", "evidence", "masks"])] = chance.choice(OTHERS)
        elif action == 2 and isinstance(node[key], list):
            node[key] = node[key] * chance.choice([2, 65, 300])
        else:
            node[key] = copy.deepcopy(chance.choice(OTHERS))
    return result


@pytest.mark.parametrize("name", NAMES)
def test_the_fast_check_agrees_with_jsonschema(name: str) -> None:
    example = json.loads((SCHEMAS / "examples" / f"{name}.json").read_text())
    fits, reference = compiled_schema(name), validator(name)
    assert fits(example)
    assert reference.is_valid(example)
    chance = random.Random(f"quick-check/{name}")  # noqa: S311 - a repeatable choice of test cases
    verdicts = []
    for _ in range(1500):
        value = mutated(example, chance)
        verdicts.append(reference.is_valid(value))
        assert fits(value) == verdicts[-1], json.dumps(value)
    assert 20 < sum(verdicts) < 1480


@pytest.mark.parametrize("name", RUN_DIRECTORY)
def test_the_fast_check_agrees_with_jsonschema_on_documents_of_a_run(name: str) -> None:
    """Nearly every change breaks such a document, which is mostly hashes: the two must agree on which do not."""
    example = json.loads((SCHEMAS / "examples" / f"{name}.json").read_text())
    fits, reference = compiled_schema(name), validator(name)
    assert fits(example)
    assert reference.is_valid(example)
    chance = random.Random(f"quick-check/{name}")  # noqa: S311 - a repeatable choice of test cases
    values = [mutated(example, chance) for _ in range(300)]
    assert [fits(value) for value in values] == [reference.is_valid(value) for value in values]


def test_every_property_of_every_row_is_mutated_to_a_refusal() -> None:
    """Each scalar of an example, replaced by an object, is refused by both: no property is passed over."""
    for name in NAMES:
        example = json.loads((SCHEMAS / "examples" / f"{name}.json").read_text())
        for index, (node, key) in enumerate(places(example)):
            if isinstance(node[key], (dict, list)) or "options" in str(key) or key in {"groups", "clutter"}:
                continue
            value = copy.deepcopy(example)
            other, same = list(places(value))[index]
            other[same] = {"not": "a scalar"}
            assert not compiled_schema(name)(value), (name, key)


@pytest.mark.parametrize(
    ("schema", "fits", "breaks"),
    [
        ({"type": "number", "minimum": 0}, [0, 0.0, 1.5], [-1, -0.5]),
        ({"type": "number", "maximum": 1}, [1, 0.5], [2, 1.5]),
        ({"propertyNames": {"pattern": "^[a-z]+$"}}, [{}, {"a": 1}, 5], [{"A": 1}, {"a": 1, "a\n": 1}]),
        ({"minProperties": 1, "maxProperties": 2}, [{"a": 1}, [], 3], [{}, {"a": 1, "b": 2, "c": 3}]),
    ],
)
def test_keywords_of_whole_documents(schema: dict[str, Any], fits: list[Any], breaks: list[Any]) -> None:
    check = _compile(schema, _Definitions({}))
    assert [check(value) for value in fits] == [True] * len(fits)
    assert [check(value) for value in breaks] == [False] * len(breaks)


def test_an_unknown_keyword_is_refused_when_the_check_is_made() -> None:
    with pytest.raises(NotImplementedError, match="uniqueItems"):
        _compile({"type": "array", "uniqueItems": True}, _Definitions({}))


def test_shared_definitions_are_the_same_in_all_row_schemas() -> None:
    slot, sft, evaluation = (load_schema(name) for name in ("slot-row", "sft-row", "evaluation-row"))
    assert slot["$defs"] == evaluation["$defs"]
    assert {name: slot["$defs"][name] for name in sft["$defs"]} == sft["$defs"]
    differing = {name for name in slot["properties"] if slot["properties"][name] != evaluation["properties"][name]}
    assert differing == {"slot_id", "group_id", "base_id", "split"}
