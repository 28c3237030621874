"""Training curves for MLflow and Weights & Biases, in files of the run directory.

Both get the rows of ``metrics.jsonl``, and from the plan what identifies the run. transformers has callbacks for both,
which log hundreds of arguments that differ between the launches of one run: MLflow refuses a changed one, and so the
resume. A tracker draws no random number from a stream of the training, opens no connection (the environment that
`explicit_learning.launch.environment` sets keeps both offline), and never ends a run: one that fails gets no more rows.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from transformers import TrainerCallback

from explicit_learning.gates.trackers import MLFLOW_TRACKER, WANDB_TRACKER
from explicit_learning.rundir.layout import MLFLOW, WANDB
from explicit_learning.rundir.metrics import is_logged, plain_metrics

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from transformers import TrainerControl, TrainerState, TrainingArguments

    from explicit_learning.rundir.launch_manifest import LaunchManifest

__all__ = ["TrackerCallback"]

PROJECT = "explicit-learning"
IDENTITY_TAG = "explicit_learning.run_manifest_sha256"
WANDB_ID_DIGITS = 32


class _Tracker(Protocol):
    """A tracker's run that is open for rows."""

    def log(self, step: int, row: dict[str, float]) -> None:
        """Add the metrics of an optimizer step."""

    def end(self) -> None:
        """Close the run, so that all its files are written."""


class TrackerCallback(TrainerCallback):
    """Sends rank 0's logged rows to trackers."""

    def __init__(self, manifest: LaunchManifest, say: Callable[[str], None]) -> None:
        """Make the callback; trackers are opened when training begins.

        Args:
            manifest: The launch manifest, whose ``report_to`` names the trackers.
            say: Shows one line to the person who started the run.
        """
        self._manifest = manifest
        self._say = say
        self._open: dict[str, _Tracker] = {}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Open the trackers' runs, or go on with those of an earlier launch."""
        del args, state, control, kwargs
        for name in self._manifest.report_to:
            if name in TRACKERS:
                self._try(name, partial(self._begin, name))

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Send a step's row. Values that are not finite are left out, as neither tracker can draw them."""
        del args, control
        logs: dict[str, Any] = kwargs.get("logs") or {}
        if not is_logged(logs):
            return
        row = plain_metrics(state.global_step, logs)
        finite = {name: float(value) for name, value in row.items() if name != "step" and value is not None}
        for name, tracker in list(self._open.items()):
            self._try(name, partial(tracker.log, state.global_step, finite))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Close the trackers' runs."""
        del args, state, control, kwargs
        for name, tracker in list(self._open.items()):
            self._try(name, tracker.end)
        self._open.clear()

    def _begin(self, name: str) -> None:
        self._open[name] = TRACKERS[name](self._manifest)

    def _try(self, name: str, action: Callable[[], object]) -> None:
        """Do something with a tracker; say so and use it no more if it fails, whatever its library raises."""
        try:
            action()
        except Exception as error:
            logging.getLogger(__name__).exception("the tracker %s failed", name)
            self._say(f"the tracker {name} failed and gets no more metrics; the run goes on: {error}")
            self._open.pop(name, None)


def _identity(manifest: LaunchManifest) -> dict[str, str | int]:
    """Return what identifies a run, whichever launch of it this is."""
    plan = manifest.plan
    return {
        "run_id": plan.run_id,
        "arm": plan.arm,
        "seed": plan.seed,
        "data_seed": plan.data_seed,
        "max_steps": plan.optimisation.max_steps,
        "frozen_config_sha256": plan.frozen_config_sha256,
        "run_manifest_sha256": manifest.run_manifest_sha256,
    }


class _MlflowRun:
    """A run in MLflow's file store, which needs no database."""

    def __init__(self, manifest: LaunchManifest) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client = MlflowClient(tracking_uri=(manifest.run / MLFLOW).as_uri())
        experiment = self._client.get_experiment_by_name(PROJECT)
        number = self._client.create_experiment(PROJECT) if experiment is None else experiment.experiment_id
        tag = {IDENTITY_TAG: manifest.run_manifest_sha256}
        earlier = self._client.search_runs([number], f"tags.`{IDENTITY_TAG}` = '{manifest.run_manifest_sha256}'")
        if earlier:
            self._id: str = earlier[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
        else:
            self._id = self._client.create_run(number, tags=tag, run_name=manifest.plan.run_id).info.run_id
            params = [Param(name, str(value)) for name, value in _identity(manifest).items()]
            self._client.log_batch(self._id, params=params)

    def log(self, step: int, row: dict[str, float]) -> None:
        from mlflow.entities import Metric

        now = time.time_ns() // 1_000_000
        self._client.log_batch(self._id, metrics=[Metric(name, value, now, step) for name, value in row.items()])

    def end(self) -> None:
        self._client.set_terminated(self._id)


class _WandbRun:
    """An offline run of Weights & Biases: each launch adds a folder, and all have the same run id."""

    def __init__(self, manifest: LaunchManifest) -> None:
        import wandb

        self._folder = manifest.run / WANDB
        _remove_links(self._folder)
        self._folder.mkdir(exist_ok=True)  # without it, the library takes the temporary folder
        self._run = wandb.init(
            project=PROJECT,
            id=manifest.run_manifest_sha256[:WANDB_ID_DIGITS],
            name=manifest.plan.run_id,
            config=dict(_identity(manifest)),
            dir=str(manifest.run),
            mode="offline",
            resume="allow",
            settings=wandb.Settings(x_disable_stats=True, x_disable_meta=True, disable_job_creation=True),
        )

    def log(self, step: int, row: dict[str, float]) -> None:
        self._run.log(row, step=step)

    def end(self) -> None:
        self._run.finish()
        _remove_links(self._folder)


def _remove_links(folder: Path) -> None:
    """Remove links, which the library makes to its cache: a run directory holds none, so that it can be moved."""
    if folder.is_dir():
        for path in folder.rglob("*"):
            if path.is_symlink():
                path.unlink()


TRACKERS: dict[str, Callable[[LaunchManifest], _Tracker]] = {MLFLOW_TRACKER: _MlflowRun, WANDB_TRACKER: _WandbRun}
