"""The main job in the image, as a user starts it: no network, no capabilities, read-only, under any uid."""

from __future__ import annotations

import hashlib
import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.files.resources import ROOT
from tests.support.podman import IMAGE, LOCKED_DOWN, Docker

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.container

DRAFT = ROOT / "plans" / "demo" / "answer_grpo.json"
SHORT = (
    *("--set", "optimisation.max_steps=4", "--set", "optimisation.save_interval=2"),
    *("--set", "optimisation.per_device_batch_size=8", "--set", "data.digits.size=quick"),
)


def manifest(run: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((run / "run-manifest.json").read_text())
    return document


def test_the_baked_plan_is_stopped_and_goes_on(docker: Docker, image_id: str, open_folder: Path) -> None:
    """`docker run … el:lock plan.json`, `docker stop`, and the same line again: nothing but the volume is mounted."""
    started = ("--gpus", "all", *LOCKED_DOWN, "-v", f"{open_folder}:/out", "-e", f"EXPLICIT_IMAGE_DIGEST={image_id}")
    docker("run", "--detach", "--name", "el-stopped", *started, IMAGE, "plan.json", check=True)
    run = open_folder / "intervention_grpo-seed0"
    try:
        end = time.monotonic() + 300
        while not list(run.glob("checkpoint-20/complete.json")):
            assert time.monotonic() < end, docker("logs", "el-stopped").stderr
            time.sleep(0.5)
        docker("stop", "--time", "120", "el-stopped", check=True)
        assert docker("inspect", "--format", "{{.State.ExitCode}}", "el-stopped").stdout.strip() == "75"
    finally:
        docker("rm", "--force", "el-stopped")
    assert manifest(run)["status"] == "stopped"

    done = docker("run", "--rm", *started, IMAGE, "plan.json")
    assert done.returncode == 0, done.stderr
    assert "resuming from checkpoint-" in done.stderr
    document = manifest(run)
    assert (document["status"], document["trained"]) == ("completed", True)
    launches = [json.loads(path.read_text()) for path in run.glob("launches/*.json") if "end" not in path.name]
    assert sorted(launch["number"] for launch in launches) == [0, 1]
    machine = launches[0]["nodes"][0]
    assert launches[1]["nodes"] == [machine], "both launches are of one image on one machine"
    identity, code = machine["image"], machine["code"]
    assert identity["digests"]["config"] == {"value": image_id, "known_by": "declared"}
    assert identity["digests"]["manifest"] == {"value": None, "known_by": "undeclared"}
    bill = (ROOT / "build" / "image" / "el-cpu.sbom.json").read_bytes()
    assert identity["baked_in"]["sbom_sha256"] == hashlib.sha256(bill).hexdigest()
    assert identity["baked_in"]["code_commit"] == document["completion"]["running_commit"]
    assert (code["known_by"], code["commit"]) == ("image", document["completion"]["running_commit"])
    assert code["files_sha256"] == code["built_files_sha256"] == identity["baked_in"]["code_sha256"]
    assert machine["platform"]["hardware"]["container_runtime"].startswith("podman")
    assert machine["environment"]["explicit"]["EXPLICIT_IMAGE_DIGEST"] == image_id


def test_code_that_is_mounted_over_the_images_is_told(docker: Docker, tmp_path: Path) -> None:
    changed = tmp_path / "paths.py"
    changed.write_text((ROOT / "explicit_learning" / "cli" / "paths.py").read_text() + "# changed\n")
    mounted = f"{changed}:/opt/explicit-learning/explicit_learning/cli/paths.py"
    done = docker.run("-v", mounted, IMAGE, "check", "plan.json")
    assert done.returncode == 0, done.stderr
    assert "files of this program differ from those that the image was built with" in done.stderr


def test_with_nothing_mounted(docker: Docker) -> None:
    """The one line of the documentation: a frozen plan becomes a trained adapter, in a volume that ends with it."""
    done = docker("run", "--rm", "--gpus", "all", *LOCKED_DOWN, IMAGE, "plan.json")
    assert "step 60/60" in done.stderr, done.stderr


def own_draft(folder: Path) -> None:
    """Write a draft into a folder that names the image's model and prompt."""
    draft = json.loads(DRAFT.read_text())
    draft["model"]["path"] = "/opt/explicit-learning/assets/tiny-vlm/model"
    draft["initial_adapter"]["path"] = "/opt/explicit-learning/assets/tiny-vlm/sft-adapter"
    draft["prompt"]["path"] = "/opt/explicit-learning/prompts/common_system.txt"
    (folder / "draft.json").write_text(json.dumps(draft))


def test_a_draft_is_frozen_and_run_in_a_mounted_folder(docker: Docker, open_folder: Path) -> None:
    own_draft(open_folder)
    mounted = ("-v", f"{open_folder}:/work", IMAGE)
    frozen = docker.run(*mounted, "freeze", "draft.json", "-o", "plan.json", *SHORT)
    assert frozen.returncode == 0, frozen.stderr
    done = docker.run(*mounted, "plan.json")
    assert done.returncode == 0, done.stderr
    assert manifest(open_folder / "runs" / "answer_grpo-seed0")["status"] == "completed"


def test_the_bill_of_materials_names_what_is_installed(docker: Docker) -> None:
    bill = json.loads((ROOT / "build" / "image" / "el-cpu.sbom.json").read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    urls = {component["purl"].partition("?")[0] for component in bill["components"]}
    assert {"pkg:pypi/torch@2.13.0", "pkg:pypi/trl@1.16.0", "pkg:pypi/peft@0.21.2"} <= urls
    query = "import importlib.metadata as m; print(*sorted({d.name + '==' + d.version for d in m.distributions()}))"
    listed = docker.run("--entrypoint", "/opt/env/bin/python", IMAGE, "-c", query).stdout.split()
    named = {url.removeprefix("pkg:pypi/").replace("@", "==") for url in urls if url.startswith("pkg:pypi/")}
    normal = {
        entry.lower().replace("_", "-").replace(".", "-", entry.partition("==")[0].count(".")) for entry in listed
    }
    assert named == normal
    dpkg = ("--entrypoint", "/usr/bin/dpkg-query", IMAGE, "-W", "-f", "${Package} ${Version}\\n")
    packages = {tuple(line.split()) for line in docker.run(*dpkg).stdout.splitlines()}
    system = [component for component in bill["components"] if component["purl"].startswith("pkg:deb/debian/")]
    assert {(component["name"], component["version"]) for component in system} == packages
