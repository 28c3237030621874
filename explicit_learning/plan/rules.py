"""What no schema can say: rules between fields.

Each rule names the fields it compares. It is skipped when the schema already refused one of them, so that one mistake
is reported once; all other rules still speak. The same rules judge a plan at freezing and before each run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from explicit_learning.arms import ARMS
from explicit_learning.errors import Fault, found_text
from explicit_learning.plan.geometry import Geometry

__all__ = ["SMOKE_STOP_STEP", "broken_rules", "warnings"]

SMOKE_STOP_STEP = 5
PAPO_COLLAPSE_GAMMA = 0.04

Problem = tuple[str, str, str, str]  # pointer, found, expected, fix
Document = dict[str, Any]
Check = Callable[[Document], Iterator[Problem]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A check and the JSON pointers of the fields it reads."""

    needs: tuple[str, ...]
    check: Check


_RULES: list[Rule] = []


def _rule(*needs: str) -> Callable[[Check], Check]:
    def register(check: Check) -> Check:
        _RULES.append(Rule(needs=needs, check=check))
        return check

    return register


@_rule("/arm", "/reward", "/objective", "/vllm")
def _blocks_of_the_trainer(plan: Document) -> Iterator[Problem]:
    arm = ARMS[plan["arm"]]
    for group in ("reward", "objective", "vllm"):
        if arm.is_sft and plan[group] is not None:
            yield f"/{group}", "a block", "null", f"the arm {arm.name} samples no completions: set {group} to null"
        if not arm.is_sft and plan[group] is None:
            yield f"/{group}", "null", "a block", f"the arm {arm.name} samples completions: describe its {group}"


@_rule("/arm", "/objective")
def _objective_block_of_the_arm(plan: Document) -> Iterator[Problem]:
    arm, objective = ARMS[plan["arm"]], plan["objective"]
    if objective is None:
        return
    for block in ("papo", "evi_po"):
        if arm.trainer == block and objective[block] is None:
            yield f"/objective/{block}", "null", "a block", f"the arm {arm.name} needs its {block} coefficients"
        if arm.trainer != block and objective[block] is not None:
            fix = f"the arm {arm.name} has no such term: set it to null"
            yield f"/objective/{block}", "a block", "null", fix


@_rule("/arm", "/initial_adapter")
def _initial_adapter(plan: Document) -> Iterator[Problem]:
    if not ARMS[plan["arm"]].is_sft and plan["initial_adapter"] is None:
        fix = "name the adapter that the SFT stage left in RUN/final-adapter"
        yield "/initial_adapter", "null", "an adapter: RL starts from an SFT stage's", fix


@_rule("/arm", "/budget")
def _budget_of_the_trainer(plan: Document) -> Iterator[Problem]:
    sft = ARMS[plan["arm"]].is_sft
    budget = plan["budget"]
    for name, used in (("max_sft_loss_tokens", sft), ("max_completion_tokens_per_run", not sft)):
        if used and budget[name] is None:
            yield f"/budget/{name}", "null", "an integer of tokens", f"set the ceiling of the arm {plan['arm']}"
        if not used and budget[name] is not None:
            yield f"/budget/{name}", found_text(budget[name]), "null", f"the arm {plan['arm']} has no such tokens"


@_rule("/arm", "/budget/planned_sft_loss_tokens", "/budget/max_sft_loss_tokens")
def _planned_tokens_within_cap(plan: Document) -> Iterator[Problem]:
    planned, cap = plan["budget"].get("planned_sft_loss_tokens"), plan["budget"]["max_sft_loss_tokens"]
    if planned is not None and cap is not None and planned > cap:
        pointer = "/budget/planned_sft_loss_tokens"
        yield pointer, found_text(planned), f"at most max_sft_loss_tokens, {cap}", "freeze the draft again"


@_rule("/arm", "/data/slot_manifest_sha256")
def _slots_of_the_trainer(plan: Document) -> Iterator[Problem]:
    sft, slots = ARMS[plan["arm"]].is_sft, plan["data"].get("slot_manifest_sha256")
    if sft != (slots is None):
        expected = "null: SFT arms use no slots" if sft else "the slot manifest's hash"
        yield "/data/slot_manifest_sha256", found_text(slots), expected, "freeze the draft again"


@_rule("/arm", "/lora/dropout")
def _no_dropout_in_rl(plan: Document) -> Iterator[Problem]:
    dropout = plan["lora"]["dropout"]
    if not ARMS[plan["arm"]].is_sft and dropout != 0:
        fix = "set it to 0: with dropout an extra forward would change the run, and arms would not be comparable"
        yield "/lora/dropout", found_text(dropout), "0 in RL arms", fix


@_rule("/arm", "/generation/num_generations")
def _generations(plan: Document) -> Iterator[Problem]:
    sft, count = ARMS[plan["arm"]].is_sft, plan["generation"]["num_generations"]
    if sft and count != 1:
        yield "/generation/num_generations", str(count), "1: SFT arms sample nothing", "set it to 1"
    if not sft and count < 2:  # noqa: PLR2004 - a baseline needs a second completion
        fix = "use at least 2, or the group's baseline equals its only reward"
        yield "/generation/num_generations", str(count), "at least 2 in RL arms", fix


