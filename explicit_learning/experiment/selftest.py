"""Everything that only the machine itself can show, in one command: its devices, kernels, network and trainers.

Each step runs in processes of its own, as a run's ranks do, and a step that fails does not keep the later ones from
being tried. `el selftest --cpu` goes through the same steps on a CPU, where nothing is compiled.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from explicit_learning.arms import ARMS as ARMS_TABLE
from explicit_learning.errors import ExitCode, Fault, Refusal, json_answer
from explicit_learning.experiment.selftest_gates import driver_minimum, driver_version, machine_faults, visible_gpus
from explicit_learning.experiment.selftest_processes import CONTEXT, ask, frozen_plan, measure, model_folder
from explicit_learning.files.atomic import write_json
from explicit_learning.files.os_errors import write_fault
from explicit_learning.files.progress import say
from explicit_learning.inputs.base_model import read_base_model
from explicit_learning.rundir import layout
from explicit_learning.rundir.completion_marker import read_marker

if TYPE_CHECKING:
    from collections.abc import Callable

    from explicit_learning.inputs.sft_pass import SftPass
    from explicit_learning.launch.signals import StopRequest

__all__ = ["ARMS", "RESULT", "STEPS", "Selftest", "run_selftest"]

RESULT = "selftest.json"
# The arms whose trainers differ; the others only show other views. SFT is first: RL starts from its adapter.
ARMS = ("sft_certificate", "answer_grpo", "papo", "evi_po")
MEASURED_STEPS = 20
CPU_RANKS = 2
STEPS = {
    "devices": "compare the GPUs that NVML reports with those that torch sees",
    "kernels": "compare every function of the model's layers with torch's own",
    "all-reduce": "add up a tensor over all devices, and compare the sum",
    "smoke": "train the tiny model on up to two GPUs, resume, and compare state and outputs with an uninterrupted run",
    **{arm: f"train {MEASURED_STEPS} steps of {arm}, and measure tokens per second and memory" for arm in ARMS},
    "bare-sft": f"train {MEASURED_STEPS} steps with TRL's own SFTTrainer on the same rows",
    "bare-grpo": f"train {MEASURED_STEPS} steps with TRL's own GRPOTrainer on slots of the same data",
}


@dataclass(slots=True, kw_only=True)
class Selftest:
    """A selftest in progress.

    Attributes:
        accelerator: ``cpu`` or ``cuda``.
        out: Folder of everything that it writes.
        model: Folder of the model that the arms train; ``None`` for the tiny one.
        stop: Notes the signals that this process gets.
        count_steps: Counts the first steps of an SFT pass (see `smoke_plan`).
        results: What each step measured, by step.
        faults: Why steps failed.
    """

    accelerator: str
    out: Path
    model: Path | None
    stop: StopRequest
    count_steps: Callable[[dict[str, Any], int], SftPass]
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)

    @property
    def ranks(self) -> int:
        """Devices that the all-reduce uses."""
        return CPU_RANKS if self.accelerator == "cpu" else len(visible_gpus())

    def plan_file(self, name: str) -> Path:
        """Return where the frozen plan of a name lies."""
        return self.out / "plans" / f"{name}.json"


def run_selftest(test: Selftest) -> None:
    """Go through all steps, and write ``selftest.json``.

    Args:
        test: The selftest; its ``results`` and ``faults`` are filled.

    Raises:
        Refusal: Before the first step, with every reason for which one would be refused: this machine has no GPU for a
            test of GPUs, or not what runs need (69, 78), the model is not one that a plan could name (65, 74), or the
            folder cannot be written to (73, 74).
    """
    _refuse_early(test)
    _claim(test.out)
    steps: dict[str, Callable[[Selftest], dict[str, Any]]] = {
        "devices": _devices,
        "kernels": _kernels,
        "all-reduce": _all_reduce,
        "smoke": _smoke,
        **{arm: _arm(arm) for arm in ARMS},
        "bare-sft": _bare("bare-sft", "sft_certificate"),
        "bare-grpo": _bare("bare-grpo", "answer_grpo"),
    }
    for number, (name, what) in enumerate(STEPS.items(), 1):
        if test.stop.requested():
            test.faults.append(_stopped(f"before {name}"))
            break
        if (needed := _failed_source(test, name)) is not None:
            test.results[name] = {"ok": False, "seconds": 0.0, "faults": [], "not_tried": f"{needed} failed"}
            continue
        say(f"selftest {number} of {len(STEPS)}, {name}: {what}")
        started = time.monotonic()
        measured, faults = _tried(test, steps[name])
        if faults and test.stop.requested():  # the step failed because it was stopped, whatever it says
            test.faults.append(_stopped(f"during {name}"))
            break
        test.faults += [fault for fault in faults if fault not in test.faults]  # one cause can end several steps
        seconds, told = round(time.monotonic() - started, 1), [fault.to_json() for fault in faults]
        test.results[name] = {"ok": not faults, "seconds": seconds, "faults": told, **measured}
    try:
        write_json(test.out / RESULT, json_answer(test.faults, accelerator=test.accelerator, steps=test.results))
    except OSError as error:
        test.faults.append(write_fault(error, test.out / RESULT))


def _refuse_early(test: Selftest) -> None:
    faults = machine_faults(
        test.accelerator, "; ".join(f"{number}. {what}" for number, what in enumerate(STEPS.values(), 1))
    )
    if test.model is not None:
        try:
            read_base_model(test.model)
        except Refusal as refusal:
            faults += refusal.faults
    if faults:
        raise Refusal(faults)


def _tried(test: Selftest, step: Callable[[Selftest], dict[str, Any]]) -> tuple[dict[str, Any], tuple[Fault, ...]]:
    """Return what a step measured, or why it failed."""
    try:
        return step(test), ()
    except Refusal as refusal:
        return {}, refusal.faults
    except OSError as error:
        return {}, (write_fault(error, Path(error.filename or test.out)),)


def _stopped(when: str) -> Fault:
    return CONTEXT.fault(
        found=f"a stop signal {when}",
        expected="no stop signal",
        fix="run the same command again, with a new folder",
        exit_code=ExitCode.STOPPED,
    )


def _failed_source(test: Selftest, name: str) -> str | None:
    """Return the step whose result a step goes on from, if there is none: its failure is told once."""
    sources = {"bare-sft": "sft_certificate", "bare-grpo": "answer_grpo"}
    if name in sources and not test.plan_file(sources[name]).is_file():
        return sources[name]
    own = test.model is not None and name in ARMS and not ARMS_TABLE[name].is_sft
    adapter = test.out / "sft_certificate" / layout.FINAL_ADAPTER
    return "sft_certificate" if own and not adapter.is_dir() else None


def _claim(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        occupied = any(out.iterdir())
    except OSError as error:
        raise Refusal(write_fault(error, out)) from None
    if occupied:
        raise CONTEXT.refusal(
            file=str(out),
            found="a folder with files in it",
            expected="an empty folder, or none",
            fix="name another one with --out, or remove it",
            exit_code=ExitCode.OUTPUT,
        )


# --- steps ----------------------------------------------------------------------------------------------------------


def _devices(test: Selftest) -> dict[str, Any]:
    seen = measure(test, "devices")
    if test.accelerator == "cpu":
        return seen
    names = ("uuid", "name", "compute_capability")
    reported = [{name: getattr(gpu, name) for name in names} for gpu in visible_gpus()]
    if seen["devices"] != reported:
        found = f"torch sees {json.dumps(seen['devices'])}"
        fix = "compare CUDA_VISIBLE_DEVICES inside and outside the container (`el doctor` shows it)"
        if len(seen["devices"]) < len(reported):
            found += f", under driver {driver_version()}"
            fix += f", and the driver with {driver_minimum()}, the lock's minimum: under an older one torch sees no GPU"
        raise CONTEXT.refusal(
            found=found,
            expected=f"what NVML reports: {json.dumps(reported)}",
            fix=fix,
            exit_code=ExitCode.HARDWARE,
        )
    return seen


def _kernels(test: Selftest) -> dict[str, Any]:
    return measure(test, "kernels", model=str(model_folder(test)))


def _all_reduce(test: Selftest) -> dict[str, Any]:
    return measure(test, "all-reduce", ranks=test.ranks)


def _smoke(test: Selftest) -> dict[str, Any]:
    ranks = min(2, test.ranks) if test.accelerator == "cuda" else 1
    plan = frozen_plan(test, "intervention_grpo", "smoke", tiny=True, max_steps=10, ranks=ranks)
    ask(test, ["smoke", str(plan), "--out", str(test.out / "smoke")])
    return {"run": "smoke", "ranks": ranks}


def _arm(arm: str) -> Callable[[Selftest], dict[str, Any]]:
    def step(test: Selftest) -> dict[str, Any]:
        plan = frozen_plan(test, arm, arm, max_steps=MEASURED_STEPS)
        run = test.out / arm
        ask(test, ["run", str(plan), "--out", str(run)])
        marker = read_marker(run)
        seconds, tokens = marker.compute.runtime_seconds, marker.metrics["num_tokens"]
        return {
            "tokens": tokens,
            "seconds_in_training": round(seconds, 3),
            "tokens_per_second": round(tokens / seconds, 1),
            "peak_bytes": max(marker.memory.peak_bytes_by_rank),
        }

    return step


def _bare(name: str, arm: str) -> Callable[[Selftest], dict[str, Any]]:
    return lambda test: measure(test, name, plan=str(test.plan_file(arm)))
