"""Running an experiment: SFT first, then every RL arm from the same adapter; complete runs are skipped.

Plans are frozen here, not by hand, because an RL plan names the adapter of an SFT run that did not exist when the
document was written. Before the first RL step it is checked that the plans may be compared: all plans of a seed are
equal, except in what the table of arms lets them differ in.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import Context, ExitCode, Refusal, found_text
from explicit_learning.experiment.child_command import run_child
from explicit_learning.experiment.comparison import comparison_faults
from explicit_learning.experiment.record import claim_folder, run_name
from explicit_learning.files.hashing import sha256_file
from explicit_learning.files.progress import say
from explicit_learning.freeze.draft_data import write_digits
from explicit_learning.freeze.freezing import draft_faults, freeze
from explicit_learning.inputs.outputs import inputs_of_draft, output_faults
from explicit_learning.plan.reading import read_plan
from explicit_learning.rundir import layout
from explicit_learning.rundir.owner import lacks_statement
from explicit_learning.rundir.run_manifest import read_run_manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from explicit_learning.errors import Fault
    from explicit_learning.experiment.document import Experiment, Stage
    from explicit_learning.inputs.sft_pass import SftPass
    from explicit_learning.launch.signals import StopRequest

__all__ = [
    "RunOfStage",
    "freeze_stage",
    "require_comparable",
    "require_sound_drafts",
    "run_experiment",
    "run_stage",
    "stage_folder",
]

CONTEXT = Context(gate="experiment")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOfStage:
    """A frozen plan of an experiment and where it runs."""

    arm: str
    seed: int
    plan_file: Path
    plan: dict[str, Any]
    folder: Path

    @property
    def is_complete(self) -> bool:
        """Whether there is nothing left to do; what a kill kept from the manifest or the statement, `el run` adds.

        Raises:
            Refusal: If the folder holds a complete run of another plan, or its records contradict each other.
        """
        marker = self.folder / layout.COMPLETION_MARKER
        if not marker.is_file():
            return False
        manifest = read_run_manifest(self.folder)
        if manifest.completion is None:
            return False
        pairs = (
            ("plan", manifest.frozen.frozen_config_sha256, self.plan["frozen_config_sha256"]),
            ("marker", sha256_file(marker), manifest.completion.completion_marker_sha256),
        )
        if faults := [
            CONTEXT.fault(
                file=self.folder,
                found=f"a complete run of {what} {found}",
                expected=f"{what} {expected}",
                fix="restore the run folder from a copy, or move it away to run this stage again",
                exit_code=ExitCode.OUTPUT,
            )
            for what, found, expected in pairs
            if found != expected
        ]:
            raise Refusal(faults)
        return not lacks_statement(self.folder, manifest)


def stage_folder(out: Path, experiment: Experiment, arm: str, seed: int) -> Path:
    """Return a run's folder, which lies in that of the experiment."""
    return out / run_name(arm, seed, seeds=experiment.seeds)


def freeze_stage(
    experiment: Experiment,
    stage: Stage,
    seed: int,
    *,
    out: Path,
    manifest: Path,
    initial_adapter: Path | None,
    count_sft: Callable[[Path, str, Path, dict[str, Any]], SftPass],
) -> RunOfStage:
    """Freeze one stage's plan, or read it if an earlier call froze it.

    A plan that exists is kept: a run that was started with it can only be resumed with it.

    Raises:
        Refusal: With everything that is wrong with the draft, or with a plan that exists.
    """
    folder = stage_folder(out, experiment, stage.arm, seed)
    file = _plan_file(out, folder)
    if file.is_file():
        plan = _kept_plan(file, {"arm": stage.arm, "seed": seed, "run_id": folder.name})
    else:
        draft = _draft_of_run(stage, seed, manifest, folder)
        if initial_adapter is not None:
            draft["initial_adapter"] = {"path": str(initial_adapter.resolve())}
        plan, _ = freeze(draft, file=stage.file, out=file, count_sft=count_sft)  # `el run` prints the warnings
    return RunOfStage(arm=stage.arm, seed=seed, plan_file=file, plan=plan, folder=folder)


