"""Requests to the evaluation process, and the files with its answers.

An evaluation is named by what it depends on: the adapter's tensors, the evaluation rows and the prompt. So the same
request always has the same name, and repeating it costs nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from explicit_learning.errors import Context, ExitCode
from explicit_learning.files.canonical import sha256_json
from explicit_learning.files.hashing import sha256_file
from explicit_learning.files.strict_json import load_json
from explicit_learning.files.typed_json import to_json
from explicit_learning.inputs.frozen import frozen_paths
from explicit_learning.launch.environment import rank_environment
from explicit_learning.model_files.folders import adapter_sha256
from explicit_learning.plan.reading import load_plan
from explicit_learning.plan.typed_plan import Plan, ResolvedPaths  # noqa: TC001 - read at run time
from explicit_learning.rundir import layout
from explicit_learning.rundir.events import GatesRecord, read_events, records_of

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["EvaluationIdentity", "EvaluationRequest", "Which", "answer_requests", "evaluation_of_run"]

Which = Literal["final", "initial", "base"]
CONTEXT = Context(gate="evaluation")
MODULE = "explicit_learning.evaluation"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationIdentity:
    """What an evaluation is of, and the hashes of all that it depends on; a part of the evaluation's file.

    Attributes:
        run_id: The run.
        arm: Its arm.
        which: Whose answers: those of the ``final`` or ``initial`` adapter, or of the ``base`` model.
        adapter_sha256: File identity of the adapter; ``None`` for the base model.
        model_snapshot_sha256: Identity of the base model.
        evaluation_manifest_sha256: Hash of the evaluation rows' file.
        prompt_sha256: Hash of the system prompt's file.
        max_completion_tokens: Largest number of tokens of an answer.
        environment_lock_sha256: Hash of the environment's lock.
        schema_version: Version of the evaluation's file.
    """

    schema_version: int = 1
    run_id: str
    arm: str
    which: str
    adapter_sha256: str | None
    model_snapshot_sha256: str
    evaluation_manifest_sha256: str
    prompt_sha256: str
    max_completion_tokens: int
    environment_lock_sha256: str

    @property
    def name(self) -> str:
        """The evaluation's name: a hash of all that its numbers depend on."""
        labels = {"run_id", "arm", "which"}
        return sha256_json({name: value for name, value in to_json(self).items() if name not in labels})[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRequest:
    """One adapter (or none) on one plan's evaluation rows.

    Attributes:
        label: Whose adapter it is, for people.
        plan: The run's plan.
        paths: Absolute paths of the plan's inputs.
        adapter: Absolute path of the adapter's folder; ``None`` for the base model.
        out: Absolute path of the evaluation's file.
        identity: What the evaluation is of.
    """

    label: str
    plan: Plan
    paths: ResolvedPaths
    adapter: str | None
    out: str
    identity: EvaluationIdentity


def evaluation_of_run(
    run: Path, which: Which, *, plan_file: Path | None = None, known: set[str] | None = None
) -> EvaluationRequest:
    """Return the request for a run's final adapter, initial adapter, or base model.

    Args:
        run: The run directory.
        which: Whose answers are wanted.
        plan_file: The plan that the run was started with; by default the file that the run's events name. The inputs
            are found from there, because a run directory holds no absolute path.
        known: Inputs that were checked for other runs; see `frozen_paths`.

    Raises:
        Refusal: If the run is not complete, or its inputs are not what the plan says.
    """
    if not (run / layout.PLAN).is_file():
        raise CONTEXT.at(run).refusal(
            found=f"a folder without {layout.PLAN}",
            expected="a run directory",
            fix="name the folder that el run --out wrote",
            exit_code=ExitCode.USAGE,
        )
    plan = load_plan(run / layout.PLAN)
    paths = frozen_paths(plan_file or _started_with(run), expected=plan.frozen_config_sha256, known=known)
    if which == "final" and not (run / layout.COMPLETION_MARKER).is_file():
        raise CONTEXT.at(run).refusal(
            found=f"a run without {layout.COMPLETION_MARKER}",
            expected="a completed run",
            fix="finish it first, with el run PLAN --out and this folder",
        )
    adapter, sha256 = None, None
    if which == "final":
        adapter = str(run / layout.FINAL_ADAPTER)
        sha256 = adapter_sha256(run / layout.FINAL_ADAPTER)
    elif which == "initial" and plan.initial_adapter is not None:
        adapter, sha256 = paths.initial_adapter, plan.initial_adapter.sha256  # it was compared with the file
    identity = EvaluationIdentity(
        run_id=plan.run_id,
        arm=plan.arm,
        which=which,
        adapter_sha256=sha256,
        model_snapshot_sha256=plan.model.snapshot_sha256,
        evaluation_manifest_sha256=plan.data.evaluation_manifest.sha256,
        prompt_sha256=plan.prompt.sha256,
        max_completion_tokens=plan.generation.max_completion_tokens,
        environment_lock_sha256=plan.environment_lock_sha256,
    )
    return EvaluationRequest(
        label=f"{run.name} ({which})",
        plan=plan,
        paths=paths,
        adapter=None if adapter is None else str(Path(adapter).resolve()),
        out=str(run.resolve() / layout.evaluation_file(identity.name)),
        identity=identity,
    )


def answer_requests(requests: Iterable[EvaluationRequest]) -> list[dict[str, Any]]:
    """Return the evaluations, in the order of the requests; those without a file are made first.

    Raises:
        Refusal: If the evaluation process fails.
    """
    wanted = list(requests)
    missing = [request for request in wanted if not Path(request.out).is_file()]
    if missing:
        _evaluate(missing)
    return [load_json(Path(request.out), gate="evaluation") for request in wanted]


def _evaluate(requests: list[EvaluationRequest]) -> None:
    """Answer all requests in one process, which needs the environment of a rank."""
    done = subprocess.run(  # noqa: S603 - the program itself
        [sys.executable, "-m", MODULE],
        input=json.dumps(to_json(requests)),
        text=True,
        env=rank_environment(requests[0].plan, os.environ).variables,
        check=False,
    )
    if done.returncode:
        known = done.returncode in set(ExitCode)
        raise CONTEXT.at(requests[0].out).refusal(
            found=f"the evaluation process ended with exit code {done.returncode}",
            expected="exit code 0 and an evaluation",
            fix="do what the lines above say, then run the same command again",
            exit_code=ExitCode(done.returncode) if known else ExitCode.INTERNAL,
        )


def _started_with(run: Path) -> Path:
    """Return the plan file that the newest launch of a run names."""
    events, _ = read_events(run)
    named = [record.plan_file for record in records_of(events, GatesRecord) if record.plan_file]
    path = Path(named[-1]) if named else None
    context = Context(gate="evaluation", file=str(run), fix="name the plan that the run was started with: --plan PLAN")
    if path is None:
        raise context.refusal(
            found="no event names a plan file", expected="the plan file that the run was started with"
        )
    if not path.is_file():
        raise context.refusal(found=f"the plan file {path} does not exist", expected="the plan file in its place")
    if sha256_file(path) != sha256_file(run / layout.PLAN):
        raise context.at(path).refusal(
            found=f"a file that differs from the run's {layout.PLAN}", expected="the plan that the run was started with"
        )
    return path
