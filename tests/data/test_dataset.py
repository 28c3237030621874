"""A dataset as a whole: what a gate must find in its files and between its rows."""

from __future__ import annotations

import copy
import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.data.dataset import check_dataset, load_dataset_manifest
from explicit_learning.data.reading import read_slot_rows
from explicit_learning.errors import ExitCode
from explicit_learning.files.canonical import sha256_json
from tests.support.dataset_builder import Builder, asset_entry, brief, image_bytes

if TYPE_CHECKING:
    from pathlib import Path

FULL, CONTROL, MISSING, SUBSTITUTE = range(4)
MANIFEST = "dataset-manifest.json"


@pytest.fixture
def good(tmp_path: Path) -> Builder:
    return Builder(tmp_path)


def found_in(good: Builder) -> list[tuple[str, str, str, str]]:
    """Check the dataset; return (file, pointer, found, fix) of every fault."""
    faults = check_dataset(good.write()).faults
    assert all(fault.gate == "data" and fault.expected for fault in faults)
    return [(*place, fault.found, fault.fix) for place, fault in zip(brief(faults), faults, strict=True)]


def test_a_good_data_set(good: Builder) -> None:
    path = good.write()
    checked = check_dataset(path)
    assert checked.faults == ()
    assert [len(rows) for rows in (checked.slots, checked.sft, checked.evaluation)] == [4, 4, 4]
    assert checked.manifest is not None
    assert checked.manifest.sha256 == sha256_json(json.loads(path.read_text()))
    assert checked.manifest.counts.groups == 1


def test_the_identity_is_of_the_content_not_the_writing(good: Builder) -> None:
    path = good.write()
    identity = load_dataset_manifest(path).sha256
    document = json.loads(path.read_text())
    path.write_text(json.dumps(dict(reversed(document.items())), indent=4))
    assert load_dataset_manifest(path).sha256 == identity
    document["images"][0]["bytes"] += 1
    path.write_text(json.dumps(document))
    assert load_dataset_manifest(path).sha256 != identity


def test_missing_images_are_faults_and_rows_are_read_without_them(good: Builder) -> None:
    path = good.write()
    for file in (good.folder / "images").iterdir():
        file.unlink()
    assert len(check_dataset(path).faults) == 8
    assert len(read_slot_rows(good.folder / "slots.jsonl")) == 4


# --- rows files and the manifest ----------------------------------------------------------------------------------


def test_a_missing_manifest(tmp_path: Path) -> None:
    checked = check_dataset(tmp_path / "none.json")
    assert checked.manifest is None
    assert brief(checked.faults) == [("none.json", "")]


def test_a_missing_rows_file(good: Builder) -> None:
    path = good.write()
    (good.folder / "sft.jsonl").unlink()
    faults = check_dataset(path).faults
    assert ("sft.jsonl", "") in brief(faults)
    assert [fault.found for fault in faults if fault.pointer is None] == ["no such file"]


def test_a_changed_rows_file(good: Builder) -> None:
    path = good.write()
    file = good.folder / "slots.jsonl"
    file.write_bytes(file.read_bytes().replace(b"lower left", b"upper left"))
    (fault,) = check_dataset(path).faults
    assert brief([fault]) == [(MANIFEST, "/files/0/sha256")]
    assert "another dataset" in fault.fix


def test_a_truncated_rows_file(good: Builder) -> None:
    path = good.write()
    file = good.folder / "slots.jsonl"
    file.write_bytes(file.read_bytes()[:-50])
    assert brief(check_dataset(path).faults)[:2] == [(MANIFEST, "/files/0/sha256"), ("slots.jsonl:4", "")]


