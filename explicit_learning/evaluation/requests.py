"""Requests to the evaluation process, and what it leaves.

An evaluation is named by what it depends on: the adapter's tensors, the evaluation rows, the prompt, the engine and the
environment. So the same request always has the same name, and repeating it costs nothing. Its statement is written
last, by the process that has the signing key; a kill before that is repaired by the same command.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from explicit_learning.completion.evaluation_statement import write_evaluation_statement
from explicit_learning.data.other_rows import other_rows_faults
from explicit_learning.data.preflight import Tokens
from explicit_learning.errors import Context, ExitCode, Refusal
from explicit_learning.evaluation.environment import environment_faults, measured_machine
from explicit_learning.evaluation.process import run_process
from explicit_learning.files.canonical import sha256_json
from explicit_learning.files.child_environment import KEY_VARIABLE
from explicit_learning.files.hashing import sha256_file
from explicit_learning.files.os_errors import read_fault, write_fault
from explicit_learning.files.tree import FolderTree
from explicit_learning.files.typed_json import to_json
from explicit_learning.gates.output import place_faults
from explicit_learning.gates.signing import named_signer
from explicit_learning.inputs.base_model import read_base_model
from explicit_learning.inputs.data import envelope_faults
from explicit_learning.inputs.frozen import frozen_paths
from explicit_learning.inputs.initial_adapter import read_initial_adapter
from explicit_learning.inputs.named import read_system_prompt
from explicit_learning.inputs.outputs import inputs_of_paths, output_faults
from explicit_learning.launch.environment import rank_environment
from explicit_learning.lock import lock_sha256
from explicit_learning.lock.installed import lock_of_new_plan
from explicit_learning.model_files.folders import ADAPTER_FILES, adapter_sha256
from explicit_learning.plan.reading import load_plan
from explicit_learning.plan.typed_plan import Plan, ResolvedPaths  # noqa: TC001 - read at run time
from explicit_learning.rundir import layout
from explicit_learning.rundir.checkpoint_mark import read_mark
from explicit_learning.rundir.completion_marker import read_marker
from explicit_learning.rundir.evaluation import EvaluationIdentity, identity_of, read_evaluation
from explicit_learning.rundir.events import gates_records, read_events
from explicit_learning.rundir.launches import Machine  # noqa: TC001 - read at run time
from explicit_learning.verify.evaluations import stated_faults

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from securesystemslib.signer import CryptoSigner

    from explicit_learning.data.preflight import Asked
    from explicit_learning.errors import Fault
    from explicit_learning.plan.typed_plan import EvaluationEngine, Generation
    from explicit_learning.rundir.evaluation import Evaluation

__all__ = [
    "EvaluationJob",
    "EvaluationRequest",
    "Questions",
    "Which",
    "answer_requests",
    "engine_key",
    "evaluation_of_run",
    "models_of_run",
]

Which = Literal["final", "best", "initial", "base"]
OTHER = "other"  # an adapter that is named by its folder
CONTEXT = Context(gate="evaluation")
RESTORE = Context(gate="evaluation", fix="restore the run from a copy")
MODULE = "explicit_learning.evaluation"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationJob:
    """What one evaluation process gets.

    Attributes:
        machine: The machine it runs on.
        requests: What it answers: requests with one key (see `engine_key`).
    """

    machine: Machine
    requests: tuple[EvaluationRequest, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """What is asked, if not all that the plan names.

    Attributes:
        rows: An other file of evaluation rows.
        asset_root: Where its images lie; by default the folder of the file.
        limit: Number of base items to ask about.
    """

    rows: Path | None = None
    asset_root: Path | None = None
    limit: int | None = None


def evaluation_of_run(
    run: Path,
    which: Which | Path,
    *,
    questions: Questions | None = None,
    engine: EvaluationEngine | None = None,
    plan_file: Path | None = None,
    out: Path | None = None,
    known: set[str] | None = None,
) -> EvaluationRequest:
    """Return the request for one of a run's adapters, its base model, or an adapter in a folder.

    Args:
        run: The run directory.
        which: Whose answers are wanted: a word (``best`` is the best checkpoint by the run's validations), or an
            adapter's folder.
        questions: What is asked; by default the plan's evaluation rows.
        engine: What answers; by default what the plan says.
        plan_file: The plan that the run was started with; by default the file that the run's events name. The inputs
            are found from there, because a run directory holds no absolute path.
        out: The folder that the evaluation's own folder is written to; by default the run's ``evaluations/``.
        known: Inputs that were checked for other runs; see `frozen_paths`.

    Raises:
        Refusal: If the run is not complete, its adapter is not the one that was recorded, it has no best checkpoint,
            its inputs are not what the plan says, an adapter does not fit the plan, other rows are not in order or were
            trained on, or the evaluation would lie in one of the inputs.
    """
    questions = questions or Questions()
    plan = _plan_of(run)
    started_with = plan_file or _started_with(run)
    paths = frozen_paths(started_with, expected=plan.frozen_config_sha256, known=known)
    asked, rows_sha256 = paths, None
    if questions.rows is not None:
        trained = started_with.resolve().parent / plan.data.dataset_manifest.path
        asked = _with_other_rows(
            paths, questions.rows, questions.asset_root, trained=trained, generation=plan.generation, file=started_with
        )
        rows_sha256 = sha256_file(questions.rows)
    if which in {"final", "best"} and not (run / layout.COMPLETION_MARKER).is_file():
        raise CONTEXT.at(run).refusal(
            found=f"a run without {layout.COMPLETION_MARKER}",
            expected="a completed run",
            fix="finish it first, with el run PLAN --out and this folder",
        )
    adapter, sha256, marker_sha256 = None, None, None
    if which == "final":
        _require_final_adapter(run, plan)
        adapter = str(run / layout.FINAL_ADAPTER)
        sha256 = adapter_sha256(run / layout.FINAL_ADAPTER)
        marker_sha256 = sha256_file(run / layout.COMPLETION_MARKER)
    elif which == "best":
        checkpoint = _best_checkpoint(run)
        adapter, sha256 = str(checkpoint), adapter_sha256(checkpoint)
        marker_sha256 = sha256_file(run / layout.COMPLETION_MARKER)
    elif which == "initial":
        if plan.initial_adapter is None:
            fix = "leave it out, or ask for the base model's answers, which the run started from"
            raise CONTEXT.at(run).refusal(
                pointer="--which",
                found=f"initial, and a run of {plan.arm}, which starts without an adapter",
                expected="a run that starts from an adapter",
                fix=fix,
                exit_code=ExitCode.USAGE,
            )
        adapter, sha256 = paths.initial_adapter, plan.initial_adapter.sha256  # it was compared with the file
    elif isinstance(which, Path):
        adapter, sha256 = str(which), _named_adapter_sha256(which, plan, Path(paths.model))
    identity = identity_of(
        plan,
        which=OTHER if isinstance(which, Path) else which,
        completion_marker_sha256=marker_sha256,
        adapter_sha256=sha256,
        engine=engine or plan.generation.evaluation_engine,
        evaluation_lock_sha256=lock_sha256(lock_of_new_plan(plan.hardware.accelerator)),
        rows_sha256=rows_sha256,
        limit=questions.limit,
    )
    file = (out or run / layout.EVALUATIONS).resolve() / layout.evaluation_file(identity.name)
    inputs = inputs_of_paths(paths)
    if not file.is_relative_to((run / layout.EVALUATIONS).resolve()):
        inputs.append(("the run", run))
    if faults := output_faults(file.parent, inputs, option="--out"):
        raise Refusal(faults)
    return EvaluationRequest(
        label=f"{run.name} ({which})",
        plan=plan,
        paths=asked,
        adapter=None if adapter is None else str(Path(adapter).resolve()),
        out=str(file),
        identity=identity,
    )


def _named_adapter_sha256(folder: Path, plan: Plan, model: Path) -> str:
    """Return the identity of an adapter that the command line names.

    Raises:
        Refusal: If it is not a whole adapter of the plan's shape.
    """
    try:
        return read_initial_adapter(folder, lora=plan.lora, model=read_base_model(model)).sha256()
    except Refusal as refusal:
        of_plans = "/initial_adapter/"  # where a plan would name it
        raise Refusal(
            replace(fault, pointer="--adapter") if (fault.pointer or "").startswith(of_plans) else fault
            for fault in refusal.faults
        ) from None


def models_of_run(run: Path) -> list[Which]:
    """Return whose answers a run has: the final adapter's, the initial one's if there is one, and the base model's.

    Raises:
        Refusal: If the folder is not a run directory, or its plan is not in order.
    """
    return ["final", "base"] if _plan_of(run).initial_adapter is None else ["final", "initial", "base"]


def _plan_of(run: Path) -> Plan:
    if not (run / layout.PLAN).is_file():
        raise CONTEXT.at(run).refusal(
            found=f"a folder without {layout.PLAN}",
            expected="a run directory",
            fix="name the folder that el run --out wrote",
            exit_code=ExitCode.USAGE,
        )
    return load_plan(run / layout.PLAN)


def _with_other_rows(
    paths: ResolvedPaths,
    rows: Path,
    asset_root: Path | None,
    *,
    trained: Path,
    generation: Generation,
    file: Path,
) -> ResolvedPaths:
    """Return a plan's paths with an other file of evaluation rows, and the place of its images.

    Raises:
        Refusal: With everything that is wrong with the rows.
    """
    root = asset_root or rows.parent

    def envelope(asked: Sequence[Asked]) -> list[Fault]:
        system, limit = read_system_prompt(Path(paths.prompt)).text, generation.max_image_tokens
        tokens = Tokens.of_model(Path(paths.model), system, max_image_tokens=limit)
        return envelope_faults(asked, tokens, generation, file=str(file), system_file=paths.prompt)

    if faults := other_rows_faults(
        rows, asset_root=root, trained=trained, trained_root=Path(paths.asset_root), envelope=envelope
    ):
        raise Refusal(faults)
    return replace(paths, evaluation=str(rows.resolve()), asset_root=str(root.resolve()))


def _require_final_adapter(run: Path, plan: Plan) -> None:
    """Compare a run's final adapter with its marker, which was written when the adapter was the one just trained.

    Raises:
        Refusal: If a file is missing or another one, or the marker is that of another plan.
    """
    marker = read_marker(run)
    pointer, frozen = "/identities/frozen_config_sha256", marker.identities.frozen_config_sha256
    faults = []
    if frozen != plan.frozen_config_sha256:
        expected, file = f"{plan.frozen_config_sha256}, the plan's", run / layout.COMPLETION_MARKER
        faults.append(RESTORE.fault(file=file, pointer=pointer, found=frozen, expected=expected))
    faults += _adapter_faults(run / layout.FINAL_ADAPTER, marker.adapter.files, layout.COMPLETION_MARKER)
    if faults:
        raise Refusal(faults)


def _best_checkpoint(run: Path) -> Path:
    """Return the folder of a run's best checkpoint, whose adapter is as it was when the checkpoint was sealed.

    Raises:
        Refusal: If the run was not validated (exit code 64), or a file is missing or another one.
    """
    validated = read_marker(run).validation
    if validated is None:
        raise CONTEXT.at(run).refusal(
            pointer="--which",
            found="best, and a run that was not validated while it trained",
            expected="a run whose plan has `validation`",
            fix="leave it out, or name a checkpoint's folder with --adapter",
            exit_code=ExitCode.USAGE,
        )
    folder = run / validated.best.checkpoint
    recorded = {name: file.sha256 for name, file in read_mark(folder).files.items()}
    if faults := list(_adapter_faults(folder, recorded, layout.CHECKPOINT_MARK)):
        raise Refusal(faults)
    return folder


def _adapter_faults(folder: Path, recorded: Mapping[str, str], source: str) -> Iterator[Fault]:
    """Yield what differs in the files of an adapter from the hashes that a document of the run has."""
    for name in ADAPTER_FILES:
        path = folder / name
        try:
            found = sha256_file(path)
        except OSError as error:
            expected = "a file of the adapter"
            yield read_fault(error, path, gate="evaluation", expected=expected, missing_fix=RESTORE.fix)
            continue
        if found != recorded.get(name):
            yield RESTORE.fault(file=path, found=found, expected=f"{recorded.get(name)}, as in {source}")


def answer_requests(requests: Iterable[EvaluationRequest]) -> list[dict[str, Any]]:
    """Return the evaluations, in the order of the requests; those without a file are made first.

    Each gets its statement, if it has none yet: signed with the key in ``EXPLICIT_SIGNING_KEY``, unsigned without.

    Raises:
        Refusal: If the key cannot sign, this environment is not its lock's or lacks an engine, there is no place for
            an evaluation, the evaluation process fails, or one that is there is not as asked for.
    """
    signer = named_signer(os.environ.get(KEY_VARIABLE))
    wanted = list(requests)
    # One of each: a run that is named twice is asked once.
    missing = [request for request in {item.out: item for item in wanted}.values() if not Path(request.out).is_file()]
    faults = environment_faults({(item.identity.engine, item.plan.hardware.accelerator) for item in missing})
    faults += [fault for folder in {Path(item.out).parent for item in missing} for fault in place_faults(folder)]
    if faults:
        raise Refusal(faults)
    for together in _processes(missing):
        _evaluate(together)
    return [to_json(_stated(request, signer)) for request in wanted]


def _stated(request: EvaluationRequest, signer: CryptoSigner | None) -> Evaluation:
    """Return an evaluation that is there; its statement is written if it is not, and else compared with the files."""
    file = Path(request.out)
    try:
        record = read_evaluation(file, request.identity)
    except OSError as error:
        raise Refusal(read_fault(error, file, gate="evaluation")) from None
    if not file.with_name(layout.EVALUATION_STATEMENT).is_file():
        try:
            write_evaluation_statement(file.parent, signer)
        except OSError as error:
            raise Refusal(write_fault(error, file.with_name(layout.EVALUATION_STATEMENT))) from None
    elif faults := stated_faults(FolderTree(file.parent)):
        raise Refusal(faults)
    return record


def engine_key(request: EvaluationRequest) -> str:
    """Return what an engine is started for: requests with one key can be answered by one engine.

    The exact engine loads a model for each request. vLLM is started with a model and a shape of adapters, or without
    adapters for the base model, so that an answer does not depend on what else was asked for.
    """
    plan, engine = request.plan, request.identity.engine
    if engine == "exact":
        return engine
    blocks = [plan.hardware.accelerator, *map(to_json, (plan.generation, plan.lora, plan.vllm))]
    return sha256_json([engine, request.paths.model, request.adapter is None, blocks])


def _processes(requests: Iterable[EvaluationRequest]) -> list[list[EvaluationRequest]]:
    """Return the requests of each process: those for one engine in one environment."""
    found: dict[tuple[str, tuple[tuple[str, str], ...]], list[EvaluationRequest]] = {}
    for request in requests:
        settings = tuple(sorted(rank_environment(request.plan, os.environ).settings.items()))
        found.setdefault((engine_key(request), settings), []).append(request)
    return list(found.values())


def _evaluate(requests: list[EvaluationRequest]) -> None:
    """Answer requests in one process, which gets the same environment variables as a rank, and no signing key."""
    plan = requests[0].plan
    environment = rank_environment(plan, os.environ)
    job = EvaluationJob(machine=measured_machine(plan.hardware.accelerator, environment), requests=tuple(requests))
    run_process(MODULE, job, environment=environment, name="evaluation", context=CONTEXT.at(requests[0].out))


def _started_with(run: Path) -> Path:
    """Return the plan file that the newest launch of a run names."""
    events, _ = read_events(FolderTree(run), "gates")
    named = [record.plan_file for record in gates_records(events) if record.plan_file]
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
