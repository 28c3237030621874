"""A dataset in figures: exact counts of a small one, warnings, what is wrong with rows, and its memory."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from explicit_learning.data.dataset_manifest import load_dataset_manifest
from explicit_learning.data.preflight import Tokens, asked_slot
from explicit_learning.data.reading import load_slot_rows
from explicit_learning.data.summary.files import Evidence, GroupsWith, StateCount
from explicit_learning.data.summary.spread import Spread
from explicit_learning.data.summary.summary import DataSummary, ImageSize, Operator, summarise
from explicit_learning.errors import Fault, FaultCollector
from explicit_learning.files.resources import ASSETS, PROMPTS, ROOT
from tests.support.dataset_builder import Builder, brief, image_bytes

if TYPE_CHECKING:
    from pathlib import Path

ALL = ("FULL", "CONTROL", "MISSING", "SUBSTITUTE")


def summary_of(manifest: Path, *, tokens: Tokens | None = None) -> tuple[DataSummary, list[Fault]]:
    faults = FaultCollector("data")
    found = summarise(load_dataset_manifest(manifest), faults, tokens=tokens)
    return found, faults.faults()


def test_a_small_dataset_in_figures(tmp_path: Path) -> None:
    found, faults = summary_of(Builder(tmp_path).write())
    assert faults == []
    assert (found.dataset, found.generator, found.refused) == ("test", "tests", None)
    assert [(file.path, file.kind, file.split, file.rows, file.groups) for file in found.files] == [
        ("slots.jsonl", "slots", "train", 4, 1),
        ("sft.jsonl", "sft", "train", 4, 1),
        ("evaluation.jsonl", "evaluation", "evaluation", 4, 1),
    ]
    slots, sft, _ = found.files
    assert slots.relations == dict.fromkeys(ALL, 1)
    assert slots.answer_types == {"choice": 0, "number": 4, "boolean": 0, "text": 0}
    assert slots.groups_with == (GroupsWith(relations=ALL, groups=1),)
    assert slots.states == tuple(StateCount(relation=name, state=name.lower(), rows=1) for name in ALL)
    assert (slots.evidence, sft.evidence) == (Evidence(boxes=1, masks=0, none=0), None)
    assert (slots.record_kinds, sft.record_kinds) == ((), ("sft_certificate",))
    assert slots.question_characters == Spread(minimum=38, median=38, maximum=38)
    assert slots.answer_characters == slots.images_per_prompt == Spread(minimum=1, median=1, maximum=1)
    assert slots.tokens is None
    [answers] = slots.answers
    assert (answers.answer_type, answers.items, answers.most_frequent[0].answer) == ("number", 1, "7")
    assert found.images.sizes == (ImageSize(width=8, height=6, images=8),)
    assert (found.images.images, found.images.masks, found.images.distinct_sizes) == (8, 0, 1)
    assert found.images.bytes == sum(path.stat().st_size for path in (tmp_path / "images").iterdir())


def test_an_evaluation_whose_operators_training_has_seen_is_warned_of(tmp_path: Path) -> None:
    built = Builder(tmp_path)
    found, _ = summary_of(built.write())
    assert found.operators == (Operator(state="missing", training=2, evaluation=1),)
    assert found.warnings == (
        (
            'training has seen every removal operator of the evaluation ("missing"): abstention may then only detect '
            "what the operator leaves behind; hold one operator out"
        ),
    )
    built.evaluation[2]["selected_view"]["state"] = "blurred"
    found, _ = summary_of(built.write())
    assert found.operators == (
        Operator(state="blurred", training=0, evaluation=1),
        Operator(state="missing", training=2, evaluation=0),
    )
    assert found.warnings == ()


def test_an_answer_that_dominates_is_warned_of(tmp_path: Path) -> None:
    built = Builder(tmp_path)
    built.evaluation[2]["selected_view"]["state"] = "blurred"
    full = built.slots[0]
    built.slots = [full | {"slot_id": f"s{number}", "group_id": f"g{number}"} for number in range(20)]
    found, _ = summary_of(built.write())
    assert found.warnings == (
        (
            'slots.jsonl: "7" is the right answer of 20 of 20 items of the type number (100 %): a model gains by '
            "giving it without looking"
        ),
    )


def test_groups_are_counted_by_the_relations_that_they_have(tmp_path: Path) -> None:
    built = Builder(tmp_path)
    more = [
        row | {"slot_id": f"{row['slot_id']}-b", "group_id": "b"} for row in built.slots if row["relation"] != "CONTROL"
    ]
    built.slots += more
    found, _ = summary_of(built.write())
    assert found.files[0].groups_with == (
        GroupsWith(relations=("FULL", "MISSING", "SUBSTITUTE"), groups=1),
        GroupsWith(relations=ALL, groups=1),
    )


def test_masks_are_no_images(tmp_path: Path) -> None:
    built = Builder(tmp_path)
    mask = image_bytes(tmp_path, "masks/a.png", 255, (8, 6))
    built.images.append(mask)
    for slot in built.slots:
        masks = [{"image_index": 0, "path": mask["path"], "sha256": mask["sha256"]}]
        slot["full_view"]["evidence"] = {"masks": masks}
    built.slots[0]["selected_view"] = built.slots[0]["full_view"]
    found, faults = summary_of(built.write())
    assert faults == []
    assert (found.images.images, found.images.masks) == (8, 1)
    assert found.files[0].evidence == Evidence(boxes=0, masks=1, none=0)


def test_prompt_lengths_are_those_of_the_check_before_training(tmp_path: Path) -> None:
    system = (PROMPTS / "common_system.txt").read_text().strip()
    tokens = Tokens.of_model(ASSETS / "tiny-vlm" / "model", system, max_image_tokens=None)
    built = Builder(tmp_path)
    built.slots[3]["question"] = "Which digit is in the lower left cell, please?"
    manifest = built.write()
    found, faults = summary_of(manifest, tokens=tokens)
    rows = load_slot_rows(tmp_path / "slots.jsonl", FaultCollector("data")).rows
    lengths = [length for length in tokens.prompts([asked_slot(row) for row in rows]) if not isinstance(length, Fault)]
    totals = sorted(length.total for length in lengths)
    counted = found.files[0].tokens
    assert faults == []
    assert counted is not None
    assert counted.prompt == Spread(minimum=totals[0], median=totals[1], maximum=totals[3])
    assert totals[0] < totals[3]
    assert counted.longest == "train-0.substitute"
    assert counted.images == Spread(minimum=lengths[0].images, median=lengths[0].images, maximum=lengths[0].images)


def test_rows_without_their_form_are_faults_and_the_others_are_counted(tmp_path: Path) -> None:
    built = Builder(tmp_path)
    del built.slots[1]["question"]
    built.evaluation[0]["split"] = "train"
    found, faults = summary_of(built.write())
    assert brief(faults) == [("slots.jsonl:2", "/question"), ("evaluation.jsonl:1", "/split")]
    assert [file.rows for file in found.files] == [3, 4, 3]


def test_a_file_with_fewer_rows_than_listed_is_a_fault(tmp_path: Path) -> None:
    manifest = Builder(tmp_path).write()
    path = tmp_path / "slots.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    _, faults = summary_of(manifest)
    assert [(fault.file, fault.found, fault.expected) for fault in faults] == [
        (str(path), "3 rows", "4, as the manifest lists")
    ]


MEASURED = r"""
import re, sys
from pathlib import Path
from explicit_learning.data.dataset_manifest import load_dataset_manifest
from explicit_learning.data.summary.sampling import GroupSample
from explicit_learning.data.summary.summary import summarise
from explicit_learning.errors import FaultCollector
sample = GroupSample(groups=12, seed=0)
found = summarise(load_dataset_manifest(Path(sys.argv[1])), FaultCollector("data"), sample=sample)
most = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())[1]
print(found.files[0].rows, len(sample.groups()), int(most) // 1024)
"""


@pytest.mark.slow
def test_a_hundred_thousand_rows_take_little_memory(tmp_path: Path) -> None:
    built = Builder(tmp_path)
    lines = []
    for number in range(25_000):
        text = "".join(json.dumps(row) + "\n" for row in built.slots)
        lines.append(text.replace("train-0", f"train-{number:06}").replace("images/train-000000", "images/train-0"))
    manifest = built.write()
    document = json.loads(manifest.read_text())
    document["files"][0]["rows"] = 100_000
    manifest.write_text(json.dumps(document))
    (tmp_path / "slots.jsonl").write_text("".join(lines))
    command = [sys.executable, "-c", MEASURED, str(manifest)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=300)
    rows, groups, megabytes = map(int, done.stdout.split())
    print(f"{rows:,} rows: {megabytes} MB")
    assert (rows, groups) == (100_000, 12)
    assert megabytes < 200
