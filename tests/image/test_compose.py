"""The services of `compose.gpu.yml`, started by podman-compose, on a machine without a GPU."""

from __future__ import annotations

import json
import secrets
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from explicit_learning.files.resources import ROOT
from tests.image.test_runs import SHORT, own_draft
from tests.support.podman import IMAGE, SECONDS, Docker, podman_environment

if TYPE_CHECKING:
    from collections.abc import Callable

    Compose = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.container

# What the machine of these tests lacks: a GPU, and the right to raise its limits.
LACKING = "services:\n  train:\n    deploy: !reset null\n    ulimits: !reset null\n"


@pytest.fixture(scope="session")
def podman_compose() -> Path:
    """The program, from the environment of `make lint`."""
    made = subprocess.run([ROOT / "tools" / "environment.sh", "lint"], stdout=subprocess.PIPE, text=True, check=True)
    return Path(made.stdout.splitlines()[-1]).with_name("podman-compose")


@pytest.fixture
def compose(podman_compose: Path, tmp_path: Path, open_folder: Path, image_id: str) -> Compose:
    """Run a service to its end, under a uid that the image does not know, with a folder of its own at /work."""
    lacking = tmp_path / "lacking.yml"
    lacking.write_text(LACKING)
    declared = {
        "EXPLICIT_IMAGE_ID": image_id,
        "EXPLICIT_WORK": str(open_folder),
        "EXPLICIT_UID": "98765",
        "EXPLICIT_GID": "4321",
    }
    files = ("-f", str(ROOT / "compose.gpu.yml"), "-f", str(lacking))
    # Its own name, and no pod, so that nothing is left behind.
    project = ("--in-pod", "false", "--project-name", f"el-test-{secrets.token_hex(8)}")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [podman_compose, *project, *files, "run", "-T", "--rm", *words],
            env=podman_environment() | declared,
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
        )

    return run


def test_train_runs_a_plan_and_records_the_image_that_it_declares(
    docker: Docker, compose: Compose, open_folder: Path, image_id: str
) -> None:
    own_draft(open_folder)
    frozen = docker.run("-v", f"{open_folder}:/work", IMAGE, "freeze", "draft.json", "-o", "plan.json", *SHORT)
    assert frozen.returncode == 0, frozen.stderr
    done = compose("train", "plan.json")
    assert done.returncode == 0, done.stderr
    run = open_folder / "runs" / "answer_grpo-seed0"
    assert json.loads((run / "run-manifest.json").read_text())["status"] == "completed"
    assert run.stat().st_uid == 98765
    (launch,) = [json.loads(path.read_text()) for path in run.glob("launches/*.json") if "end" not in path.name]
    digests = launch["nodes"][0]["image"]["digests"]
    assert digests["config"] == {"value": image_id, "known_by": "declared"}


def test_train_ends_with_the_exit_code_of_the_run(compose: Compose) -> None:
    done = compose("train", "missing.json")
    assert done.returncode == 64, done.stderr
    assert "missing.json" in done.stderr


def test_the_contract_tests_pass_as_a_service(compose: Compose) -> None:
    """Under a uid of its own, read-only, without network: what they write goes to the image's volumes."""
    done = compose("contracts")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    last = done.stdout.strip().splitlines()[-1]
    assert int(last.split(" passed")[0].split()[-1]) > 1000, last
    assert "failed" not in last
