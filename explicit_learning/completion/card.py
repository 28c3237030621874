"""The model card in the final adapter's folder.

An adapter travels without its run. Its card therefore says, in the form that model hubs read (YAML front matter, then
Markdown), which plan, data, code and image it came from, and the command that makes it again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from explicit_learning.arms import ARMS
from explicit_learning.completion.grade import promise
from explicit_learning.completion.launches import differences, machines_of, shortened
from explicit_learning.completion.marker import UNCHANGED, last_values
from explicit_learning.files.typed_json import to_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from explicit_learning.model_files.parts import PartCounts
    from explicit_learning.plan.typed_plan import Plan
    from explicit_learning.rundir.completion_marker import CompletionMarker, Compute, Counts
    from explicit_learning.rundir.launches import ImageIdentity, Launch, Machine
    from explicit_learning.rundir.run_manifest import RunManifest

__all__ = ["CardRecords", "base_name", "model_card"]

LOCK_TAG_DIGITS = 12
COMPUTED = ("forwards", "sampling_forwards", "scored_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class CardRecords:
    """All that a card is made from: what the run directory of a complete run holds, too.

    Attributes:
        plan: The plan.
        run_manifest: The run manifest.
        launches: The run's launches, at least one; only their starts are read.
        counts: The marker's counts.
        compute: What the run computed, as the marker has it.
        log_history: The marker's log.
        modules: How many modules of each part of the base model have an adapter.
        adapter_tensors_sha256: Tensor digest of the final adapter.
        unchanged: Whether that is the initial adapter's.
    """

    plan: Plan
    run_manifest: RunManifest
    launches: Sequence[Launch]
    counts: Counts
    compute: Compute
    log_history: Sequence[dict[str, Any]]
    modules: PartCounts
    adapter_tensors_sha256: str
    unchanged: bool

    @classmethod
    def of_complete_run(
        cls, plan: Plan, run_manifest: RunManifest, launches: Sequence[Launch], marker: CompletionMarker
    ) -> CardRecords:
        """Return the records of a run that has its marker."""
        return cls(
            plan=plan,
            run_manifest=run_manifest,
            launches=launches,
            counts=marker.counts,
            compute=marker.compute,
            log_history=marker.log_history,
            modules=marker.parameters.modules,
            adapter_tensors_sha256=marker.adapter.tensors_sha256,
            unchanged=marker.adapter.unchanged,
        )


def model_card(records: CardRecords) -> str:
    """Return the card's text; it holds no times, so that equal runs have equal cards."""
    plan, frozen, launches = records.plan, records.run_manifest.frozen, records.launches
    arm, metrics, code = ARMS[plan.arm], last_values(records.log_history), launches[-1].start.nodes[0].code
    identities = {
        "plan (`frozen_config_sha256`)": plan.frozen_config_sha256,
        "plan (bytes of `plan.json`)": frozen.plan_sha256,
        "run manifest": records.run_manifest.run_manifest_sha256,
        "dataset manifest": plan.data.dataset_manifest.sha256,
        "slot manifest": plan.data.slot_manifest_sha256,
        "evaluation rows": plan.data.evaluation_manifest.sha256,
        "system prompt": plan.prompt.sha256,
        "base model (snapshot)": plan.model.snapshot_sha256,
        "initial adapter": plan.initial_adapter.sha256 if plan.initial_adapter else None,
        "this adapter's tensors": records.adapter_tensors_sha256,
        "environment lock": plan.environment_lock_sha256,
        "code commit, frozen": _commit(plan.code_commit, dirty=plan.code_dirty),
        "code commit, of the last launch": _commit(code.commit, dirty=code.dirty),
        "files of that code": code.files_sha256,
    }
    counted = to_json(records.counts) | {name: getattr(records.compute, name) for name in COMPUTED}
    if (validation := records.compute.validation) is not None:
        counted |= {"validation_forwards": validation.forwards, "validation_tokens": validation.sampled_tokens}
    method = "supervised fine-tuning" if arm.is_sft else f"reinforcement learning ({arm.trainer})"
    smoke = "\nThis is the adapter of a smoke run: it shows that the run works and is not a trained model.\n"
    unchanged = f"\nWarning: {UNCHANGED}.\n"
    return f"""{_front_matter(plan)}

# {plan.run_id}

A LoRA adapter (rank {plan.lora.rank}, alpha {plan.lora.alpha:g}) for `{base_name(plan)}`, made by {method}, arm
`{plan.arm}`, seed {plan.seed}, data seed {plan.data_seed}. Modules that have one: {records.modules.text()}.
{smoke if plan.run_mode == "smoke" else ""}{unchanged if records.unchanged else ""}
## Make it again

`plan.json` lies in the run directory that this adapter comes from. With the files that it names beside it, in a
checkout of commit `{code.commit}`:{_other_code(launches)}

    python entrypoint.py plan.json

or in the image that was built from the same lock:

    {_docker(plan)}

## How exactly

{promise(plan)}

## Identities

{_table(("what", "SHA-256 or commit"), {name: f"`{value}`" if value else "none" for name, value in identities.items()})}

## Made on

{_made_on(launches)}

## Counts

{_table(("what", "count"), {name: _count(value) for name, value in counted.items() if value is not None})}

## Last logged metrics

{_table(("metric", "value"), {name: f"{value:g}" for name, value in metrics.items() if _is_number(value)})}
"""