@_rule(
    "/arm",
    "/generation/num_generations",
    "/optimisation/per_device_batch_size",
    "/optimisation/gradient_accumulation_steps",
)
def _groups_stay_on_a_rank(plan: Document) -> Iterator[Problem]:
    optimisation, group = plan["optimisation"], plan["generation"]["num_generations"]
    batch, accumulation = optimisation["per_device_batch_size"], optimisation["gradient_accumulation_steps"]
    if not ARMS[plan["arm"]].is_sft and (batch * accumulation) % group:
        yield (
            "/optimisation/per_device_batch_size",
            f"{batch} x {accumulation} accumulation steps = {batch * accumulation} completions per rank and step",
            f"a multiple of generation.num_generations, {group}: a group never spans ranks",
            f"use for example {group} x {accumulation}",
        )


@_rule("/objective", "/objective/num_iterations", "/optimisation/save_interval", "/optimisation/max_steps")
def _saves_end_a_generation_cycle(plan: Document) -> Iterator[Problem]:
    if plan["objective"] is None:
        return
    cycle = plan["objective"]["num_iterations"]
    for name, why in (("save_interval", "a checkpoint inside a cycle samples again"), ("max_steps", "")):
        if plan["optimisation"][name] % cycle:
            expected = f"a multiple of objective.num_iterations, {cycle}"
            fix = f"round it to {max(cycle, plan['optimisation'][name] // cycle * cycle)}"
            yield f"/optimisation/{name}", str(plan["optimisation"][name]), expected, f"{fix}: {why}".rstrip(": ")


@_rule("/generation/context_tokens", "/generation/max_prompt_tokens", "/generation/max_completion_tokens")
def _context_holds_prompt_and_completion(plan: Document) -> Iterator[Problem]:
    generation = plan["generation"]
    needed = generation["max_prompt_tokens"] + generation["max_completion_tokens"]
    if generation["context_tokens"] < needed:
        expected = f"at least max_prompt_tokens + max_completion_tokens = {needed}"
        fix = f"set it to {needed} or shorten the prompts"
        yield "/generation/context_tokens", str(generation["context_tokens"]), expected, fix


@_rule("/vllm", "/vllm/max_model_len", "/generation/context_tokens")
def _vllm_holds_the_context(plan: Document) -> Iterator[Problem]:
    if plan["vllm"] is None:
        return
    length, needed = plan["vllm"]["max_model_len"], plan["generation"]["context_tokens"]
    if length < needed:
        fix = f"set it to {needed}, or vLLM refuses the longest prompts in the middle of the run"
        yield "/vllm/max_model_len", str(length), f"at least generation.context_tokens, {needed}", fix


@_rule("/vllm", "/vllm/tensor_parallel", "/hardware/world_size")
def _vllm_divides_the_ranks(plan: Document) -> Iterator[Problem]:
    if plan["vllm"] is not None and plan["hardware"]["world_size"] % plan["vllm"]["tensor_parallel"]:
        found = found_text(plan["vllm"]["tensor_parallel"])
        expected = f"a divisor of hardware.world_size, {plan['hardware']['world_size']}"
        yield "/vllm/tensor_parallel", found, expected, "let each engine span the same number of ranks"


@_rule("/vllm", "/vllm/use")
def _vllm_is_not_wired_yet(plan: Document) -> Iterator[Problem]:
    if plan["vllm"] is not None and plan["vllm"]["use"]:
        fix = "set it to false: rollouts run on the trained model's own generation"
        yield "/vllm/use", "true", "false in this version", fix


@_rule("/run_mode", "/optimisation/max_steps")
def _smoke_is_long_enough(plan: Document) -> Iterator[Problem]:
    steps = plan["optimisation"]["max_steps"]
    if plan["run_mode"] == "smoke" and steps <= SMOKE_STOP_STEP:
        fix = f"a smoke run stops at step {SMOKE_STOP_STEP} and must have something left to resume"
        yield "/optimisation/max_steps", str(steps), f"more than {SMOKE_STOP_STEP} in a smoke run", fix


@_rule("/run_mode", "/objective", "/objective/num_iterations")
def _smoke_stops_at_the_end_of_a_cycle(plan: Document) -> Iterator[Problem]:
    if plan["run_mode"] == "smoke" and plan["objective"] is not None:
        cycle = plan["objective"]["num_iterations"]
        if SMOKE_STOP_STEP % cycle:
            expected = f"a divisor of {SMOKE_STOP_STEP}, the step at which a smoke run stops"
            yield "/objective/num_iterations", str(cycle), expected, "use 1 or 5 in smoke runs"


@_rule(
    "/hardware/accelerator",
    "/hardware/gpu_name_pattern",
    "/hardware/compute_capability",
    "/hardware/gpu_memory_gib",
    "/hardware/driver_minimum",
)
def _no_gpu_fields_on_cpus(plan: Document) -> Iterator[Problem]:
    hardware = plan["hardware"]
    if hardware["accelerator"] == "cpu":
        for name in ("gpu_name_pattern", "compute_capability", "gpu_memory_gib", "driver_minimum"):
            if hardware[name] is not None:
                fix = "set it to null, or set accelerator to cuda"
                yield f"/hardware/{name}", found_text(hardware[name]), "null when the accelerator is cpu", fix


