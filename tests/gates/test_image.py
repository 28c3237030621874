"""What is known about the image: declarations in every form, the baked identity, and contradictions."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from explicit_learning.errors import ExitCode, Fault, Refusal
from explicit_learning.files.resources import ROOT
from explicit_learning.files.typed_json import to_json
from explicit_learning.gates.image import DIGEST_VARIABLE, check_image, image_identity
from explicit_learning.inputs.code import code_identity
from explicit_learning.lock import CPU_LOCK, FULL_LOCK, lock_sha256

if TYPE_CHECKING:
    from collections.abc import Callable

ONE, OTHER = f"sha256:{'1' * 64}", f"sha256:{'2' * 64}"
UNKNOWN = {"value": None, "known_by": "undeclared"}
NOWHERE = Path("/nonexistent/image.json")


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """Leave what an image of the CPU lock would hold."""
    bill = b'{"bomFormat": "CycloneDX"}\n'
    (tmp_path / "sbom.cdx.json").write_bytes(bill)
    document = json.loads((ROOT / "schemas/examples/image-identity.json").read_text())
    document |= {"lock_sha256": lock_sha256(CPU_LOCK), "sbom_sha256": hashlib.sha256(bill).hexdigest()}
    path = tmp_path / "image.json"
    path.write_text(json.dumps(document))
    return path


def digests(text: str, **files: Path) -> dict[str, Any]:
    """Return the digests that are known when something is declared."""
    known: dict[str, Any] = to_json(image_identity({DIGEST_VARIABLE: text}, NOWHERE, **files).digests)
    return known


@pytest.mark.parametrize(
    ("text", "kind", "name"),
    [
        (ONE, "config", None),
        ("1" * 64, "config", None),
        (f"el@{ONE}", "manifest", "el"),
        (f"registry.example:5000/team/el:lock-1@{ONE}", "manifest", "registry.example:5000/team/el:lock-1"),
        (f"config=el:lock@{ONE}", "config", "el:lock"),
        (f"index={ONE}", "index", None),
        (f" sif={ONE} ", "sif", None),
    ],
)
def test_forms_of_a_declaration(text: str, kind: str, name: str | None) -> None:
    identity = image_identity({DIGEST_VARIABLE: text}, NOWHERE)
    declared = {"value": ONE, "known_by": "declared"}
    assert digests(text) == dict.fromkeys(("index", "manifest", "config", "sif"), UNKNOWN) | {kind: declared}
    assert (identity.name, identity.baked_in) == (name, None)


def test_several_kinds_at_once_and_none() -> None:
    assert {kind: d["value"] for kind, d in digests(f"config={ONE},manifest={OTHER}").items()} == {
        "index": None,
        "manifest": OTHER,
        "config": ONE,
        "sif": None,
    }
    assert set(map(str, digests("").values())) == {str(UNKNOWN)}


@pytest.mark.parametrize(
    "text",
    [
        "latest",
        "sha256:12",
        f"sha512:{'1' * 64}",
        f"sha256:{'A' * 64}",
        f"layer={ONE}",
        f"{ONE},{OTHER}",
        f"config={ONE} manifest={OTHER}",
        f"manifest=el:lock-{'0' * 12}@{ONE},index=el@{OTHER}",
        f"config=el@{ONE},manifest=le@{OTHER}",
    ],
)
def test_what_is_no_digest_is_refused(text: str) -> None:
    (fault,) = check_image(None, file="plan.json", environment={DIGEST_VARIABLE: text}, image_file=NOWHERE)
    assert (fault.gate, fault.pointer, fault.exit_code) == ("image", DIGEST_VARIABLE, ExitCode.ENVIRONMENT)
    assert "each kind once" in fault.expected


def test_a_measured_id_outweighs_silence_and_contradicts_a_lie(tmp_path: Path) -> None:
    container = tmp_path / ".containerenv"
    container.write_text(f'engine="podman-4.3.1"\nimage="localhost/el:lock"\nimageid="{"1" * 64}"\nrootless=0\n')
    assert digests("", container_file=container)["config"] == {"value": ONE, "known_by": "measured"}
    assert digests(ONE, container_file=container)["config"] == {"value": ONE, "known_by": "measured"}
    with pytest.raises(Refusal, match=f"config={OTHER}") as refused:
        digests(OTHER, container_file=container)
    assert refused.value.faults[0].exit_code == ExitCode.ENVIRONMENT


def test_a_name_of_another_lock_contradicts_the_image(image: Path) -> None:
    right = f"el:lock-{lock_sha256(CPU_LOCK)[:12]}@{ONE}"
    assert image_identity({DIGEST_VARIABLE: right}, image).digests["manifest"].value == ONE
    wrong = f"el:lock-{lock_sha256(FULL_LOCK)[:12]}@{ONE}"
    (fault,) = check_image(None, file=None, environment={DIGEST_VARIABLE: wrong}, image_file=image)
    assert lock_sha256(CPU_LOCK)[:12] in fault.expected


def test_a_plan_of_another_lock_is_told_which_image_to_start(image: Path) -> None:
    assert check_image(lock_sha256(CPU_LOCK), file="plan.json", environment={}, image_file=image) == []
    (fault,) = check_image(lock_sha256(FULL_LOCK), file="plan.json", environment={}, image_file=image)
    assert (fault.file, fault.pointer) == ("plan.json", "/environment_lock_sha256")
    assert f"el:lock-{lock_sha256(FULL_LOCK)[:12]}" in fault.fix
    assert fault.exit_code == ExitCode.ENVIRONMENT


def _edit(image: Path, **fields: object) -> list[Fault]:
    image.write_text(json.dumps(json.loads(image.read_text()) | fields))
    return check_image(None, file=None, environment={}, image_file=image)


def test_what_was_changed_after_the_build_is_named(image: Path) -> None:
    (image.parent / "sbom.cdx.json").write_text("{}")
    (fault,) = check_image(None, file=None, environment={}, image_file=image)
    assert (fault.pointer, fault.file) == ("/sbom_sha256", str(image))
    (image.parent / "sbom.cdx.json").unlink()
    assert "No such file" in check_image(None, file=None, environment={}, image_file=image)[0].found
    pointers = [fault.pointer for fault in _edit(image, lock="environment.lock")]
    assert pointers == ["/lock_sha256", "/sbom_sha256"]


@pytest.mark.parametrize(
    "fields", [{"lock": "../other.lock"}, {"lock_sha256": "1"}, {"extra": 1}, {"base_image": {"reference": "x"}}]
)
def test_an_identity_that_no_build_leaves_is_refused(image: Path, fields: dict[str, object]) -> None:
    faults = _edit(image, **fields)
    assert [fault.gate for fault in faults] == ["image"]
    assert faults[0].file == str(image)
    assert faults[0].exit_code == ExitCode.ENVIRONMENT
    assert faults[0].fix.startswith("start the image as it was built")


DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "no JSON": lambda path: path.write_bytes(path.read_bytes()[:100]),
    "no text": lambda path: path.write_bytes(b"\xff\x00"),
    "a list": lambda path: path.write_bytes(b"[]"),
    "null": lambda path: path.write_bytes(b"null"),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "a link to nowhere": lambda path: (path.unlink(), path.symlink_to("nowhere")),
    "a link to itself": lambda path: (path.unlink(), path.symlink_to(path)),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_identity_is_refused_and_not_taken_for_a_missing_one(image: Path, damage: str) -> None:
    """Gates and `code_identity` do not take the image for a checkout, or ask the user to repair the file."""
    DAMAGE[damage](image)
    faults = check_image(None, file=None, environment={}, image_file=image)
    with pytest.raises(Refusal) as refused:
        code_identity(image_file=image)
    for fault in (*faults, *refused.value.faults):
        assert (fault.file, fault.exit_code) == (str(image), ExitCode.ENVIRONMENT)
        assert fault.fix.startswith("start the image as it was built")
    assert faults


def test_an_identity_behind_a_closed_door(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(_path: Path) -> NoReturn:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(image), "lstat", closed)
    (fault,) = check_image(None, file=None, environment={}, image_file=image)
    assert (fault.found, fault.exit_code) == ("Permission denied", ExitCode.ENVIRONMENT)
