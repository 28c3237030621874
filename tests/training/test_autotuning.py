"""Kernels that have a choice of configurations, under strict determinism; nothing is compiled or launched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import Autotuner, JITFunction, driver

from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.training.autotuning import forbid_timing

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.training
CONFIGS = [triton.Config({"size": size}, num_warps=4) for size in (16, 32)]
FASTEST = 32


class Driver:
    """What Triton asks of a GPU's driver before it looks into its cache."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


@triton.jit  # type: ignore[untyped-decorator] # Triton has no types
def kernel(rows: Any, size: Any) -> None:
    pass


def tuned(configs: list[triton.Config], *, timed: list[int] | None) -> Autotuner:
    """Return the kernel with a choice; ``timed`` gets the sizes that are timed, and ``None`` permits no timing."""

    def bench(call: Any, quantiles: Any) -> list[float]:
        if timed is None:
            raise AssertionError("a kernel is timed")
        call()
        return [1.0 / timed[-1] for _ in quantiles]

    return triton.autotune(configs=configs, key=["rows"], cache_results=True, do_bench=bench)(kernel)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """Sizes with which the kernel is launched, on a GPU that is not there."""
    sizes: list[int] = []
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(JITFunction, "run", lambda _kernel, *_, size, **__: sizes.append(size))
    monkeypatch.setattr(Autotuner, "run", Autotuner.run)  # `forbid_timing` replaces it
    monkeypatch.setattr(driver, "_active", Driver())
    return sizes


def test_a_choice_that_an_earlier_run_timed_and_cached_is_refused(launched: list[int]) -> None:
    tuned(CONFIGS, timed=launched).run(7)
    assert launched == [16, 32, FASTEST]
    tuned(CONFIGS, timed=None).run(7)
    assert launched[3:] == [FASTEST], "it is taken from the cache on disk"
    forbid_timing()
    with pytest.raises(Refusal) as caught:
        tuned(CONFIGS, timed=None).run(7)
    assert launched[4:] == []
    (fault,) = caught.value.faults
    assert (fault.gate, fault.exit_code) == ("kernels", ExitCode.ENVIRONMENT)
    assert (fault.file or "").endswith("triton_configurations.json")
    assert fault.found == f"no configuration of the kernel {__name__}.kernel, which has 2 to choose from"


def test_a_choice_that_this_process_timed_before_is_refused(launched: list[int]) -> None:
    tuner = tuned(CONFIGS, timed=launched)
    tuner.run(7)
    forbid_timing()
    with pytest.raises(Refusal):
        tuner.run(7)


def test_a_kernel_without_a_choice_is_launched(launched: list[int]) -> None:
    forbid_timing()
    forbid_timing()
    tuned(CONFIGS[:1], timed=None).run(7)
    assert launched == [16]
