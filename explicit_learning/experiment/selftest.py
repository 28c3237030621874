"""Everything that only the machine itself can show, in one command: its devices, kernels, network and trainers.

Each step runs in processes of its own, as a run's ranks do, and a step that fails does not keep the later ones from
being tried. `el selftest --cpu` goes through the same steps on a CPU, where nothing is compiled.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from explicit_learning.arms import ARMS as ARMS_TABLE
from explicit_learning.errors import Context, ExitCode, Fault, Refusal
from explicit_learning.experiment.child_command import ask_child
from explicit_learning.files.atomic import write_json
from explicit_learning.files.os_errors import write_fault
from explicit_learning.files.progress import say
from explicit_learning.files.resources import PLANS
from explicit_learning.files.strict_json import load_json
from explicit_learning.freeze.draft_data import write_digits
from explicit_learning.freeze.smoke_plan import move_paths
from explicit_learning.gates.nvml import NvmlUnavailable, read_inventory
from explicit_learning.gates.visible import visible_devices
from explicit_learning.inputs.base_model import read_base_model
from explicit_learning.launch.environment import rank_environment
from explicit_learning.plan.reading import load_plan
from explicit_learning.rundir import layout
from explicit_learning.rundir.completion_marker import read_marker

if TYPE_CHECKING:
    from collections.abc import Callable

    from explicit_learning.inputs.sft_pass import SftPass
    from explicit_learning.launch.signals import StopRequest

__all__ = ["ARMS", "RESULT", "STEPS", "Selftest", "run_selftest"]

CONTEXT = Context(gate="selftest", exit_code=ExitCode.INTERNAL)
RESULT = "selftest.json"
# The arms whose trainers differ; the others only show other views. SFT is first: RL starts from its adapter.
ARMS = ("sft_certificate", "answer_grpo", "papo", "evi_po")
MEASURED_STEPS = 20
CPU_RANKS = 2
# The longest that a process of one step may take.
CHILD_SECONDS = 300
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
        return CPU_RANKS if self.accelerator == "cpu" else len(_gpus())


def run_selftest(test: Selftest) -> None:
    """Go through all steps, and write ``selftest.json``.

    Args:
        test: The selftest; its ``results`` and ``faults`` are filled.

    Raises:
        Refusal: If there is no GPU for a test of GPUs (69), the model is not one that a plan could name (65, 74), or
            the folder cannot be written to (73, 74).
    """
    _require_devices(test.accelerator)
    if test.model is not None:
        read_base_model(test.model)
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
            found, fix = f"a stop signal before {name}", "run the same command again, with a new folder"
            test.faults.append(
                CONTEXT.fault(found=found, expected="no stop signal", fix=fix, exit_code=ExitCode.STOPPED)
            )
            break
        say(f"selftest {number} of {len(STEPS)}, {name}: {what}")
        started = time.monotonic()
        faults: tuple[Fault, ...] = ()
        measured: dict[str, Any] = {}
        try:
            measured = steps[name](test)
        except Refusal as refusal:
            faults = refusal.faults
        test.faults += faults
        test.results[name] = {"ok": not faults, "seconds": round(time.monotonic() - started, 1), **measured}
    write_json(test.out / RESULT, {"accelerator": test.accelerator, "steps": test.results})


def _gpus() -> list[Any]:
    inventory = read_inventory()
    return [] if isinstance(inventory, NvmlUnavailable) else list(visible_devices(inventory.gpus, os.environ).gpus)


def _require_devices(accelerator: str) -> None:
    if accelerator == "cpu":
        return
    inventory = read_inventory()
    if isinstance(inventory, NvmlUnavailable):
        found, fix = inventory.reason, inventory.fix
    elif not _gpus():
        found, fix = "no visible GPU", "unset CUDA_VISIBLE_DEVICES, or start the container with --gpus all"
    else:
        return
    would = "; ".join(f"{number}. {what}" for number, what in enumerate(STEPS.values(), 1))
    raise CONTEXT.refusal(
        found=found,
        expected=f"at least one GPU. With one, this command would: {would}",
        fix=f"{fix}; `el selftest --cpu` goes through the same steps on a CPU",
        exit_code=ExitCode.HARDWARE,
    )


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
    seen = _child(test, "devices")
    if test.accelerator == "cpu":
        return seen
    reported = [{"uuid": gpu.uuid, "name": gpu.name, "compute_capability": gpu.compute_capability} for gpu in _gpus()]
    if seen["devices"] != reported:
        raise CONTEXT.refusal(
            found=f"torch sees {json.dumps(seen['devices'])}",
            expected=f"what NVML reports: {json.dumps(reported)}",
            fix="compare CUDA_VISIBLE_DEVICES inside and outside the container; `el doctor` shows both",
            exit_code=ExitCode.HARDWARE,
        )
    return seen


def _kernels(test: Selftest) -> dict[str, Any]:
    return _child(test, "kernels", model=str(_model(test)))


def _all_reduce(test: Selftest) -> dict[str, Any]:
    return _child(test, "all-reduce", ranks=test.ranks)


def _smoke(test: Selftest) -> dict[str, Any]:
    ranks = min(2, test.ranks) if test.accelerator == "cuda" else 1
    plan = _frozen(test, "intervention_grpo", "smoke", tiny=True, max_steps=10, ranks=ranks)
    _ask(test, ["smoke", str(plan), "--out", str(test.out / "smoke")])
    return {"run": "smoke", "ranks": ranks}


def _arm(arm: str) -> Callable[[Selftest], dict[str, Any]]:
    def step(test: Selftest) -> dict[str, Any]:
        plan = _frozen(test, arm, arm, max_steps=MEASURED_STEPS)
        run = test.out / arm
        _ask(test, ["run", str(plan), "--out", str(run)])
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
    def step(test: Selftest) -> dict[str, Any]:
        plan = test.out / "plans" / f"{arm}.json"
        if not plan.is_file():
            found, fix = f"the plan of {arm} could not be frozen", "see that step"
            raise CONTEXT.refusal(found=found, expected="the plan that bare TRL is compared with", fix=fix)
        return _child(test, name, plan=str(plan))

    return step


# --- children -------------------------------------------------------------------------------------------------------


def _model(test: Selftest) -> Path:
    draft = PLANS / "demo" / "sft_certificate.json"
    path: Path = (draft.parent / load_json(draft, gate=CONTEXT.gate)["model"]["path"]).resolve()
    return test.model or path


def _frozen(test: Selftest, arm: str, name: str, *, max_steps: int, tiny: bool = False, ranks: int = 1) -> Path:
    """Freeze the demo's draft of an arm for this machine, and return the plan's file."""
    source = PLANS / "demo" / f"{arm}.json"
    draft: dict[str, Any] = load_json(source, gate=CONTEXT.gate)
    own = test.model is not None and not tiny
    for group in ("model", "prompt", "initial_adapter"):
        if group in draft:
            draft[group] = {"path": str((source.parent / draft[group]["path"]).resolve())}
    if own:
        draft["model"] = {"path": str(test.model)}
        draft["generation"]["max_prompt_tokens"] = 512
        draft["optimisation"] |= {"per_device_batch_size": 8, "gradient_checkpointing": True}
        if "initial_adapter" in draft:
            draft["initial_adapter"] = {"path": str(test.out / "sft_certificate" / layout.FINAL_ADAPTER)}
    if not ARMS_TABLE[arm].is_sft:
        draft["optimisation"] |= {"max_steps": max_steps, "save_interval": max_steps}
    if test.accelerator == "cuda":
        draft["hardware"] = {"accelerator": "cuda", "world_size": ranks}
        draft["model"]["dtype"] = "bfloat16"
    draft |= {"data": {"manifest": str(write_digits(test.out / "data", seed=0, size="quick"))}, "run_id": name}
    plan = test.out / "plans" / f"{name}.json"
    plan.parent.mkdir(exist_ok=True)
    _freeze(test, draft, plan)
    if ARMS_TABLE[arm].is_sft:  # its steps follow from the tokens of its rows
        frozen = load_json(plan, gate=CONTEXT.gate)
        move_paths(frozen, lambda path: str((plan.parent / path).resolve()))
        draft["budget"] = {"max_sft_loss_tokens": test.count_steps(frozen, max_steps).loss_tokens}
        plan.unlink()
        _freeze(test, draft, plan)
    return plan


def _freeze(test: Selftest, draft: dict[str, Any], plan: Path) -> None:
    file = plan.with_suffix(".draft.json")
    write_json(file, draft)
    _ask(test, ["freeze", str(file), "-o", str(plan)])


def _ask(test: Selftest, command: list[str]) -> None:
    """Run another command of this program; pass its refusal on."""
    code, faults = ask_child(command, test.stop)
    if code != ExitCode.DONE:
        raise Refusal(
            faults
            or [
                CONTEXT.fault(
                    found=f"`el {' '.join(command)}` ended with exit code {code}",
                    expected="exit code 0",
                    fix="read the lines above",
                    exit_code=ExitCode(code) if code in set(ExitCode) else ExitCode.INTERNAL,
                )
            ]
        )


def _child(test: Selftest, name: str, **arguments: str | int) -> dict[str, Any]:
    """Measure one thing in a process with a rank's environment, and return what it printed."""
    plan = Path(str(arguments["plan"])) if "plan" in arguments else _any_plan(test)
    environment = rank_environment(load_plan(plan), os.environ).variables
    if test.accelerator == "cuda" and name.startswith("bare"):
        environment["CUDA_VISIBLE_DEVICES"] = _gpus()[0].uuid  # with several, transformers would use DataParallel
    try:
        done = subprocess.run(  # noqa: S603 - the program itself
            [sys.executable, "-m", "explicit_learning.training.selftest", name],
            input=json.dumps({"accelerator": test.accelerator, **arguments}),
            stdout=subprocess.PIPE,
            encoding="utf-8",
            env=environment,
            timeout=CHILD_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CONTEXT.refusal(
            found=f"{name}: no result after {CHILD_SECONDS} s",
            expected="a result within that time",
            fix="NCCL_DEBUG=INFO shows where NCCL waits; with PCIe switches, IOMMU or ACS settings can block GPUs",
        ) from None
    try:
        answer: dict[str, Any] = json.loads(done.stdout.strip().rpartition("\n")[2])
    except ValueError:
        answer = {}
    if done.returncode or not answer:
        code = ExitCode(done.returncode) if done.returncode in set(ExitCode) - {0} else ExitCode.INTERNAL
        raise CONTEXT.refusal(
            found=f"{name}: the process ended with exit code {done.returncode}",
            expected="exit code 0 and a result",
            fix="read the lines above",
            exit_code=code,
        )
    return answer


def _any_plan(test: Selftest) -> Path:
    """Return a plan for this accelerator: ranks' environment variables depend on one."""
    plan = test.out / "plans" / "environment.json"
    return plan if plan.is_file() else _frozen(test, "answer_grpo", "environment", max_steps=1, tiny=True)
