"""Whole runs whose completions vLLM samples: three trainers on one and two ranks, and one that is interrupted."""

from __future__ import annotations

import json
import random
import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.chaos.comparing import compare
from tests.support.chaos.launching import Launch, signal_all
from tests.support.chaos.strikes import Strike, launched_until, strike
from tests.support.chaos.worlds import SHAPE, may_mount, small_disk
from tests.support.plans import write_plan
from tests.support.preloaded import FRESH_VARIABLE
from tests.support.vllm_engine import SFT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.vllm

PATIENCE = 400.0
VLLM = {
    "vllm": {"use": True},
    "determinism": "seeded",
    "initial_adapter": {"path": str(SFT)},
    "lora": {"rank": 16, "alpha": 32},
}


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small data set."""
    from explicit_learning.data.digits.writer import write_dataset
    from tests.support.chaos.worlds import SIZE

    folder = tmp_path_factory.mktemp("vllm-runs")
    write_dataset(folder / "data", seed=7, size=SIZE)
    return folder


@pytest.fixture(autouse=True)
def own_interpreters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start each run in an interpreter of its own: here, what is preloaded puts setuptools' packages on the path."""
    monkeypatch.setenv(FRESH_VARIABLE, "1")


def plan(world: Path, name: str, arm: str, **changes: Any) -> Path:
    return write_plan(world / f"{name}.json", arm, world / "data", VLLM, SHAPE, changes)


def trained(plan: Path, run: Path) -> dict[str, Any]:
    with Launch.of(plan, run) as launch:
        assert launch.wait(PATIENCE) == 0, launch.text()
    marker: dict[str, Any] = json.loads((run / "training-complete.json").read_bytes())
    return marker


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("arm", ["answer_grpo", "papo", "evi_po"])
def test_three_steps(world: Path, tmp_path: Path, arm: str, ranks: int) -> None:
    steps = {"max_steps": 3, "save_interval": 3}
    of = plan(world, f"{arm}-{ranks}", arm, optimisation=steps, hardware={"world_size": ranks})
    marker = trained(of, tmp_path / "run")
    rollouts = marker["rollouts"]
    assert rollouts["engine"] == "vllm"
    assert rollouts["engine_base_before_sha256"] == rollouts["engine_base_after_sha256"] is not None
    start, first = rollouts["probes"]
    assert [probe["reason"] for probe in (start, first)] == ["start", "first_step"]
    for probe in (start, first):
        assert 0 < probe["mean"] <= probe["largest"]
        assert probe["mean"] < 0.02
        assert probe["fixed"]["tokens"] + probe["fresh"]["tokens"] == probe["tokens"]
    assert [probe["tolerance"] for probe in (start, first)] == [0.1, 0.02]
    assert first["nearer"] == "current"
    assert first["effect"] > first["fixed"]["mean"]
    # Nothing of the probes is in the ledger, and the trainer sampled nothing itself.
    assert marker["counts"]["completions"] == 3 * 16 * ranks
    assert marker["compute"]["sampling_forwards"] == 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row.get("probe/mean") for row in rows] == [start["mean"], first["mean"], None] or first["step"] == 1
    assert all(0.5 < row["constraint/allowed_mass_mean"] <= 1 for row in rows)
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert [event["data"] for event in events if event["kind"] == "probe"] == rollouts["probes"]


def test_killed_runs_sample_what_the_uninterrupted_one_does(world: Path, tmp_path: Path) -> None:
    of = plan(world, "chaos", "answer_grpo", optimisation={"max_steps": 8, "save_interval": 2})
    trained(of, tmp_path / "whole")
    run = tmp_path / "parts"
    chance = random.Random("vllm")  # noqa: S311 - a repeatable choice
    for point in ("mid-step", "mid-checkpoint"):
        wanted = Strike(point=point, way="rank", seed=chance.randrange(100))
        hit, code = strike(wanted, of, run, steps=8)
        assert hit
        assert code == 70
    marker = trained(of, run)
    assert not compare(run, tmp_path / "whole")
    resumed = marker["rollouts"]["resume_probe"]
    assert resumed["reason"] == "resume"
    assert resumed["nearer"] == "current"
    assert resumed["step"] in {2, 4, 6}


def test_a_run_of_two_ranks_that_is_stopped_goes_on_as_if_it_had_not_been(world: Path, tmp_path: Path) -> None:
    changes = {"optimisation": {"max_steps": 6, "save_interval": 2}, "hardware": {"world_size": 2}}
    of = plan(world, "stopped", "evi_po", **changes)
    trained(of, tmp_path / "whole")
    run = tmp_path / "parts"
    with launched_until(Strike(point="mid-step", way="tree"), of, run, steps=6) as (launch, reached):
        assert reached
        launch.process.send_signal(signal.SIGTERM)
        assert launch.wait(PATIENCE) == 75, launch.text()
    marker = trained(of, run)
    assert not compare(run, tmp_path / "whole")
    assert marker["rollouts"]["resume_probe"]["nearer"] == "current"


def test_a_full_temporary_folder_ends_with_an_io_error_and_loses_nothing(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not may_mount():
        pytest.skip("a small disk needs the right to mount")
    of = plan(world, "full", "answer_grpo", optimisation={"max_steps": 12, "save_interval": 2})
    with small_disk(tmp_path / "small", mebibytes=32) as disk:
        monkeypatch.setenv("TMPDIR", str(disk))
        wanted = Strike(point="mid-step", way="tree")
        with launched_until(wanted, of, tmp_path / "run", steps=12) as (launch, reached):
            assert reached
            family = launch.family()
            signal_all(family, signal.SIGSTOP)
            filler = disk / "filler"
            with filler.open("wb") as file:
                try:
                    while True:
                        file.write(bytes(1 << 16))
                        file.flush()
                except OSError:
                    pass
            signal_all(family, signal.SIGCONT)
            assert launch.wait() == 74, launch.text()
            assert "No space left on device" in launch.text()
        filler.unlink()
        marker = trained(of, tmp_path / "run")
    assert marker["counts"]["optimizer_steps"] == 12
