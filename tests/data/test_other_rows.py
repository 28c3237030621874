"""Evaluation rows of another file: in order by themselves, and not trained on."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image

from explicit_learning.data.other_rows import other_rows_faults
from explicit_learning.data.preflight import Tokens, check_envelope
from explicit_learning.files.hashing import sha256_file
from explicit_learning.files.jsonl import write_rows
from explicit_learning.files.resources import ASSETS
from tests.support.dataset_builder import Builder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from explicit_learning.data.preflight import Asked
    from explicit_learning.errors import Fault


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    return Builder(tmp_path / "trained").write()


@pytest.fixture
def other(tmp_path: Path) -> Builder:
    """Rows about images that the dataset does not have."""
    built = Builder(tmp_path / "other")
    built.evaluation = built._group("other-0", "evaluation", 180)
    return built


def fitting(rows: Sequence[Asked]) -> list[Fault]:
    """Measure rows as an evaluation does, against limits that leave room for a short answer only."""
    tokens = Tokens.of_model(ASSETS / "tiny-vlm" / "model", "Answer the question.", max_image_tokens=None)
    limits = {"max_prompt_tokens": 256, "max_images_per_prompt": 1, "max_completion_tokens": 12}
    return check_envelope(rows, tokens, **limits, file="plan.json")


def faults(trained: Path, built: Builder, *, assets: Path | None = None) -> list[Fault]:
    rows = built.folder / "rows.jsonl"
    write_rows(rows, built.evaluation)
    root = assets or built.folder
    return other_rows_faults(rows, asset_root=root, trained=trained, trained_root=trained.parent, envelope=fitting)


def test_rows_that_were_never_trained_on_are_accepted(trained: Path, other: Builder) -> None:
    assert faults(trained, other) == []


def test_rows_of_the_training_split_are_refused(trained: Path, other: Builder) -> None:
    for row in other.evaluation:
        row["split"] = "train"
    found = faults(trained, other)
    assert len(found) == len(other.evaluation)
    assert all(fault.pointer == "/split" for fault in found)


@pytest.mark.parametrize("name", ["group_id", "base_id"])
def test_an_item_that_was_trained_on_is_refused(trained: Path, other: Builder, name: str) -> None:
    for row in other.evaluation:
        row[name] = "train-0"
    found = faults(trained, other)
    assert {fault.pointer for fault in found} == {f"/{name}"}
    assert all('evaluation leakage: "train-0" is trained on' in fault.found for fault in found)


def _shows(row: dict[str, Any], file: Path) -> None:
    """Let a row's FULL view show a file."""
    for view in ("full_view", "selected_view"):
        if row[view]["role"] == "FULL":
            row[view]["images"][0] |= {"path": file.name, "sha256": sha256_file(file)}


def test_an_image_that_was_trained_on_is_refused_also_where_its_file_is_another(trained: Path, other: Builder) -> None:
    source = trained.parent / "images" / "train-0-full.png"
    copied = other.folder / "copied.png"
    shutil.copy(source, copied)
    written_again = other.folder / "again.png"
    Image.open(source).save(written_again, compress_level=0)
    assert sha256_file(written_again) != sha256_file(source)
    for file in (copied, written_again):
        for row in other.evaluation:
            _shows(row, file)
        found = [fault for fault in faults(trained, other) if "leakage" in fault.found]
        assert found, file
        assert all(str(fault.pointer).startswith("/full_view/images/0") for fault in found)


def test_images_that_are_gone_or_changed_are_refused_with_their_rows(trained: Path, other: Builder) -> None:
    images = sorted((other.folder / "images").glob("other-0-*.png"))
    images[0].unlink()
    images[1].write_bytes(images[2].read_bytes())
    found = faults(trained, other)
    assert len([fault for fault in found if images[0].name in f"{fault.found}"]) == 1
    assert any(images[1].name in fault.found and "changed" in fault.found for fault in found)


def test_a_file_that_is_not_there_is_one_fault(trained: Path, tmp_path: Path) -> None:
    missing = tmp_path / "missing.jsonl"
    [fault] = other_rows_faults(
        missing, asset_root=tmp_path, trained=trained, trained_root=trained.parent, envelope=fitting
    )
    assert fault.file == str(missing)


def test_a_file_without_rows_is_refused_for_nothing_would_be_measured(trained: Path, other: Builder) -> None:
    other.evaluation = []
    [fault] = faults(trained, other)
    assert (fault.found, fault.expected) == ("no row", "at least one group of evaluation rows")


@pytest.mark.parametrize(("name", "found"), [("nowhere", "no such folder"), ("rows.jsonl", "a file")])
def test_a_place_of_images_that_is_not_a_folder_is_one_fault(
    trained: Path, other: Builder, name: str, found: str
) -> None:
    [fault] = faults(trained, other, assets=other.folder / name)
    assert (fault.pointer, fault.found, fault.file) == ("--assets", found, str(other.folder / name))


@pytest.mark.parametrize(
    ("field", "value", "pointer"),
    [("full_answer", "9" * 60, "/full_answer"), ("question", "Which digit? " * 200, "/question")],
)
def test_rows_that_do_not_fit_the_limits_of_the_plan_are_refused(
    trained: Path, other: Builder, field: str, value: str, pointer: str
) -> None:
    for row in other.evaluation:
        row[field] = value
    found = faults(trained, other)
    assert {(fault.gate, fault.pointer) for fault in found} == {("preflight", pointer)}
    assert len(found) == len(other.evaluation)