@_rule("/hardware/accelerator", "/model/attn_implementation")
def _flash_attention_needs_a_gpu(plan: Document) -> Iterator[Problem]:
    if plan["hardware"]["accelerator"] == "cpu" and plan["model"]["attn_implementation"] == "flash_attention_2":
        fix = "use sdpa on CPUs"
        yield "/model/attn_implementation", "flash_attention_2", "eager or sdpa when the accelerator is cpu", fix


@_rule("/hardware/accelerator", "/optimisation/dataloader_pin_memory")
def _pinned_memory_needs_a_gpu(plan: Document) -> Iterator[Problem]:
    if plan["hardware"]["accelerator"] == "cpu" and plan["optimisation"]["dataloader_pin_memory"]:
        yield "/optimisation/dataloader_pin_memory", "true", "false when the accelerator is cpu", "set it to false"


@_rule("/objective", "/objective/papo")
def _papo_entropy_has_a_gradient(plan: Document) -> Iterator[Problem]:
    papo = plan["objective"] and plan["objective"]["papo"]
    if papo and papo["eta_aug"] > 0 and not papo["aug_entropy_grad"]:
        fix = "set aug_entropy_grad to true, or eta_aug to 0: without a gradient the term does nothing"
        yield "/objective/papo/eta_aug", found_text(papo["eta_aug"]), "0 while aug_entropy_grad is false", fix


@_rule("/arm", "/objective", "/objective/evi_po")
def _coefficients_that_the_arm_leaves_out(plan: Document) -> Iterator[Problem]:
    arm, evi_po = ARMS[plan["arm"]], plan["objective"] and plan["objective"]["evi_po"]
    for name, trained in (("lambda_dir", arm.direction), ("lambda_ev", arm.evidence)):
        if arm.trainer == "evi_po" and evi_po and trained == "none" and evi_po[name] != 0:
            fix = f"set it to 0, or name the arm evi_po: {arm.name} is the arm without this term"
            yield f"/objective/evi_po/{name}", found_text(evi_po[name]), f"0 in the arm {arm.name}", fix


def broken_rules(plan: dict[str, Any], schema_faults: list[Fault], *, gate: str, file: str) -> list[Fault]:
    """Return a fault for every rule that a plan or filled draft breaks.

    Args:
        plan: The document.
        schema_faults: What its schema refused: rules about those fields are skipped.
        gate: Name of the check, for the faults.
        file: The document's file, for the faults.
    """
    refused = [fault.pointer or "" for fault in schema_faults]
    return [
        Fault(gate=gate, file=file, pointer=pointer, found=found, expected=expected, fix=fix)
        for rule in _RULES
        if not any(_touches(refused_pointer, need) for refused_pointer in refused for need in rule.needs)
        and not _needs_absent(plan, rule.needs)
        for pointer, found, expected, fix in rule.check(plan)
    ]


def _touches(refused: str, need: str) -> bool:
    return refused == need or need.startswith(f"{refused}/") or refused.startswith(f"{need}/")


def _needs_absent(plan: dict[str, Any], needs: tuple[str, ...]) -> bool:
    """Whether a parent group of a needed field is no object (null blocks are the rules' own business)."""
    for need in needs:
        value: Any = plan
        for part in need.split("/")[1:-1]:
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None and not isinstance(value, dict):
            return True
    return False


def warnings(plan: dict[str, Any]) -> list[str]:
    """Return what is legal in a valid plan but probably not meant."""
    found = []
    budget, objective = plan["budget"]["max_completion_tokens_per_run"], plan["objective"]
    if objective is not None and budget is not None:
        geometry = Geometry.of_document(plan)
        share = budget // geometry.ranks
        worst = geometry.token_bound(plan["optimisation"]["max_steps"]) // geometry.ranks
        if share < worst:
            found.append(
                f"/budget/max_completion_tokens_per_run: {share:,} tokens per rank, but the planned steps can sample "
                f"up to {worst:,}: the run may end early with exit code 79"
            )
    papo = objective and objective["papo"]
    if papo and papo["gamma"] > PAPO_COLLAPSE_GAMMA:
        found.append(f"/objective/papo/gamma: {papo['gamma']}: above {PAPO_COLLAPSE_GAMMA} published runs collapsed")
    if papo and papo["recipe"] == "papo_d" and objective["num_iterations"] == 1:
        found.append("/objective/papo/recipe: papo_d does nothing with one update per rollout: raise num_iterations")
    arm, evi_po = ARMS[plan["arm"]], objective and objective["evi_po"]
    for name, trained in (("lambda_dir", arm.direction), ("lambda_ev", arm.evidence)):
        if evi_po and trained != "none" and evi_po[name] == 0:
            found.append(f"/objective/evi_po/{name}: 0: the arm {arm.name} then trains without that term")
    return found
