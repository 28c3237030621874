"""Every name and place in a run directory, once (``docs/run-directory.md`` is the table of them).

All names are POSIX paths relative to the run directory, or to the folder that the heading names. Nothing outside this
file spells them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from explicit_learning.files.atomic import TEMPORARY_PREFIX
from explicit_learning.model_files.folders import ADAPTER_FILES

__all__ = [
    "ADAPTER_CONFIG",
    "ADAPTER_WEIGHTS",
    "ANSWERS",
    "CHECKPOINT_MARK",
    "COMPLETION_MARKER",
    "EVALUATION",
    "EVALUATIONS",
    "EVALUATION_FILES",
    "EVALUATION_STATEMENT",
    "EVENTS",
    "FINAL_ADAPTER",
    "LAUNCHES",
    "LOCK",
    "LOGS",
    "METRICS",
    "MLFLOW",
    "MODEL_CARD",
    "OPTIMIZER",
    "OUTPUT_COMPARISON",
    "PLAN",
    "PROVENANCE",
    "PUBLIC_KEY",
    "REFERENCE_ADAPTER",
    "RESUME_AUDITS",
    "RUN_MANIFEST",
    "SCHEDULER",
    "SET_ASIDE",
    "SMOKE_BOUNDARY",
    "STATEMENT",
    "TENSORBOARD",
    "TRACKER_FOLDERS",
    "TRAINER_STATE",
    "UNINTERRUPTED",
    "WANDB",
    "belongs_to_run",
    "checkpoint_name",
    "counters_file",
    "default_run_folder",
    "default_runs_folder",
    "evaluation_file",
    "frontiers_file",
    "is_covered",
    "is_of_file_system",
    "launch_end_file",
    "launch_of_start_file",
    "launch_start_file",
    "launcher_log",
    "public_key_file",
    "random_streams_file",
    "rank_log",
    "resume_audit_file",
    "state_digests_file",
    "statement_file",
    "step_of",
]

# --- the run directory: what a run is, and how far it has come
PLAN = "plan.json"
RUN_MANIFEST = "run-manifest.json"
COMPLETION_MARKER = "training-complete.json"
EVENTS = "events.jsonl"
METRICS = "metrics.jsonl"
SMOKE_BOUNDARY = "smoke-resume-boundary.json"
OUTPUT_COMPARISON = "smoke-output-comparison.json"
LOCK = ".lock"

# --- its folders; accounting/ is named by `explicit_learning.accounting`
FINAL_ADAPTER = "final-adapter"
LAUNCHES = "launches"
RESUME_AUDITS = "resume-audits"
SET_ASIDE = "set-aside"
EVALUATIONS = "evaluations"
PROVENANCE = "provenance"
LOGS = "logs"
TENSORBOARD = "tensorboard"
MLFLOW = "mlflow"
WANDB = "wandb"
TRACKER_FOLDERS = (TENSORBOARD, MLFLOW, WANDB)
UNINTERRUPTED = "uninterrupted"  # the run that a smoke run is compared with, itself a run directory

# --- provenance/
STATEMENT = "run.intoto.json"
PUBLIC_KEY = "signing-key.pub"  # of a signed statement

# --- an evaluation's folder; PUBLIC_KEY, too, if its statement is signed
EVALUATION = "evaluation.json"
ANSWERS = "answers.jsonl"
EVALUATION_STATEMENT = "evaluation.intoto.json"
EVALUATION_FILES = frozenset({ANSWERS, EVALUATION, PUBLIC_KEY, EVALUATION_STATEMENT})  # all that it can hold

# --- an adapter's folder: the final one, and each checkpoint
ADAPTER_CONFIG, ADAPTER_WEIGHTS = ADAPTER_FILES
MODEL_CARD = "README.md"

# --- a checkpoint's folder
CHECKPOINT_MARK = "complete.json"
REFERENCE_ADAPTER = "ref"
OPTIMIZER = "optimizer.pt"
SCHEDULER = "scheduler.pt"
TRAINER_STATE = "trainer_state.json"

_CHECKPOINT = re.compile(r"checkpoint-([1-9][0-9]*)")
_LAUNCH_START = re.compile(r"([A-Za-z0-9-]{1,64})\.json")


def default_runs_folder() -> Path:
    """Return the folder of all runs: ``$EXPLICIT_RUNS``, else ``runs``."""
    return Path(os.environ.get("EXPLICIT_RUNS") or "runs")


def default_run_folder(run_id: str) -> Path:
    """Return the folder of a run for which none is named."""
    return default_runs_folder() / run_id


def checkpoint_name(step: int) -> str:
    """Return the name of the checkpoint after a step (transformers' own naming)."""
    return f"checkpoint-{step}"


def step_of(name: str) -> int | None:
    """Return the step of a checkpoint's name, or ``None`` for any other name."""
    match = _CHECKPOINT.fullmatch(name)
    return int(match[1]) if match else None


def is_of_file_system(name: str) -> bool:
    """Whether an entry was left by a file system or a file manager: no run makes it, and removing it can be impossible.

    NFS and FUSE keep a file that was removed while it was open under such a name; macOS, Windows and network storage
    put theirs into every folder that a person looks at.
    """
    return name in {".DS_Store", "Thumbs.db", "desktop.ini", "@eaDir"} or name.startswith(
        (".nfs", ".fuse_hidden", "._")
    )


# Logs, what is added to a complete run later, and what no run needs.
_NOT_COVERED = frozenset({EVENTS, LOCK, f"{PROVENANCE}/{STATEMENT}"})
_NOT_COVERED_FOLDERS = tuple(f"{name}/" for name in (LOGS, *TRACKER_FOLDERS, EVALUATIONS))


def is_covered(name: str) -> bool:
    """Whether the statement of a complete run covers a file, by its POSIX path relative to the run directory."""
    if name in _NOT_COVERED or name.startswith(_NOT_COVERED_FOLDERS):
        return False
    return not any(map(is_of_file_system, name.split("/")))


def belongs_to_run(name: str) -> bool:
    """Whether a file of a run directory, by its POSIX path relative to it, is a part of the run.

    The lock, what a kill left behind (also in a folder that was to appear whole) and what a file system put there are
    not.
    """
    parts = name.split("/")
    return name != LOCK and not any(part.startswith(TEMPORARY_PREFIX) or is_of_file_system(part) for part in parts)


def frontiers_file(rank: int) -> str:
    """Return where a rank's accounting frontiers lie in a checkpoint."""
    return f"accounting/rank-{rank}.json"


def state_digests_file(rank: int) -> str:
    """Return where the digests of a rank's state lie in a checkpoint."""
    return f"state-digests-rank-{rank}.json"


def random_streams_file(rank: int) -> str:
    """Return where a rank's random streams lie in a checkpoint."""
    return f"random-streams-rank-{rank}.pt"


def counters_file(rank: int) -> str:
    """Return where a rank's counters lie in a checkpoint."""
    return f"counters-rank-{rank}.json"


def resume_audit_file(checkpoint: str, launch_id: str) -> str:
    """Return where the audit of a launch that resumed a checkpoint lies."""
    return f"{RESUME_AUDITS}/{checkpoint}-{launch_id}.json"


def launch_start_file(launch_id: str) -> str:
    """Return where the record of a launch's start lies."""
    return f"{LAUNCHES}/{launch_id}.json"


def launch_end_file(launch_id: str) -> str:
    """Return where the record of a launch's end lies."""
    return f"{LAUNCHES}/{launch_id}.end.json"


def launch_of_start_file(name: str) -> str | None:
    """Return the launch whose start record has a name inside `LAUNCHES`, or ``None`` for any other name."""
    match = _LAUNCH_START.fullmatch(name)
    return match[1] if match else None


def evaluation_file(name: str) -> str:
    """Return where an evaluation lies in a folder of evaluations; its name is a hash of what it depends on."""
    return f"{name}/{EVALUATION}"


def statement_file() -> str:
    """Return where the statement of a run lies."""
    return f"{PROVENANCE}/{STATEMENT}"


def public_key_file() -> str:
    """Return where the public key of a signed statement lies."""
    return f"{PROVENANCE}/{PUBLIC_KEY}"


def rank_log(rank: int) -> str:
    """Return where a rank's log lies."""
    return f"{LOGS}/rank-{rank}.log"


def launcher_log(node: int | None = None) -> str:
    """Return where the log of the launcher lies, or of one node's launcher where there are several."""
    return f"{LOGS}/launcher.log" if node is None else f"{LOGS}/launcher-node-{node}.log"