@pytest.mark.parametrize("name", ["slots", "sft", "evaluation"])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"question":', b'"questoin":'),
        (b'"question":"', b'"question":"\\ud83d'),
        (b'"question":"', b'"question":"\xe9'),
        (b'"schema_version":2', b'"schema_version":12345678901234567890'),
        (b'"answer_type":', b'"answer_type":"number","answer_type":'),
        (b"{", b""),
    ],
)
def test_a_row_that_cannot_be_read_is_one_fault(good: Builder, name: str, old: bytes, new: bytes) -> None:
    """Its group is not called incomplete, and its file not too short: both follow from it."""
    path = good.write()
    file = good.folder / f"{name}.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    lines[FULL] = lines[FULL].replace(old, new, 1)
    file.write_bytes(b"".join(lines))
    manifest = json.loads(path.read_text())
    for entry in manifest["files"]:
        if entry["kind"] == name:
            entry |= {key: value for key, value in asset_entry(good.folder, file.name, (0, 0)).items() if key in entry}
    path.write_text(json.dumps(manifest))
    assert {place for place, _ in brief(check_dataset(path).faults)} == {f"{name}.jsonl:1"}


def test_an_unreadable_rows_file_is_an_io_fault(good: Builder) -> None:
    path = good.write()
    file = good.folder / "slots.jsonl"
    file.unlink()
    file.symlink_to(file.name)  # a loop
    faults = check_dataset(path).faults
    assert [fault.exit_code for fault in faults if "slots.jsonl" in (fault.file or "")] == [ExitCode.IO]


def test_a_wrong_count(good: Builder) -> None:
    good.changes["counts"] = {"slots": 5, "groups": 1, "sft_rows": 4, "evaluation_rows": 4, "images": 9}
    assert [(file, pointer) for file, pointer, _, _ in found_in(good)] == [
        (MANIFEST, "/counts/slots"),
        (MANIFEST, "/counts/images"),
    ]


def test_a_manifest_that_breaks_its_schema_says_all_of_it(good: Builder) -> None:
    good.changes = {"asset_rot": ".", "images": [], "schema_version": 2}
    path = good.write()
    assert sorted(brief(check_dataset(path).faults)) == [
        (MANIFEST, "/asset_rot"),
        (MANIFEST, "/images"),
        (MANIFEST, "/schema_version"),
    ]


@pytest.mark.parametrize("root", ["..", "/data", "a\\b"])
def test_an_unsafe_asset_root(good: Builder, root: str) -> None:
    good.changes["asset_root"] = root
    assert brief(check_dataset(good.write()).faults) == [(MANIFEST, "/asset_root")]


def test_an_asset_root_that_is_not_there(good: Builder) -> None:
    path = good.write()
    (fault,) = check_dataset(path, asset_root=good.folder / "nowhere").faults
    assert brief([fault]) == [(MANIFEST, "/asset_root")]


def test_a_path_listed_twice(good: Builder) -> None:
    good.images.append(good.images[0])
    faults = check_dataset(good.write()).faults
    assert brief(faults) == [(MANIFEST, "/images/0/path"), (MANIFEST, "/images/8/path")]


# --- between rows, and rows against the manifest ------------------------------------------------------------------


def test_an_image_that_is_not_listed(good: Builder) -> None:
    extra = image_bytes(good.folder, "images/extra.png", 99)
    view = good.slots[CONTROL]["selected_view"]
    view["images"] = [{"image_index": 0} | {key: extra[key] for key in ("path", "sha256", "width", "height")}]
    (fault,) = found_in(good)
    assert fault[:2] == ("slots.jsonl:2", "/selected_view/images/0/path")


@pytest.mark.parametrize(("field", "value"), [("sha256", "0" * 64), ("width", 7), ("height", 7)])
def test_an_image_that_is_listed_otherwise(good: Builder, field: str, value: Any) -> None:
    good.evaluation[MISSING]["selected_view"]["images"][0][field] = value
    (fault,) = found_in(good)
    assert fault[:2] == ("evaluation.jsonl:3", f"/selected_view/images/0/{field}")
    assert "write both from the same files" in fault[3]


def test_masks_are_listed_and_of_their_images_size(good: Builder) -> None:
    mask = image_bytes(good.folder, "masks/a.png", 255)
    small = image_bytes(good.folder, "masks/b.png", 255, size=(4, 4))
    for asset, expected in (
        (mask, []),
        (small, ["/full_view/evidence/masks/0"]),
        (mask | {"sha256": "0" * 64}, ["/full_view/evidence/masks/0/sha256"]),
        (mask | {"path": "masks/c.png"}, ["/full_view/evidence/masks/0/path"]),
    ):
        good.images = [*good.images[:8], mask, small]
        evidence = {"masks": [{"image_index": 0, "path": asset["path"], "sha256": asset["sha256"]}]}
        for slot in good.slots:
            slot["full_view"]["evidence"] = copy.deepcopy(evidence)
        good.slots[FULL]["selected_view"]["evidence"] = copy.deepcopy(evidence)
        assert [pointer for _, pointer, _, _ in found_in(good)] == expected * 4


