"""The data set that a plan or draft names: whole, with rows for the arm, and with prompts and answers that fit.

A plan's paths are checked against the manifest, not only against their hashes: a plan that names another of the data
set's files, with that file's right hash, would train on the wrong rows without anything being damaged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from explicit_learning.data.control_tokens import turn_end
from explicit_learning.data.dataset import (
    check_dataset,
    direction_faults,
    evaluation_file,
    evidence_faults,
    slots_file,
    training_file,
)
from explicit_learning.data.dataset_manifest import load_dataset_manifest
from explicit_learning.data.image_grid import ResizeRules
from explicit_learning.data.preflight import Tokens, asked_rows, check_envelope
from explicit_learning.data.slots import slot_manifest_sha256
from explicit_learning.errors import Context, Refusal
from explicit_learning.files.hashing import hash_files, sha256_file
from explicit_learning.files.typed_json import to_json
from explicit_learning.inputs.held_out import NOTHING, held_out_of, leakage_warnings, trained_part
from explicit_learning.inputs.sft_pass import check_pass
from explicit_learning.inputs.visits import idle_term_faults

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from explicit_learning.arms import Arm
    from explicit_learning.data.dataset import CheckedDataset
    from explicit_learning.data.dataset_manifest import DatasetManifest, RowsFile
    from explicit_learning.data.preflight import Asked
    from explicit_learning.errors import Fault
    from explicit_learning.inputs.held_out import HeldOutPart
    from explicit_learning.inputs.named import Inputs
    from explicit_learning.inputs.sft_pass import PlannedPass
    from explicit_learning.inputs.visits import PlannedVisits
    from explicit_learning.plan.typed_plan import Data, Generation, HashedFile, Objective, Validation

__all__ = ["check_frozen_data", "envelope_faults", "image_tokens_per_row", "is_as_frozen", "rows_faults", "rows_for"]

CONTEXT = Context(gate="data", fix="restore the data that was frozen, or freeze the draft again")


def check_frozen_data(
    data: Data, *, arm: Arm | None, base: Path, images: bool, file: str, validation: Validation | None = None
) -> tuple[CheckedDataset, list[Fault]]:
    """Read the data that a plan names, and return it with everything that is wrong with it.

    Args:
        data: The plan's group.
        arm: The plan's arm; ``None`` if that is not in order itself: the training file is not compared then.
        base: Folder that the plan's paths start at.
        images: Whether to look at the bytes of the images, too.
        file: The plan, for faults about its own fields.
        validation: The plan's group, if it has one.
    """
    manifest, root = base / data.dataset_manifest.path, base / data.asset_root
    checked = check_dataset(manifest, asset_root=root, images=images, gate=CONTEXT.gate)
    faults = list(checked.faults)
    if checked.manifest is not None:
        faults += _identity_faults(data, checked, checked.manifest, base, CONTEXT.at(file))
        faults += _path_faults(data, checked, arm, base, CONTEXT.at(file))
        if validation is not None:
            faults += _slots_faults(validation, checked.manifest, base, CONTEXT.at(file))
    return checked, faults


def is_as_frozen(data: Data, *, base: Path) -> bool:
    """Return whether every byte of the rows is the one that was frozen, by hashes alone.

    What was frozen was checked then, row by row. For a plan that is refused anyway, this answers in a fraction of the
    time. Everything else (a missing file, say) is ``False`` and left to `check_frozen_data`, which explains it.
    """
    try:
        manifest = load_dataset_manifest(base / data.dataset_manifest.path, gate=CONTEXT.gate)
        if manifest.sha256 != data.dataset_manifest.sha256:
            return False
        listed = {manifest.path.parent / entry.path: entry.sha256 for entry in manifest.files}
        kinds = {(manifest.path.parent / entry.path).resolve(): entry.kind for entry in manifest.files}
        if kinds.get((base / data.evaluation_manifest.path).resolve()) != "evaluation":
            return False
        if kinds.get((base / data.dataset.path).resolve()) not in {"slots", "sft"}:
            return False
        listed |= {base / named.path: named.sha256 for named in (data.dataset, data.evaluation_manifest)}
        return hash_files(listed) == listed
    except (OSError, Refusal):
        return False


def rows_for(arm: Arm) -> str:
    """Return in words which rows an arm trains on."""
    return f"SFT rows of kind {arm.sft_rows}" if arm.is_sft else "slots"


def _path_faults(data: Data, checked: CheckedDataset, arm: Arm | None, base: Path, context: Context) -> Iterator[Fault]:
    """Compare the files that a plan names with those that the manifest lists for its arm and for evaluation."""
    if checked.manifest is None:
        return
    wanted: list[tuple[str, HashedFile, RowsFile | None, str]] = []
    if arm is not None:
        wanted.append(
            ("dataset", data.dataset, training_file(checked, arm), f"{rows_for(arm)}, for the arm {arm.name}")
        )
    held_out = evaluation_file(checked.manifest)
    wanted.append(("evaluation_manifest", data.evaluation_manifest, held_out, "evaluation rows"))
    folder = checked.manifest.path.parent
    for name, frozen, entry, rows in wanted:
        named = (base / frozen.path).resolve()
        if entry is not None and (folder / entry.path).resolve() == named:
            continue
        listed = next((item for item in checked.manifest.files if (folder / item.path).resolve() == named), None)
        kind = listed and (checked.record_kinds.get(listed.path) or listed.kind)
        found = f"of kind {kind}" if kind else "a file that the dataset manifest does not list"
        yield context.fault(
            pointer=f"/data/{name}/path",
            found=f"{frozen.path}, {found}",
            expected=f"{entry.path if entry else 'a file'} with {rows}",
            fix="name that file, or freeze the draft again",
        )


def _slots_faults(validation: Validation, manifest: DatasetManifest, base: Path, context: Context) -> Iterator[Fault]:
    """Compare the file of slots that validation asks with the one that the manifest lists."""
    entry, named = slots_file(manifest), (base / validation.slots.path).resolve()
    if entry is None or (manifest.path.parent / entry.path).resolve() != named:
        yield context.fault(
            pointer="/validation/slots/path",
            found=f"{validation.slots.path}, which is not the dataset's file of slots",
            expected=f"{entry.path if entry else 'a file'} with slots",
            fix="name that file, or freeze the draft again",
        )
    elif entry.sha256 != validation.slots.sha256:
        found, expected = f"the manifest lists {entry.sha256}", validation.slots.sha256
        yield context.fault(pointer="/validation/slots/sha256", found=found, expected=expected)


def _identity_faults(
    data: Data, checked: CheckedDataset, manifest: DatasetManifest, base: Path, context: Context
) -> Iterator[Fault]:
    """Compare what was read with what was frozen; rows that were refused already change the slots' identity too."""
    found = {"/data/dataset_manifest/sha256": (manifest.sha256, data.dataset_manifest.sha256)}
    hashes = {(manifest.path.parent / name).resolve(): sha256 for name, sha256 in checked.file_sha256.items()}
    for name, frozen in (("dataset", data.dataset), ("evaluation_manifest", data.evaluation_manifest)):
        path = base / frozen.path
        if path.is_file():
            found[f"/data/{name}/sha256"] = (hashes.get(path.resolve()) or sha256_file(path), frozen.sha256)
        else:
            expected, fix = "the file that was frozen", "restore the file, or freeze the draft again"
            pointer = f"/data/{name}/path"
            yield context.fault(pointer=pointer, found=f"{path}: no such file", expected=expected, fix=fix)
    if data.slot_manifest_sha256 is not None and not checked.faults:
        found["/data/slot_manifest_sha256"] = (slot_manifest_sha256(checked.slots), data.slot_manifest_sha256)
    for pointer, (measured, frozen_hash) in found.items():
        if measured != frozen_hash:
            yield context.fault(pointer=pointer, found=f"the files hash to {measured}", expected=frozen_hash)