def _plan_file(out: Path, folder: Path) -> Path:
    return out / "plans" / f"{folder.name}.json"


def _draft_of_run(stage: Stage, seed: int, manifest: Path, folder: Path) -> dict[str, Any]:
    return stage.draft | {"data": {"manifest": str(manifest.resolve())}, "seed": seed, "run_id": folder.name}


def require_sound_drafts(
    experiment: Experiment,
    *,
    out: Path,
    manifest: Path,
    count_sft: Callable[[Path, str, Path, dict[str, Any]], SftPass],
) -> None:
    """Refuse what is wrong with later drafts before the first SFT stage trains for hours.

    Looked at are the drafts of the first seed whose plans are not frozen yet; RL drafts without the adapter that the
    SFT stage is going to make, whose LoRA block is compared with theirs.

    Raises:
        Refusal: With everything that is wrong with any of them.
    """
    faults: list[Fault] = []
    made_by = next(stage for stage in experiment.sft if stage.arm == experiment.initial_adapter_from)
    for stage in (*experiment.sft[1:], *experiment.rl):
        folder = stage_folder(out, experiment, stage.arm, experiment.seeds[0])
        file = _plan_file(out, folder)
        if file.is_file():
            continue
        draft = _draft_of_run(stage, experiment.seeds[0], manifest, folder)
        draft.pop("initial_adapter", None)  # the experiment's own takes its place
        faults += draft_faults(draft, file=stage.file, out=file, count_sft=count_sft)
        faults += [
            CONTEXT.fault(
                file=stage.file,
                pointer=f"/lora/{name}",
                found=found_text(stage.filled["lora"][name]),
                expected=f"{found_text(made_by.filled['lora'][name])}, as in the SFT draft {made_by.file}",
                fix="write the same lora block in both drafts",
            )
            for name in ("rank", "alpha")
            if stage in experiment.rl and stage.filled["lora"][name] != made_by.filled["lora"][name]
        ]
    if faults:
        raise Refusal(dict.fromkeys(faults))


def _kept_plan(file: Path, wanted: dict[str, Any]) -> dict[str, Any]:
    """Return a plan that an earlier call froze; another one in its place would train under the wrong name."""
    document = read_plan(file)
    if document.plan is None:
        raise Refusal(document.faults)
    if faults := [
        CONTEXT.fault(
            file=file,
            pointer=f"/{name}",
            found=found_text(document.raw[name]),
            expected=f"{found_text(value)}, as in the plan that was frozen here",
            fix="restore that plan, or choose another folder (--out)",
        )
        for name, value in wanted.items()
        if document.raw[name] != value
    ]:
        raise Refusal(faults)
    return document.raw


def run_stage(run: RunOfStage, stop: StopRequest, *, label: str | None = None, options: Sequence[str] = ()) -> None:
    """Run one plan to its end in a process of its own, unless it is complete; its progress goes to stderr.

    Args:
        run: The run.
        stop: Notes the signals that this process gets: after one, no run is started.
        label: Put before each line of the progress.
        options: Further options of `el run`.

    Raises:
        Refusal: If it ends with another exit code than 0, or is not started.
    """
    if run.is_complete:
        say(f"{run.folder.name}: complete already")
        return
    if stop.requested():
        found, fix = f"a stop signal before {run.folder.name} was started", "run the same command again"
        expected = "no stop signal until all runs are complete"
        raise CONTEXT.refusal(found=found, expected=expected, fix=fix, exit_code=ExitCode.STOPPED)
    code = run_child(["run", str(run.plan_file), "--out", str(run.folder), *options], stop, label=label)
    if code != ExitCode.DONE:
        raise CONTEXT.refusal(
            found=f"{run.folder.name} ended with exit code {code} (logs: {run.folder / layout.LOGS})",
            expected="exit code 0",
            fix="read the lines above; the same command again continues",
            exit_code=ExitCode(code) if code in set(ExitCode) else ExitCode.INTERNAL,
        )