@pytest.mark.parametrize(
    ("path", "pointer"),
    [(("base_id",), "/base_id"), (("group_id",), "/group_id")],
)
def test_a_held_out_item_that_is_trained_on(good: Builder, path: tuple[str, ...], pointer: str) -> None:
    for row in good.evaluation:
        row[path[0]] = "train-0"
    faults = found_in(good)
    assert [fault[:2] for fault in faults] == [(f"evaluation.jsonl:{line}", pointer) for line in range(1, 5)]
    assert all(fault[2].startswith("evaluation leakage") for fault in faults)


def test_a_held_out_image_that_is_trained_on(good: Builder) -> None:
    trained = good.slots[FULL]["full_view"]["images"]
    for row in good.evaluation:
        row["full_view"]["images"] = copy.deepcopy(trained)
    good.evaluation[FULL]["selected_view"]["images"] = copy.deepcopy(trained)
    assert [fault[:2] for fault in found_in(good)] == [
        (f"evaluation.jsonl:{line}", "/full_view/images/0/sha256") for line in range(1, 5)
    ]


def test_a_certificate_that_contradicts_its_slot(good: Builder) -> None:
    good.sft = [good.sft[SUBSTITUTE] | {"target": "4", "assistant_response": "<answer>4</answer>"}]
    (fault,) = found_in(good)
    assert fault[:2] == ("sft.jsonl:1", "/target")
    assert '"3" is right at' in fault[2]


def test_certificates_of_two_arms_in_one_file(good: Builder) -> None:
    good.sft[FULL]["record_kind"] = "sft_answer"
    assert [fault[:2] for fault in found_in(good)] == [(f"sft.jsonl:{line}", "/record_kind") for line in (2, 3, 4)]


def test_a_second_file_of_slots(good: Builder) -> None:
    path = good.write()
    document = json.loads(path.read_text())
    document["files"].append(document["files"][0] | {"path": "more.jsonl"})
    path.write_text(json.dumps(document))
    assert brief(check_dataset(path).faults) == [(MANIFEST, "/files/3/kind")]


def test_faults_of_all_kinds_come_together(good: Builder) -> None:
    good.slots[CONTROL]["split"] = "eval"
    good.sft[FULL]["assistant_response"] = "7"
    good.evaluation[MISSING]["selected_view"]["role"] = "CONTROL"
    path = good.write()
    (good.folder / "images/train-0-missing.png").unlink()
    assert set(brief(check_dataset(path).faults)) >= {
        ("slots.jsonl:2", "/split"),
        ("sft.jsonl:1", "/assistant_response"),
        ("evaluation.jsonl:3", "/selected_view/role"),
        (MANIFEST, "/images/2/path"),
    }


def test_checking_a_good_data_set_needs_no_jsonschema(good: Builder) -> None:
    import subprocess

    path = good.write()
    program = (
        "import sys; from pathlib import Path; from explicit_learning.data.dataset import check_dataset; "
        f"assert not check_dataset(Path({str(path)!r})).faults; "
        "print([name for name in ('jsonschema', 'numpy', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"7" * 64 + b"\nsize 1114388\n"


@pytest.mark.parametrize("name", ["rows", "image", "manifest"])
def test_a_git_lfs_pointer_is_named_once(good: Builder, name: str) -> None:
    manifest = good.write()
    document = json.loads(manifest.read_text())
    entry = {"rows": document["files"][0], "image": document["images"][0], "manifest": {"path": manifest.name}}[name]
    (manifest.parent / entry["path"]).write_bytes(POINTER)
    (fault,) = check_dataset(manifest).faults
    assert fault.found.endswith("a Git LFS pointer, not the file itself")
    assert "git lfs pull" in fault.fix