def _front_matter(plan: Plan) -> str:
    """Return the YAML block. JSON strings are YAML strings, whatever characters a path has."""
    tags = ["lora", "explicit-learning", plan.arm]
    lines = [
        f"base_model: {json.dumps(base_name(plan))}",
        "library_name: peft",
        "pipeline_tag: image-text-to-text",
        "tags:",
        *(f"- {json.dumps(tag)}" for tag in tags),
    ]
    return "\n".join(["---", *lines, "---"])


def base_name(plan: Plan) -> str:
    """Return the last two parts of the model's path: hubs name a model ``OWNER/NAME``, and mirrors keep that layout."""
    parts = [part for part in plan.model.path.split("/") if part not in {"", ".", ".."}]
    return "/".join(parts[-2:])


def _commit(commit: str, *, dirty: bool) -> str:
    return commit + (" (with changes)" if dirty else "")


def _made_on(launches: Sequence[Launch]) -> str:
    """Return the machines of all launches, with what is not the same on all of them."""
    machines = machines_of(launches)
    rows = {
        f"{number}: {', '.join(_launches_on(machine, launches))}": _machine(machine)
        for number, machine in enumerate(machines)
    }
    text = _table(("machine: launches", "what"), rows)
    for launch in launches:
        for change in launch.start.accepted_changes:
            what = f"{_cell(change.now)}, where it was {_cell(change.before)}"
            text += f"\n\nLaunch {launch.start.number} accepted `{change.pointer}`: {what} (`--accept-changes`)."
    if not (found := differences(machines)):
        return text
    columns = " | ".join(str(number) for number in range(len(machines)))
    lines = [f"| not the same on all | {columns} |", f"| --- |{' --- |' * len(machines)}"]
    lines += [f"| `{_cell(each.pointer)}` | {' | '.join(map(_cell, each.values))} |" for each in found]
    return "\n".join([text, "", *lines])


def _launches_on(machine: Machine, launches: Sequence[Launch]) -> list[str]:
    """Return the launches of a machine, each with the step it began at."""
    starts = [launch.start for launch in launches if machine in launch.start.nodes]
    return [f"launch {start.number} from step {start.step}" for start in starts]


def _other_code(launches: Sequence[Launch]) -> str:
    """Return a caveat if that commit alone is not the code of every launch."""
    last = launches[-1].start.nodes[0].code
    other = [launch.start.number for launch in launches if any(node.code != last for node in launch.start.nodes)]
    texts = ["The last launch ran with changes that are in no commit."] if last.dirty else []
    if other:
        texts.append(f"Launches of other code: {', '.join(map(str, other))}; see *Made on*.")
    return f"\n\n{' '.join(texts)}" if texts else ""


def _machine(machine: Machine) -> str:
    hardware, libraries = machine.platform.hardware, machine.platform.libraries
    cpu = hardware["cpu"]
    parts = [
        f"image {_image(machine.image) or 'none'}",
        f"CPU {cpu['model']} ({cpu['architecture']})",
        f"GPUs {', '.join(_gpus(machine)) or 'none'}",
        f"driver {hardware['nvidia'].get('driver_version', 'none')}",
        f"torch {libraries.get('torch', 'none')}",
        f"code {_commit(machine.code.commit, dirty=machine.code.dirty)}",
    ]
    return "; ".join(map(_cell, parts))


def _gpus(machine: Machine) -> list[str]:
    names = {gpu["uuid"]: gpu["name"] for gpu in machine.platform.hardware["nvidia"]["gpus"]}
    return [f"{names.get(uuid, 'unknown')} ({uuid})" for uuid in machine.platform.gpus]


def _cell(text: str) -> str:
    return shortened(text).replace("|", "\\|").replace("<", "&lt;")


def _image(image: ImageIdentity) -> str | None:
    known = {kind: digest for kind, digest in image.digests.items() if digest.value}
    return ", ".join(f"{kind} {digest.value} ({digest.known_by})" for kind, digest in known.items()) or None


def _docker(plan: Plan) -> str:
    gpus = "--gpus all " if plan.hardware.accelerator == "cuda" else ""
    tag = plan.environment_lock_sha256[:LOCK_TAG_DIGITS]
    return f'docker run --rm {gpus}-v "$PWD:/work" el:lock-{tag} plan.json'


def _table(head: tuple[str, str], rows: Mapping[str, str]) -> str:
    lines = [f"| {head[0]} | {head[1]} |", "| --- | --- |"]
    return "\n".join([*lines, *(f"| {name} | {value} |" for name, value in rows.items())])


def _count(value: int | list[int]) -> str:
    """Return a count, or the counts of all ranks."""
    return ", ".join(f"{part:,}" for part in ([value] if isinstance(value, int) else value))


def _is_number(value: Any) -> bool:  # noqa: ANN401 - any JSON value
    return isinstance(value, (int, float)) and not isinstance(value, bool)
