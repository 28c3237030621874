"""A model or adapter folder is whole, or the missing or broken part is named."""

from __future__ import annotations

import hashlib
import json
import struct
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.canonical import sha256_json
from explicit_learning.files.hashing import snapshot, snapshot_sha256
from explicit_learning.model_files.folders import adapter_sha256, adapter_structure, model_structure
from explicit_learning.model_files.headers import lora_parameter_bound, safetensors_header
from explicit_learning.model_files.tensors import file_tensors
from explicit_learning.model_files.terminal_tokens import terminal_tokens

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from explicit_learning.errors import Fault


def safetensors(shapes: dict[str, list[int]]) -> bytes:
    """Return a safetensors file of zeros in float32: an 8-byte length, a JSON header, the data."""
    header: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        size = 4
        for side in shape:
            size *= side
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(end)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "mödel with space"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"text_config": {"eos_token_id": 7}}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [9, 7]}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|im_end|>"}}))
    tokenizer = {"added_tokens": [{"id": 11, "content": "<|im_end|>"}], "model": {"vocab": {}}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "preprocessor_config.json").write_text("{}")
    for number in (1, 2):
        (folder / f"model-{number}.safetensors").write_bytes(safetensors({f"w{number}": [3, 5], f"b{number}": [3]}))
    index = {"weight_map": {"w1": "model-1.safetensors", "w2": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(safetensors({"lora": [2, 2]}))
    return folder


def test_a_whole_model_has_no_fault(model: Path) -> None:
    assert model_structure(model) == []


@pytest.mark.parametrize("name", ["tokenizer.json", "model-2.safetensors", "preprocessor_config.json"])
def test_a_git_lfs_pointer_is_named_once(model: Path, name: str) -> None:
    (model / name).write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{7:064}\nsize 1114388\n")
    (fault,) = model_structure(model)
    assert (fault.file, fault.found) == (str(model / name), "a Git LFS pointer, not the file itself")
    assert "git lfs pull" in fault.fix


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_an_adapter_s_git_lfs_pointer_is_named_once(adapter: Path, name: str) -> None:
    (adapter / name).write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{7:064}\nsize 1114388\n")
    (fault,) = adapter_structure(adapter)
    assert (fault.file, fault.found) == (str(adapter / name), "a Git LFS pointer, not the file itself")


@pytest.mark.parametrize("name", ["config.json", "model-2.safetensors", "preprocessor_config.json"])
def test_a_link_that_leads_nowhere_is_named_as_a_link(model: Path, name: str) -> None:
    """As in a hub's cache of which only the snapshot was mounted."""
    (model / name).unlink()
    (model / name).symlink_to("../../blobs/0123")
    (fault,) = model_structure(model)
    assert (fault.file, fault.found) == (str(model / name), "a link to ../../blobs/0123, which does not exist")
    assert "mount the whole cache" in fault.fix


@pytest.mark.parametrize("name", ["generation_config.json", "special_tokens_map.json", "sub/anything", "README.md"])
def test_a_link_that_leads_nowhere_is_refused_whatever_its_name(model: Path, name: str) -> None:
    """A loader goes on without such a file, and the model's hash does not cover it."""
    (model / name).unlink(missing_ok=True)
    (model / name).parent.mkdir(exist_ok=True)
    (model / name).symlink_to("../../blobs/0123")
    (model / ".hidden").symlink_to("nowhere")
    (fault,) = model_structure(model)
    assert (fault.file, fault.found) == (str(model / name), "a link to ../../blobs/0123, which does not exist")


@pytest.mark.parametrize("structure", [model_structure, adapter_structure])
def test_a_folder_that_is_a_link_to_nowhere(tmp_path: Path, structure: Callable[[Path], list[Fault]]) -> None:
    (tmp_path / "folder").symlink_to("nowhere")
    (fault,) = structure(tmp_path / "folder")
    assert fault.found == "a link to nowhere, which does not exist"


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_an_adapters_file_that_is_a_link_to_nowhere(adapter: Path, name: str) -> None:
    (adapter / name).unlink()
    (adapter / name).symlink_to("../../blobs/0123")
    (fault,) = adapter_structure(adapter)
    assert (fault.file, fault.found) == (str(adapter / name), "a link to ../../blobs/0123, which does not exist")
    assert "mount the whole cache" in fault.fix


@pytest.mark.parametrize(
    ("place", "asked"), [("a", "."), ("hub/models--x/snapshots/abc", "hub"), ("models--x/snapshots/abc", "models--x")]
)
def test_a_folder_around_a_model_is_answered_with_the_models_folder(
    model: Path, tmp_path: Path, place: str, asked: str
) -> None:
    inside = tmp_path / "around" / place
    inside.parent.mkdir(parents=True)
    model.rename(inside)
    (fault,) = model_structure(tmp_path / "around" / asked)
    assert (fault.found, fault.fix) == ("no model, but a folder around one", f"name the model's folder: {inside}")


@pytest.mark.parametrize("value", ["376", [376, "377"], 376.0, True, {"id": 376}])
@pytest.mark.parametrize(("name", "at"), [("generation_config.json", ""), ("config.json", "/text_config")])
def test_a_terminal_token_that_is_no_number_is_named_by_its_field(model: Path, value: Any, name: str, at: str) -> None:
    (model / name).write_text(json.dumps({"text_config": {"eos_token_id": value}} if at else {"eos_token_id": value}))
    with pytest.raises(Refusal) as caught:
        terminal_tokens(model)
    (fault,) = caught.value.faults
    assert (fault.file, fault.pointer, fault.found) == (str(model / name), f"{at}/eos_token_id", json.dumps(value))


def test_a_missing_shard_is_named(model: Path) -> None:
    (model / "model-2.safetensors").unlink()
    (fault,) = model_structure(model)
    assert fault.file == str(model / "model-2.safetensors")
    assert (fault.found, fault.expected) == ("no such file", "the model's weights")


@pytest.mark.parametrize("name", [".store/model-2.safetensors", ".model-2.safetensors", "linked/model-2.safetensors"])
def test_weights_that_the_models_hash_does_not_cover_are_refused(model: Path, name: str) -> None:
    before = snapshot_sha256(model)
    (model.parent / "elsewhere").mkdir()
    (model / "linked").symlink_to(model.parent / "elsewhere")
    (model / ".store").mkdir()
    (model / "model-2.safetensors").rename(model / name)
    index = {"weight_map": {"w1": "model-1.safetensors", "w2": name}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    (fault,) = model_structure(model)
    assert (fault.file, fault.pointer) == (str(model / "model.safetensors.index.json"), "/weight_map")
    assert fault.found.startswith(f'"{name}": a file outside the folder')
    assert snapshot_sha256(model) != before


@pytest.mark.parametrize("name", ["../{}/model-2.safetensors", "{}/model-2.safetensors"])
def test_weights_named_through_another_folder_are_refused(model: Path, name: str) -> None:
    shard = name.format(model.name if name.startswith("..") else model)
    index = {"weight_map": {"w1": "model-1.safetensors", "w2": shard}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    (fault,) = model_structure(model)
    assert fault.pointer == "/weight_map"


def test_weights_in_a_folder_of_the_model_are_good_and_hashed(model: Path) -> None:
    (model / "weights").mkdir()
    (model / "model-2.safetensors").rename(model / "weights" / "2.safetensors")
    index = {"weight_map": {"w1": "model-1.safetensors", "w2": "weights/2.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    assert model_structure(model) == []
    assert "weights/2.safetensors" in snapshot(model)
    assert lora_parameter_bound(model, 1) == 2 * (3 + 5)


def test_a_missing_weight_file_without_index_is_named(model: Path) -> None:
    for path in model.glob("model*"):
        path.unlink()
    (fault,) = model_structure(model)
    assert fault.file == str(model / "model.safetensors")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_missing_configuration_is_named(model: Path, name: str) -> None:
    (model / name).unlink()
    (fault,) = model_structure(model)
    assert fault.file == str(model / name)


def test_either_form_of_the_processors_settings_will_do(model: Path) -> None:
    (model / "preprocessor_config.json").rename(model / "processor_config.json")
    assert model_structure(model) == []
    (model / "processor_config.json").unlink()
    (fault,) = model_structure(model)
    assert fault.file == str(model / "processor_config.json")


def test_every_truncation_of_a_shard_is_found(model: Path) -> None:
    shard = model / "model-1.safetensors"
    data = shard.read_bytes()
    for length in range(0, len(data), 7):
        shard.write_bytes(data[:length])
        (fault,) = model_structure(model)
        assert fault.file == str(shard), length
    shard.write_bytes(data + b"x")
    (fault,) = model_structure(model)
    assert fault.found == "1 bytes after the last tensor"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "an empty file"),
        ("{", "line 1, column 2: Expecting property name enclosed in double quotes"),
        ("[]", "null"),
        ('{"weight_map": 3}', "3"),
        ('{"weight_map": {"w": 3}}', '{"w": 3}'),
        ('{"other": {}}', "null"),
    ],
)
def test_a_broken_index_is_a_fault(model: Path, text: str, found: str) -> None:
    (model / "model.safetensors.index.json").write_text(text)
    (fault,) = model_structure(model)
    assert (fault.file, fault.found) == (str(model / "model.safetensors.index.json"), found)
    assert fault.fix == "fetch or copy the model again, completely"


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (b"[]", "[]"),
        (b"{}{", "line 1, column 3: Extra data"),
        (b'{"w": 3}', "null"),
        (b'{"w": {"data_offsets": []}}', "[]"),
        (b"\xff\xff", "byte 0 is not UTF-8"),
    ],
)
def test_a_header_that_is_none_is_a_fault_and_no_traceback(model: Path, header: bytes, found: str) -> None:
    (model / "model-1.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    (fault,) = model_structure(model)
    assert (fault.file, fault.found) == (str(model / "model-1.safetensors"), found)
    assert fault.fix == "fetch or copy the model again, completely"


def test_a_shard_of_an_unknown_dtype_is_whole_and_has_no_digest(tmp_path: Path) -> None:
    header = json.dumps({"w": {"dtype": "F8_E8M0", "shape": [2], "data_offsets": [0, 2]}}).encode()
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(2))
    assert safetensors_header(path) == {"w": {"dtype": "F8_E8M0", "shape": [2], "data_offsets": [0, 2]}}
    with pytest.raises(Refusal, match="F8_E8M0"):
        file_tensors(path)


def test_a_model_that_is_no_folder(tmp_path: Path) -> None:
    assert model_structure(tmp_path / "absent")[0].found == "no such folder"
    (tmp_path / "file").touch()
    assert model_structure(tmp_path / "file")[0].found == "a file"


def test_an_adapters_identity_is_that_of_its_two_files(adapter: Path) -> None:
    expected = sha256_json(
        {
            name: hashlib.sha256((adapter / name).read_bytes()).hexdigest()
            for name in ("adapter_config.json", "adapter_model.safetensors")
        }
    )
    assert adapter_sha256(adapter) == expected
    (adapter / "README.md").write_text("a model card does not count")
    assert adapter_sha256(adapter) == expected


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_broken_adapter_is_named(adapter: Path, name: str) -> None:
    (adapter / name).write_bytes(b"{")
    (fault,) = adapter_structure(adapter)
    assert fault.file == str(adapter / name)
    (adapter / name).unlink()
    assert adapter_structure(adapter)[0].found == "no such file"


def test_the_terminal_tokens_are_the_whole_set(model: Path) -> None:
    assert terminal_tokens(model) == (7, 9, 11)


def test_a_model_that_names_no_end_is_an_error(model: Path) -> None:
    (model / "config.json").write_text("{}")
    (model / "generation_config.json").unlink()
    (model / "tokenizer_config.json").write_text('{"eos_token": null}')
    with pytest.raises(ValueError, match="no end-of-sequence token is named"):
        terminal_tokens(model)


def test_the_adapters_size_is_bounded_by_the_headers(model: Path) -> None:
    # Two matrices of 3 x 5: rank x (3 + 5) each; vectors get no adapter.
    assert lora_parameter_bound(model, rank=4) == 4 * (8 + 8)


@pytest.mark.parametrize("structure", [model_structure, adapter_structure])
def test_a_path_that_no_folder_can_have_is_told_as_such(
    structure: Callable[[Path], list[Fault]], tmp_path: Path
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for path in (tmp_path / "loop", tmp_path / "loop" / "inside", tmp_path / ("n" * 300)):
        (fault,) = structure(path)
        assert (fault.file, fault.exit_code) == (str(path), ExitCode.CONTRACT)
        assert fault.found.startswith("cannot be reached: ")
        assert fault.fix == "name another path: shorter, and without a loop of symbolic links"


@pytest.mark.parametrize("structure", [model_structure, adapter_structure])
def test_a_folder_that_this_user_may_not_reach_is_a_matter_of_rights(
    structure: Callable[[Path], list[Fault]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.stat", denied)
    (fault,) = structure(tmp_path / "model")
    assert (fault.found, fault.exit_code) == ("cannot be reached: Permission denied", ExitCode.IO)
