"""What is asked of the evaluating process, and where its answers lie.

An evaluation is named by what it depends on: the adapter's tensors, the evaluation rows and the prompt. The same
question therefore has one name, and asking it twice costs nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from explicit_learning.errors import ExitCode, Fault, Refusal
from explicit_learning.files.canonical import sha256_json
from explicit_learning.files.hashing import sha256_file
from explicit_learning.files.strict_json import load_json
from explicit_learning.gates.check import check_inputs
from explicit_learning.launch.environment import rank_environment
from explicit_learning.model_files.folders import adapter_sha256
from explicit_learning.plan.reading import load_plan
from explicit_learning.rundir import layout
from explicit_learning.rundir.events import read_events

if TYPE_CHECKING:
    from collections.abc import Iterable

    from explicit_learning.plan.typed_plan import Plan, ResolvedPaths

__all__ = ["EvaluationRequest", "Which", "answer_requests", "evaluation_of_run"]

Which = Literal["final", "initial", "base"]
MODULE = "explicit_learning.evaluation"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRequest:
    """One adapter (or none) on one plan's evaluation rows.

    Attributes:
        label: For people: whose adapter it is.
        plan: The run's plan.
        raw_plan: The same as JSON.
        paths: Where its inputs are.
        adapter: Folder of the adapter; ``None`` for the base model.
        out: File of the evaluation.
        identities: What the evaluation depends on, by hash.
    """

    label: str
    plan: Plan
    raw_plan: dict[str, Any]
    paths: ResolvedPaths
    adapter: Path | None
    out: Path
    identities: dict[str, Any]


def evaluation_of_run(run: Path, which: Which, *, plan_file: Path | None = None) -> EvaluationRequest:
    """Return the request for a run's final adapter, initial adapter, or base model.

    Args:
        run: The run directory.
        which: Whose answers are wanted.
        plan_file: The plan the run was started with; by default what the run's events say. It tells where the inputs
            are, since a run directory holds no absolute path.

    Raises:
        Refusal: If the run is not complete, or its inputs are not what the plan says.
    """
    if not (run / layout.PLAN).is_file():
        fix = "name the folder that el run --out wrote"
        raise Refusal(_fault(run, f"no {layout.PLAN}", "a run directory", fix, ExitCode.USAGE))
    plan = load_plan(run / layout.PLAN)
    file = plan_file or _started_with(run)
    paths = check_inputs(file, expected=plan.frozen_config_sha256)
    adapter = {"final": run / layout.FINAL_ADAPTER, "initial": paths.initial_adapter, "base": None}[which]
    if which == "final" and not (run / layout.COMPLETION_MARKER).is_file():
        found, fix = f"no {layout.COMPLETION_MARKER}", "finish it first: el run PLAN --out"
        raise Refusal(_fault(run, found, "a completed run", fix))
    folder = None if adapter is None else Path(adapter)
    identities = {
        "schema_version": 1,
        "run_id": plan.run_id,
        "arm": plan.arm,
        "which": which,
        "adapter_sha256": None if folder is None else adapter_sha256(folder),
        "model_snapshot_sha256": plan.model.snapshot_sha256,
        "evaluation_manifest_sha256": plan.data.evaluation_manifest.sha256,
        "prompt_sha256": plan.prompt.sha256,
        "max_completion_tokens": plan.generation.max_completion_tokens,
        "environment_lock_sha256": plan.environment_lock_sha256,
    }
    name = sha256_json({key: value for key, value in identities.items() if key not in {"run_id", "arm", "which"}})
    return EvaluationRequest(
        label=f"{run.name} ({which})",
        plan=plan,
        raw_plan=load_json(run / layout.PLAN, gate="plan"),
        paths=paths,
        adapter=folder,
        out=run / layout.evaluation_file(name[:16]),
        identities=identities,
    )


def answer_requests(requests: Iterable[EvaluationRequest]) -> list[dict[str, Any]]:
    """Return every evaluation, made now unless it is there, in the order of the requests.

    Raises:
        Refusal: If the evaluating process ended otherwise than well.
    """
    asked = list(requests)
    missing = [request for request in asked if not request.out.is_file()]
    if missing:
        document = [
            {
                "label": request.label,
                "plan": {name: value for name, value in request.raw_plan.items() if not name.startswith("$")},
                "paths": asdict(request.paths),
                "adapter": None if request.adapter is None else str(request.adapter.resolve()),
                "out": str(request.out.resolve()),
                "identities": request.identities,
            }
            for request in missing
        ]
        environment = rank_environment(missing[0].plan, os.environ).variables
        done = subprocess.run(  # noqa: S603 - the program itself
            [sys.executable, "-m", MODULE], input=json.dumps(document), text=True, env=environment, check=False
        )
        if done.returncode:
            code = ExitCode(done.returncode) if done.returncode in set(ExitCode) else ExitCode.INTERNAL
            fix = "read the lines above"
            raise Refusal(_fault(missing[0].out, f"ended with exit code {done.returncode}", "an evaluation", fix, code))
    return [load_json(request.out, gate="evaluation") for request in asked]


def _started_with(run: Path) -> Path:
    """Return the plan file that the newest launch of a run names."""
    events, _ = read_events(run)
    named = [event.data["plan_file"] for event in events if "plan_file" in event.data]
    path = Path(named[-1]) if named else None
    if path is None or not path.is_file():
        found = "no event names the plan it was started with" if path is None else f"{path} is gone"
        raise Refusal(_fault(run, found, "the plan file", "name it with --plan"))
    if sha256_file(path) != sha256_file(run / layout.PLAN):
        raise Refusal(
            _fault(path, "another plan than the run's", "the plan it was started with", "name it with --plan")
        )
    return path


def _fault(path: Path, found: str, expected: str, fix: str, code: ExitCode = ExitCode.CONTRACT) -> Fault:
    return Fault(gate="evaluation", file=str(path), found=found, expected=expected, fix=fix, exit_code=code)