def require_comparable(runs: list[RunOfStage]) -> None:
    """Refuse to run RL arms that may not be compared.

    Raises:
        Refusal: With every difference.
    """
    if faults := comparison_faults([(run.arm, run.plan_file, run.plan) for run in runs]):
        raise Refusal(faults)


def run_experiment(
    experiment: Experiment,
    *,
    out: Path,
    count_sft: Callable[[Path, str, Path, dict[str, Any]], SftPass],
    after_stage: Callable[[list[RunOfStage]], None],
    stop: StopRequest,
    jobs: int = 1,
    options: Sequence[str] = (),
) -> list[RunOfStage]:
    """Run every stage of an experiment for every seed; complete runs are skipped, interrupted ones are resumed.

    Args:
        experiment: What to run.
        out: Folder of the whole experiment: ``data/`` (embedded digits), ``plans/`` and one folder a run.
        count_sft: Counts an SFT pass (see `freeze`).
        after_stage: Called with the runs so far after each of them.
        stop: Notes the signals that this process gets.
        jobs: How many RL runs at once. They share nothing but the machine, so it changes only the time.
        options: Further options of `el run`, for every run.

    Raises:
        Refusal: If the folder is not this experiment's or overlaps with an input, a draft cannot be frozen, RL plans
            differ in what they must share, or a run ends with another exit code than 0.
    """
    for stage in (*experiment.sft, *experiment.rl):
        inputs = inputs_of_draft(stage.draft | {"data": experiment.data}, stage.file)
        if faults := output_faults(out, inputs, option="--out"):
            raise Refusal(faults)
    claim_folder(experiment, out)
    manifest = data_of(experiment, out)
    require_sound_drafts(experiment, out=out, manifest=manifest, count_sft=count_sft)
    runs: list[RunOfStage] = []
    for seed in experiment.seeds:
        adapter: Path | None = None
        for stage in experiment.sft:
            run = freeze_stage(
                experiment, stage, seed, out=out, manifest=manifest, initial_adapter=None, count_sft=count_sft
            )
            run_stage(run, stop, options=options)
            runs.append(run)
            after_stage(runs)
            if stage.arm == experiment.initial_adapter_from:
                adapter = run.folder / layout.FINAL_ADAPTER
        arms = [
            freeze_stage(
                experiment, stage, seed, out=out, manifest=manifest, initial_adapter=adapter, count_sft=count_sft
            )
            for stage in experiment.rl
        ]
        require_comparable(arms)
        for run in _each_run(arms, stop, jobs, options):
            runs.append(run)
            after_stage(runs)
    return runs


def _each_run(arms: list[RunOfStage], stop: StopRequest, jobs: int, options: Sequence[str]) -> Iterator[RunOfStage]:
    """Run arms, ``jobs`` at once, and yield them in order; when one fails, those that still run are waited for."""
    with ThreadPoolExecutor(jobs) as pool:
        labels = [run.folder.name if jobs > 1 else None for run in arms]
        futures = [
            pool.submit(run_stage, run, stop, label=label, options=options)
            for run, label in zip(arms, labels, strict=True)
        ]
        try:
            for run, future in zip(arms, futures, strict=True):
                future.result()
                yield run
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def data_of(experiment: Experiment, out: Path) -> Path:
    """Return the experiment's dataset manifest; the embedded digits are written to ``OUT/data``.

    Raises:
        Refusal: If they cannot be written.
    """
    if "digits" in experiment.data:
        options = experiment.data["digits"]
        return write_digits(out / "data", seed=options.get("seed", 0), size=options.get("size", "demo"))
    return Path(experiment.data["manifest"])