def rows_faults(
    inputs: Inputs,
    *,
    arm: Arm | None,
    generation: Generation | None,
    objective: Objective | None,
    planned: PlannedPass | None = None,
    visits: PlannedVisits | None = None,
    validation: HeldOutPart | None = None,
    asset_root: Path | None = None,
    file: str,
) -> tuple[list[Fault], list[str]]:
    """Return which rows do not fit the plan, and what about rows and model is odd but permitted.

    Rows do not fit whose prompts or answers are too long, or hold control tokens, or whose evidence is missing. Nor do
    they if the run's visits never compute a term of its loss; that is looked at once nothing else is wrong.

    Args:
        inputs: The data set, the model and the prompt. Whatever is ``None`` here or below leaves out what needs it.
        arm: The plan's arm.
        generation: The plan's limits.
        objective: The plan's objective; ``None`` for SFT arms, too.
        planned: The pass of a frozen SFT plan, to be counted again.
        visits: The visits of an RL plan.
        validation: What the plan holds out for validation.
        asset_root: Folder that the paths of evidence masks start at.
        file: The plan or draft, for faults about its own fields.

    Raises:
        Refusal: If the model's template cannot render a prompt.
    """
    faults: list[Fault] = []
    checked = inputs.data
    if checked is None:
        return faults, []
    warnings = [*checked.warnings]
    held_out = NOTHING
    if validation is not None and arm is not None:
        held_out = held_out_of(checked.slots, share=validation.share, seed=validation.seed)
        faults += validation.faults(checked.slots, held_out, arm=arm, file=file)
        warnings += leakage_warnings(checked, held_out, arm)
    trained = trained_part(checked, held_out)
    if arm and generation and inputs.model and inputs.prompt:
        tokens = Tokens.of_model(inputs.model.folder, inputs.prompt.text, max_image_tokens=generation.max_image_tokens)
        warnings += _turn_end_warnings(tokens, inputs.model.terminal)
        asked = asked_rows(checked, arm, held_out=held_out.groups)
        faults += envelope_faults(asked, tokens, generation, file=file, system_file=str(inputs.prompt.file))
        if planned is not None and not faults:
            unlike, noticed = check_pass(trained.sft, arm, planned, tokens, file=file)
            faults, warnings = faults + unlike, warnings + noticed
    terms = to_json(objective)
    faults = [*faults, *direction_faults(trained, objective=terms), *evidence_faults(trained, objective=terms)]
    if faults or checked.faults:
        return faults, warnings
    if arm and inputs.model and generation and objective and visits and asset_root:
        faults = idle_term_faults(
            trained.slots,
            arm,
            objective.evi_po,
            visits,
            rules=ResizeRules.of_model(inputs.model.folder, max_image_tokens=generation.max_image_tokens),
            asset_root=asset_root,
            file=file,
        )
    return faults, warnings


