"""What is wrong with a container is refused, and the refusal names the option to change."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.lock import FULL_LOCK, lock_sha256
from explicit_learning.plan.reading import frozen_config_sha256
from tests.support.podman import IMAGE, Docker, podman_environment

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.container


def answer(done: subprocess.CompletedProcess[str]) -> tuple[int, dict[str, dict[str, Any]]]:
    """Return the exit code, and the faults by gate."""
    assert "Traceback" not in done.stderr, done.stderr
    document = json.loads(done.stdout)
    assert document["exit_code"] == done.returncode
    return done.returncode, {fault["gate"]: fault for fault in document["faults"]}


def plan_of_the_image(docker: Docker, **groups: Any) -> str:
    """Return the baked plan with some of its groups changed, frozen again."""
    text = docker.run("--entrypoint", "/bin/cat", IMAGE, "/work/plan.json").stdout
    plan = json.loads(text)
    for name, value in groups.items():
        plan[name] = plan[name] | value if isinstance(value, dict) else value
    for name in ("model", "initial_adapter", "prompt"):
        plan[name]["path"] = plan[name]["path"].replace("../opt", "/opt")
    for name in ("dataset", "dataset_manifest", "evaluation_manifest"):
        plan["data"][name]["path"] = f"/work/{plan['data'][name]['path']}"
    plan["data"]["asset_root"] = f"/work/{plan['data']['asset_root']}"
    plan["frozen_config_sha256"] = frozen_config_sha256(plan)
    return json.dumps(plan)


def check(docker: Docker, folder: Path, plan: str, *options: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Put a plan into a folder, mount that beside the image's own, and ask for all faults."""
    (folder / "mine.json").write_text(plan)
    return answer(docker.run("-v", f"{folder}:/mine", *options, IMAGE, "check", "/mine/mine.json", "--json"))


CUDA = {"hardware": {"accelerator": "cuda", "gpu_name_pattern": "H200", "driver_minimum": "580.65.06"}}


def test_a_gpu_plan_without_a_gpu(docker: Docker, open_folder: Path) -> None:
    code, faults = check(docker, open_folder, plan_of_the_image(docker, **CUDA))
    assert code == 69
    assert "--gpus all" in faults["hardware"]["fix"]
    assert "shm" not in faults, "64 MiB are enough for one GPU"


def test_hardly_any_shared_memory(docker: Docker) -> None:
    """Images are decoded in threads: nothing goes through it."""
    done = docker.run("--shm-size", "1m", IMAGE, "plan.json")
    assert done.returncode == 0, done.stderr


def test_a_mount_that_the_user_may_not_write_to(docker: Docker, open_folder: Path) -> None:
    mine = open_folder / "root's"
    mine.mkdir(mode=0o755)
    done = docker.run("-v", f"{mine}:/out", IMAGE, "plan.json", "--json")
    code, faults = answer(done)
    assert code == 73
    assert faults["output"]["file"].startswith("runs/")
    assert "permission" in faults["output"]["found"].lower()
    assert "--user" in faults["output"]["fix"]
    assert list(mine.iterdir()) == []


def test_a_plan_that_is_not_in_the_mount(docker: Docker, open_folder: Path) -> None:
    code, faults = answer(docker.run("-v", f"{open_folder}:/work", IMAGE, "plan.json", "--json"))
    (fault,) = faults.values()
    assert code == 64
    assert fault["file"] == "plan.json"
    assert "-v" in fault["fix"]


def test_no_home_and_no_name(docker: Docker) -> None:
    """Neither a home folder nor an entry in the list of users is needed."""
    options = ("--user", "4242", "-e", "HOME=", "-e", "USER=", "-e", "LOGNAME=")
    assert answer(docker.run(*options, IMAGE, "check", "plan.json", "--json"))[0] == 0


def test_a_plan_of_another_lock(docker: Docker, open_folder: Path) -> None:
    plan = plan_of_the_image(docker, environment_lock_sha256=lock_sha256(FULL_LOCK))
    code, faults = check(docker, open_folder, plan)
    assert (code, set(faults)) == (78, {"image"})
    assert f"el:lock-{lock_sha256(FULL_LOCK)[:12]}" in faults["image"]["fix"]


@pytest.mark.parametrize(
    "declared",
    ["latest", f"el:lock-{lock_sha256(FULL_LOCK)[:12]}@sha256:{'1' * 64}"],
    ids=["no digest", "another lock"],
)
def test_a_declaration_that_cannot_be_true(docker: Docker, declared: str) -> None:
    done = docker.run("-e", f"EXPLICIT_IMAGE_DIGEST={declared}", IMAGE, "check", "plan.json", "--json")
    code, faults = answer(done)
    assert (code, faults["image"]["pointer"]) == (78, "EXPLICIT_IMAGE_DIGEST")


def _wheel(folder: Path) -> Path:
    """Make the smallest wheel that installs."""
    path = folder / "stowaway-1.0-py3-none-any.whl"
    files = {
        "stowaway.py": "HERE = True\n",
        "stowaway-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: stowaway\nVersion: 1.0\n",
        "stowaway-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = [
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip('=')},{len(text)}"
        for name, text in files.items()
    ]
    files["stowaway-1.0.dist-info/RECORD"] = "\n".join([*record, "stowaway-1.0.dist-info/RECORD,,"]) + "\n"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def test_a_copy_of_the_image_with_another_package(docker: Docker, tmp_path: Path) -> None:
    _wheel(tmp_path)
    (tmp_path / "Dockerfile").write_text(
        f"FROM localhost/{IMAGE}\n"
        "USER 0\n"
        "COPY stowaway-1.0-py3-none-any.whl /\n"
        "RUN uv pip install --python /opt/env/bin/python --no-index --offline /stowaway-1.0-py3-none-any.whl\n"
    )
    command = ["buildah", "build", "--isolation", "chroot", "--network", "host", "-t", "localhost/el-changed", tmp_path]
    subprocess.run(command, check=True, capture_output=True, env=podman_environment())
    try:
        code, faults = answer(docker.run("el-changed", "check", "plan.json", "--json"))
        assert (code, set(faults)) == (78, {"environment"})
        assert faults["environment"]["found"].startswith("stowaway 1.0")
    finally:
        docker("image", "rm", "el-changed")


def test_a_lock_that_was_replaced(docker: Docker, open_folder: Path) -> None:
    other = open_folder / "environment.cpu.lock"
    other.write_text("# another\n")
    mount = ("-v", f"{other}:/opt/explicit-learning/environment.cpu.lock:ro")
    code, faults = answer(docker.run(*mount, IMAGE, "check", "plan.json", "--json"))
    assert code == 78
    assert faults["image"]["pointer"] == "/lock_sha256"
