"""From a plan to what samples its completions."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from explicit_learning.plan.geometry import Geometry
from explicit_learning.rundir.launch_manifest import MANIFEST_VARIABLE
from explicit_learning.training.policy import base_modules
from explicit_learning.training.rollouts.exact import ExactRollouts

if TYPE_CHECKING:
    from explicit_learning.rundir.launch_manifest import LaunchManifest
    from explicit_learning.training.policy import Policy
    from explicit_learning.training.rollouts.constraint import Constraint
    from explicit_learning.training.rollouts.interface import LivePolicy, Rollouts

__all__ = ["start_rollouts"]


def start_rollouts(manifest: LaunchManifest, policy: Policy, constraint: Constraint, live: LivePolicy) -> Rollouts:
    """Start the sampler that the plan names; vLLM's engine needs the trainer's process groups.

    Args:
        manifest: The verified launch manifest.
        policy: The policy as it was built.
        constraint: What may be sampled.
        live: The policy as the trainer calls it.

    Raises:
        Refusal: If the engine cannot start, or does not take the adapter.
    """
    plan = manifest.plan
    if plan.vllm is None or not plan.vllm.use:
        return ExactRollouts(live, plan=plan, constraint=constraint)
    from explicit_learning.training.rollouts.vllm import VllmRollouts, engine_settings
    from explicit_learning.training.rollouts.vllm_engine import Engine

    model = Path(manifest.paths.model)
    live.loop.context.say("starting vLLM")
    settings = engine_settings(
        plan,
        model,
        policy.processor,
        rows=Geometry.of(plan).rows_per_rank,
        targets=policy.targets,
        others=[name for name in base_modules(policy.model) if name not in policy.targets],
    )
    return VllmRollouts(
        live,
        Engine(settings),
        plan=plan,
        constraint=constraint,
        # Beside the launch's manifest: in a temporary folder that the launcher removes, however this rank ends.
        versions=Path(os.environ[MANIFEST_VARIABLE]).parent / f"adapters-rank-{live.loop.context.rank}",
        base_name=Path(plan.model.path).name,
    )