def envelope_faults(
    rows: Sequence[Asked], tokens: Tokens, generation: Generation, *, file: str, system_file: str
) -> list[Fault]:
    """Return a fault for every row whose prompt or answers do not fit a plan's limits.

    Args:
        rows: What is asked.
        tokens: Counts tokens with the plan's system prompt.
        generation: The plan's limits.
        file: The plan or draft, for a limit that is too low for any answer.
        system_file: The system prompt's file.

    Raises:
        Refusal: If the model's template cannot render a prompt.
    """
    return check_envelope(
        rows,
        tokens,
        max_prompt_tokens=generation.max_prompt_tokens,
        max_images_per_prompt=generation.max_images_per_prompt,
        max_completion_tokens=generation.max_completion_tokens,
        file=file,
        system_file=system_file,
    )


def _turn_end_warnings(tokens: Tokens, terminal: Sequence[int]) -> Iterator[str]:
    """Yield a warning if a completion does not end where the model's template ends an answer."""
    end = turn_end(tokens.text)
    if end is not None and end[1] not in terminal:
        yield (
            f"/generation/terminal_token_ids: {list(terminal)}: the chat template ends an answer with {end[0]} "
            f"({end[1]}), which does not end a completion here: add it to eos_token_id in the model's "
            "generation_config.json"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageTokens:
    """Image tokens in a row.

    Attributes:
        fewest: In the row with the fewest.
        most: In the row with the most.
    """

    fewest: int
    most: int


def image_tokens_per_row(checked: CheckedDataset, rules: ResizeRules) -> ImageTokens:
    """Return how many image tokens rows have, from image sizes alone.

    Raises:
        ValueError: If an image has sides that the model's processor refuses.
    """
    shown = (view for slot in (*checked.slots, *checked.evaluation) for view in (slot.full_view, slot.selected_view))
    rows = {
        tuple((image.width, image.height) for image in images)
        for images in (*(view.images for view in shown), *(row.images for row in checked.sft))
    }
    tokens = {(width, height): rules.grid(width=width, height=height).tokens for row in rows for width, height in row}
    counts = {sum(tokens[size] for size in row) for row in rows}
    return ImageTokens(fewest=min(counts, default=0), most=max(counts, default=0))
