"""A run that reports to MLflow and Weights & Biases, in an environment that has them, without any network."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from typing import TYPE_CHECKING

import pytest

from explicit_learning.files.resources import PLANS, ROOT
from explicit_learning.lock import TRACKERS_LOCK

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.training, pytest.mark.checkout]

ROWS = 32
# A network namespace of its own: no address leads anywhere. Ranks need the loopback interface.
WITHOUT_NETWORK = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of this environment with what `trackers.lock` names beside it, installed as a user does."""
    folder = tmp_path_factory.mktemp("trackers") / "env"
    uv = shutil.which("uv", path=sysconfig.get_path("scripts"))
    assert uv is not None
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, folder], check=True)
    python = folder / "bin" / "python"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "lib" / version / "site-packages"
    (packages / "run.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    options = ["--no-deps", "--require-hashes", "-r", str(TRACKERS_LOCK)]
    subprocess.run([uv, "pip", "install", "--quiet", "--python", python, *options], check=True)
    return python


def el(python: Path, *words: object, prefix: tuple[str, ...] = (), **variables: str) -> str:
    command = [*prefix, str(python), str(ROOT / "entrypoint.py"), *map(str, words)]
    environment = {**os.environ, **variables}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("ip"), reason="only root makes a network namespace, with iproute2"
)
def test_trackers_write_offline_and_change_nothing(python: Path, tmp_path: Path, digits_manifest: Path) -> None:
    plan, home = tmp_path / "plan.json", tmp_path / "home"
    home.mkdir()
    (home / ".netrc").write_text("machine host login user password secret\n")
    draft, data = PLANS / "demo" / "sft_certificate.json", json.dumps({"manifest": str(digits_manifest)})
    fields = (f"data={data}", f"budget.max_sft_loss_tokens={ROWS * 8}", "optimisation.save_interval=2")
    settings = [word for field in fields for word in ("--set", field)]
    el(python, "freeze", draft, "-o", plan, *settings)
    el(python, "run", plan, "--out", tmp_path / "without")

    trackers, key = "wandb,tensorboard,mlflow", {"WANDB_API_KEY": "0" * 40, "WANDB_MODE": "online"}
    text = el(
        python,
        *("run", plan, "--out", tmp_path / "with"),
        prefix=WITHOUT_NETWORK,
        HOME=str(home),
        EXPLICIT_REPORT_TO=trackers,
        **key,
    )
    assert "failed" not in text

    for name in ("final-adapter/adapter_model.safetensors", "metrics.jsonl"):
        assert (tmp_path / "with" / name).read_bytes() == (tmp_path / "without" / name).read_bytes()
    rows = [json.loads(line) for line in (tmp_path / "with" / "metrics.jsonl").read_text().splitlines()]
    (logged,) = (tmp_path / "with" / "mlflow").glob("*/*/metrics/loss")
    points = [line.split() for line in logged.read_text().splitlines()]
    assert [(int(step), float(value)) for _, value, step in points] == [(row["step"], row["loss"]) for row in rows]
    identity = json.loads((tmp_path / "with" / "run-manifest.json").read_text())["run_manifest_sha256"]
    (offline,) = (tmp_path / "with" / "wandb").glob("offline-run-*")
    written = (offline / f"run-{identity[:32]}.wandb").read_bytes()
    assert all(name.encode() in written for name in rows[-1])
    assert list((tmp_path / "with" / "tensorboard").rglob("events*"))

    assert not [path for path in (tmp_path / "with").rglob("*") if path.is_symlink()]
    touched = {path.relative_to(home).parts[:2] for path in home.rglob("*") if path.is_file()}
    assert touched <= {(".netrc",), (".cache", "explicit-learning")}
    el(python, "verify", tmp_path / "with")
