"""Digests of live states differ exactly if the states continue differently."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from explicit_learning.training.state.digests import state_sha256

STATE: dict[str, Any] = {
    "state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.arange(6.0).reshape(2, 3)}},
    "param_groups": [{"lr": 1e-3, "betas": (0.9, 0.999), "params": [0], "fused": None, "amsgrad": False}],
}


def changed(**changes: Any) -> dict[str, Any]:
    return {"state": {0: STATE["state"][0] | changes}, "param_groups": STATE["param_groups"]}


def test_the_form_is_a_contract() -> None:
    # Digests in old checkpoints must be comparable with every later version's.
    assert state_sha256(STATE) == "129d7874bf48d96712d7c2d2e1a7f42322f534c2915acda017c711da3f2dd419"


@pytest.mark.parametrize(
    "other",
    [
        {"param_groups": STATE["param_groups"], "state": STATE["state"]},  # another order of filling
        changed(exp_avg=torch.arange(6.0).reshape(3, 2).t().contiguous().t().reshape(2, 3)),
        changed(exp_avg=torch.arange(6.0).reshape(2, 3).t().contiguous().t()),  # another memory layout
        changed(exp_avg=torch.arange(6.0).reshape(2, 3).requires_grad_()),
        changed(exp_avg=torch.arange(-1.0, 6.0)[1:].reshape(2, 3)),  # a view into a larger storage
    ],
)
def test_what_does_not_count(other: dict[str, Any]) -> None:
    assert state_sha256(other) == state_sha256(STATE)


@pytest.mark.parametrize(
    "other",
    [
        changed(step=torch.tensor([3.0])),
        changed(step=3.0),
        changed(step=torch.tensor(3)),
        changed(step=torch.tensor(3.0, dtype=torch.float64)),
        changed(exp_avg=torch.arange(6.0).reshape(3, 2)),
        changed(exp_avg=torch.arange(6.0).reshape(2, 3).to(torch.bfloat16)),
        changed(exp_avg=torch.arange(6.0).reshape(2, 3).nextafter(torch.tensor(9.0))),
        changed(more=None),
        {"state": {"0": STATE["state"][0]}, "param_groups": STATE["param_groups"]},
        {"state": STATE["state"], "param_groups": [STATE["param_groups"][0] | {"betas": [0.9, 0.999]}]},
        {"state": STATE["state"], "param_groups": [STATE["param_groups"][0] | {"lr": 0.0010000000000000002}]},
        {"state": STATE["state"], "param_groups": [STATE["param_groups"][0] | {"amsgrad": 0}]},
        {"state": STATE["state"], "param_groups": tuple(STATE["param_groups"])},
    ],
)
def test_what_counts(other: dict[str, Any]) -> None:
    assert state_sha256(other) != state_sha256(STATE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.bool, torch.uint8])
@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (5,)])
def test_every_type_and_shape_has_a_digest_of_its_own(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    digest = state_sha256(torch.ones(shape, dtype=dtype))
    assert digest == state_sha256(torch.ones(shape, dtype=dtype))
    assert digest != state_sha256(torch.ones((*shape, 1), dtype=dtype))
    assert digest != state_sha256(torch.ones(shape, dtype=torch.float32))


def test_zeros_and_nans_are_told_apart_by_their_bits() -> None:
    assert state_sha256(torch.tensor(0.0)) != state_sha256(torch.tensor(-0.0))
    assert state_sha256(0.0) != state_sha256(-0.0)
    assert state_sha256(float("nan")) == state_sha256(float("nan"))
    assert state_sha256(2**53 + 1) != state_sha256(2**53)


def test_what_cannot_be_digested_is_refused() -> None:
    with pytest.raises(TypeError, match="a set has no digest"):
        state_sha256({"seen": {1, 2}})
