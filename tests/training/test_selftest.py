"""What `el selftest` measures in processes of their own, as far as it needs no GPU."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import torch

from explicit_learning.errors import Context, ExitCode, Refusal
from explicit_learning.experiment.child_command import answered_faults
from explicit_learning.files.resources import ASSETS
from explicit_learning.training import kernel_check, kernels, selftest

pytestmark = pytest.mark.training
MODEL = ASSETS / "tiny-vlm" / "model"


def test_kernels_on_a_gpu_are_compared_as_a_strict_run_prepares_them(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def check(_config: Any, *, attention: str, dtype: torch.dtype, device: torch.device) -> tuple[()]:
        assert (dtype, device) == (torch.bfloat16, torch.device("cuda"))
        done.append(f"check {attention}")
        return ()

    monkeypatch.setattr("explicit_learning.training.determinism.apply_determinism", done.append)
    monkeypatch.setattr(kernels, "bind_layer_functions", lambda accelerator: done.append(f"bind {accelerator}"))
    monkeypatch.setattr(kernels, "pin_configurations", lambda capability: done.append(f"pin {capability}"))
    monkeypatch.setattr(kernels, "bound_layer_functions", dict)
    monkeypatch.setattr(kernel_check, "check_kernels", check)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    selftest.kernels("cuda", str(MODEL))
    assert done == ["strict", "bind cuda", "pin 9.0", "check sdpa", "check flash_attention_2"]


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the module's `main` with a measurement of its own; return its exit code and what it printed."""

    def run(measurement: Any) -> tuple[int, dict[str, Any]]:
        monkeypatch.setattr(selftest.signal, "signal", lambda *_: None)
        monkeypatch.setitem(selftest.MEASUREMENTS, "own", measurement)
        monkeypatch.setattr("sys.argv", ["selftest", "own", '{"size": 3}'])
        code = selftest.main()
        return code, json.loads(capsys.readouterr().out.splitlines()[-1])

    return run


def test_a_result_is_printed_as_an_answer(answered: Any) -> None:
    code, answer = answered(lambda size: print("a library says this") or {"twice": 2 * size})
    assert (code, answer) == (0, {"ok": True, "exit_code": 0, "faults": [], "measured": {"twice": 6}})


def test_a_refusal_is_printed_with_all_its_faults(answered: Any) -> None:
    context = Context(gate="environment", file="fla", fix="install it", exit_code=ExitCode.ENVIRONMENT)
    faults = [context.fault(found=f"no {name}", expected=name) for name in ("one", "two")]

    def refused(**_: Any) -> Any:
        raise Refusal(faults)

    code, answer = answered(refused)
    assert (code, answer["ok"]) == (78, False)
    assert answered_faults(json.dumps(answer).encode(), code) == tuple(faults)


def test_an_error_of_a_library_is_printed_as_a_fault_that_names_it(answered: Any) -> None:
    def broken(**_: Any) -> Any:
        raise RuntimeError("CUDA error: no kernel image is available\nCompile with another option")

    code, answer = answered(broken)
    assert code == ExitCode.INTERNAL
    (fault,) = answer["faults"]
    assert fault["found"] == "own: RuntimeError: CUDA error: no kernel image is available"


@pytest.mark.slow
def test_a_rank_that_fails_in_the_all_reduce_is_named_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # no rank finds a GPU
    with pytest.raises(Refusal) as caught:
        selftest.all_reduce("cuda", 2)
    (fault,) = caught.value.faults
    assert re.match(r"all-reduce: rank [01] of 2: [\w.]*Error: ", fault.found)
    assert fault.exit_code == ExitCode.INTERNAL


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "Traceback:\n  File\nRuntimeError: rank 1 got 4\n",
            "RuntimeError: rank 1 got 4",
        ),
        (
            "ValueError: first\n\nTraceback:\ntorch.distributed.DistBackendError: NCCL error\nLast error:\nno memory",
            "torch.distributed.DistBackendError: NCCL error; Last error:; no memory",
        ),
        ("process 1 terminated with signal SIGSEGV", "process 1 terminated with signal SIGSEGV"),
    ],
)
def test_the_reason_is_the_end_of_a_traceback(text: str, reason: str) -> None:
    assert selftest._reason(text) == reason
