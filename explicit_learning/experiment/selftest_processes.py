"""What the steps of a selftest start: commands of this program, and measurements with a rank's environment.

Each runs in a process of its own, and what it was refused for is passed on as it told it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from explicit_learning.arms import ARMS as ARMS_TABLE
from explicit_learning.errors import Context, ExitCode, Refusal
from explicit_learning.experiment.child_command import answered_faults, ask_child, ask_process
from explicit_learning.experiment.selftest_gates import visible_gpus
from explicit_learning.files.atomic import write_json
from explicit_learning.files.resources import PLANS
from explicit_learning.files.strict_json import load_json
from explicit_learning.freeze.draft_data import write_digits
from explicit_learning.freeze.smoke_plan import move_paths
from explicit_learning.launch.environment import rank_environment
from explicit_learning.plan.reading import load_plan
from explicit_learning.rundir import layout

if TYPE_CHECKING:
    from explicit_learning.errors import Fault
    from explicit_learning.experiment.selftest import Selftest

__all__ = ["CONTEXT", "ask", "frozen_plan", "measure", "model_folder"]

CONTEXT = Context(gate="selftest", exit_code=ExitCode.INTERNAL)
# The longest that one measurement may take.
MEASURE_SECONDS = 300


def model_folder(test: Selftest) -> Path:
    """Return the folder of the model that the arms train."""
    draft = PLANS / "demo" / "sft_certificate.json"
    path: Path = (draft.parent / load_json(draft, gate=CONTEXT.gate)["model"]["path"]).resolve()
    return test.model or path


def frozen_plan(test: Selftest, arm: str, name: str, *, max_steps: int, tiny: bool = False, ranks: int = 1) -> Path:
    """Freeze the demo's draft of an arm for this machine, and return the plan's file.

    Args:
        test: The selftest.
        arm: The arm.
        name: The run's id, and the file's name.
        max_steps: Optimizer steps; of an SFT pass, as many as its first steps.
        tiny: Whether the plan has the tiny model, whatever the arms train.
        ranks: GPUs of the run.

    Raises:
        Refusal: As `el freeze` refuses.
    """
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
    plan = test.plan_file(name)
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
    ask(test, ["freeze", str(file), "-o", str(plan)])


def ask(test: Selftest, command: list[str]) -> None:
    """Run another command of this program; pass its refusal on.

    Raises:
        Refusal: With the command's faults; if it left none, with how it ended.
    """
    code, faults = ask_child(command, test.stop)
    if code != ExitCode.DONE:
        raise Refusal(faults or _unexplained(f"`el {' '.join(command)}`", code))


def measure(test: Selftest, name: str, **arguments: str | int) -> dict[str, Any]:
    """Measure one thing in a process with a rank's environment, and return what it found.

    Args:
        test: The selftest.
        name: The measurement, of those in `explicit_learning.training.selftest`.
        arguments: Its arguments.

    Raises:
        Refusal: With the measurement's faults; if it left none, with how it ended.
    """
    plan = Path(str(arguments["plan"])) if "plan" in arguments else _any_plan(test)
    environment = rank_environment(load_plan(plan), os.environ).variables
    if test.accelerator == "cuda" and name.startswith("bare"):
        # With several, transformers would use DataParallel.
        environment["CUDA_VISIBLE_DEVICES"] = visible_gpus()[0].uuid
    question = json.dumps({"accelerator": test.accelerator, **arguments})
    command = [sys.executable, "-m", "explicit_learning.training.selftest", name, question]
    try:
        code, output = ask_process(command, test.stop, environment=environment, seconds=MEASURE_SECONDS)
    except TimeoutError as error:
        raise CONTEXT.refusal(
            found=f"{name}: {error}",
            expected="a result within that time",
            fix="NCCL_DEBUG=INFO shows where NCCL waits; with PCIe switches, IOMMU or ACS settings can block GPUs"
            if name == "all-reduce"
            else "use a smaller model or a faster machine, or end what else runs on it",
        ) from None
    answer = output.strip().rpartition(b"\n")[2]  # libraries may print above it
    if code != ExitCode.DONE:
        raise Refusal(answered_faults(answer, code) or _unexplained(name, code))
    try:
        measured: dict[str, Any] = json.loads(answer)["measured"]
    except (ValueError, KeyError, TypeError):
        raise Refusal(_unexplained(name, code)) from None
    return measured


def _unexplained(what: str, code: int) -> Fault:
    """Return the fault of a process that ended without an answer."""
    ended = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return CONTEXT.fault(
        found=f"{what} {ended}, and left no answer",
        expected="exit code 0 and an answer",
        fix="read what it wrote to standard error; after SIGKILL or SIGSEGV, the kernel's log too (dmesg)",
        exit_code=ExitCode(code) if code in set(ExitCode) else ExitCode.INTERNAL,
    )


def _any_plan(test: Selftest) -> Path:
    """Return a plan for this accelerator: ranks' environment variables depend on one."""
    plan = test.plan_file("environment")
    return plan if plan.is_file() else frozen_plan(test, "answer_grpo", "environment", max_steps=1, tiny=True)
