"""Rules between fields, which a schema cannot express.

Each rule names the fields it compares. It is skipped when the schema already refused one of them, so that one mistake
is reported once; all other rules are still checked. The same rules judge a plan at freezing and before each run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from explicit_learning.arms import ARMS
from explicit_learning.data.answers import ANSWER_SCHEMA_REGEX
from explicit_learning.errors import found_text
from explicit_learning.plan.geometry import Geometry
from explicit_learning.plan.idle_settings import idle_settings
from explicit_learning.plan.registry import CONTEXT, Registry
from explicit_learning.plan.validation import VALIDATION_RULES
from explicit_learning.plan.vllm_rules import VLLM_RULES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from explicit_learning.errors import Fault
    from explicit_learning.plan.registry import Document

__all__ = ["SMOKE_STOP_STEP", "broken_rules", "warnings"]

SMOKE_STOP_STEP = 5
PAPO_COLLAPSE_GAMMA = 0.04
# Logits of about 100 divided by this are resolved to 0.06 nats in float32, in which log-probs are computed.
LEAST_TEMPERATURE = 0.0001

REFREEZE = "freeze the draft again"
_RULES = Registry(VALIDATION_RULES, VLLM_RULES)
_rule = _RULES.rule


@_rule("/arm", "/reward", "/objective", "/vllm")
def _blocks_of_the_trainer(plan: Document) -> Iterator[Fault]:
    arm = ARMS[plan["arm"]]
    for group in ("reward", "objective", "vllm"):
        if arm.is_sft and plan[group] is not None:
            expected = f"null in the arm {arm.name}, which samples no completions"
            fix = f"set {group} to null, or choose an RL arm"
            yield CONTEXT.fault(pointer=f"/{group}", found=found_text(plan[group]), expected=expected, fix=fix)
        if not arm.is_sft and plan[group] is None:
            expected = f"an object with the {group} fields: the arm {arm.name} samples completions"
            fix = f"write {group} as an object, or freeze the draft again: freezing fills in the defaults"
            yield CONTEXT.fault(pointer=f"/{group}", found="null", expected=expected, fix=fix)


@_rule("/arm", "/objective")
def _objective_block_of_the_arm(plan: Document) -> Iterator[Fault]:
    arm, objective = ARMS[plan["arm"]], plan["objective"]
    if objective is None:
        return
    for block in ("papo", "evi_po"):
        pointer = f"/objective/{block}"
        if arm.trainer == block and objective[block] is None:
            expected = f"an object with the {block} coefficients of the arm {arm.name}"
            fix = f"write {block} as an object, or freeze the draft again: freezing fills in the defaults"
            yield CONTEXT.fault(pointer=pointer, found="null", expected=expected, fix=fix)
        if arm.trainer != block and objective[block] is not None:
            expected, fix = f"null in the arm {arm.name}, whose loss has no {block} term", f"set {block} to null"
            yield CONTEXT.fault(pointer=pointer, found=found_text(objective[block]), expected=expected, fix=fix)


@_rule("/arm", "/initial_adapter")
def _initial_adapter(plan: Document) -> Iterator[Fault]:
    if not ARMS[plan["arm"]].is_sft and plan["initial_adapter"] is None:
        yield CONTEXT.fault(
            pointer="/initial_adapter",
            found="null",
            expected="an adapter: RL starts from the adapter of an SFT stage",
            fix="name the adapter that the SFT stage wrote to RUN/final-adapter",
        )


@_rule("/arm", "/budget")
def _budget_of_the_trainer(plan: Document) -> Iterator[Fault]:
    arm, budget = ARMS[plan["arm"]], plan["budget"]
    limits = (("max_sft_loss_tokens", "loss", arm.is_sft), ("max_completion_tokens_per_run", "sampled", not arm.is_sft))
    for name, kind, used in limits:
        pointer = f"/budget/{name}"
        if used and budget[name] is None:
            expected = f"an integer: the most {kind} tokens that a run of the arm {arm.name} may spend"
            fix = "set a limit, or remove the field from the draft and freeze it again: freezing computes the limit"
            yield CONTEXT.fault(pointer=pointer, found="null", expected=expected, fix=fix)
        if not used and budget[name] is not None:
            expected = f"null in the arm {arm.name}, which spends no {kind} tokens"
            yield CONTEXT.fault(
                pointer=pointer, found=found_text(budget[name]), expected=expected, fix="set it to null"
            )


@_rule("/arm", "/budget/planned_sft_loss_tokens", "/budget/max_sft_loss_tokens")
def _planned_tokens_within_cap(plan: Document) -> Iterator[Fault]:
    planned, cap = plan["budget"].get("planned_sft_loss_tokens"), plan["budget"]["max_sft_loss_tokens"]
    if planned is not None and cap is not None and planned > cap:
        yield CONTEXT.fault(
            pointer="/budget/planned_sft_loss_tokens",
            found=found_text(planned),
            expected=f"at most max_sft_loss_tokens, {cap}",
            fix=REFREEZE,
        )


@_rule("/arm", "/budget/planned_sft_loss_tokens")
def _planned_tokens_of_the_trainer(plan: Document) -> Iterator[Fault]:
    if "planned_sft_loss_tokens" not in plan["budget"]:
        return  # a draft: freezing counts them
    sft, planned = ARMS[plan["arm"]].is_sft, plan["budget"]["planned_sft_loss_tokens"]
    if sft != (planned is not None):
        expected = "the loss tokens of the planned steps" if sft else "null: RL arms plan no loss tokens"
        pointer = "/budget/planned_sft_loss_tokens"
        yield CONTEXT.fault(pointer=pointer, found=found_text(planned), expected=expected, fix=REFREEZE)


@_rule("/arm", "/data/slot_manifest_sha256")
def _slots_of_the_trainer(plan: Document) -> Iterator[Fault]:
    sft, slots = ARMS[plan["arm"]].is_sft, plan["data"].get("slot_manifest_sha256")
    if sft != (slots is None):
        expected = "null: SFT arms use no slots" if sft else "the slot manifest's hash"
        pointer = "/data/slot_manifest_sha256"
        yield CONTEXT.fault(pointer=pointer, found=found_text(slots), expected=expected, fix=REFREEZE)


@_rule("/generation/answer_regex")
def _answer_regex_of_this_program(plan: Document) -> Iterator[Fault]:
    regex = plan["generation"].get("answer_regex")
    if regex is not None and regex != ANSWER_SCHEMA_REGEX:
        yield CONTEXT.fault(
            pointer="/generation/answer_regex",
            found=found_text(regex),
            expected=f"{ANSWER_SCHEMA_REGEX}, by which answers are read and data was checked",
            fix=REFREEZE,
        )


@_rule("/code_commit")
def _commit_is_one(plan: Document) -> Iterator[Fault]:
    commit = plan.get("code_commit")
    if commit is not None and not commit.strip("0"):
        expected = "the commit of the code that froze the plan"
        yield CONTEXT.fault(pointer="/code_commit", found=found_text(commit), expected=expected, fix=REFREEZE)


@_rule("/arm", "/lora/dropout")
def _no_dropout_in_rl(plan: Document) -> Iterator[Fault]:
    dropout = plan["lora"]["dropout"]
    if not ARMS[plan["arm"]].is_sft and dropout != 0:
        fix = "set it to 0: with dropout, an extra forward pass would change the run, and arms could not be compared"
        yield CONTEXT.fault(pointer="/lora/dropout", found=found_text(dropout), expected="0 in RL arms", fix=fix)


@_rule("/arm", "/generation/num_generations")
def _generations(plan: Document) -> Iterator[Fault]:
    pointer, count = "/generation/num_generations", plan["generation"]["num_generations"]
    if ARMS[plan["arm"]].is_sft and count != 1:
        expected = "1: SFT arms sample no completions"
        yield CONTEXT.fault(pointer=pointer, found=str(count), expected=expected, fix="set it to 1")
    if not ARMS[plan["arm"]].is_sft and count < 2:  # noqa: PLR2004 - a baseline needs a second completion
        fix = "set it to at least 2: with one completion, a group's baseline equals its only reward"
        yield CONTEXT.fault(pointer=pointer, found=str(count), expected="at least 2 in RL arms", fix=fix)


@_rule(
    "/arm",
    "/generation/num_generations",
    "/optimisation/per_device_batch_size",
    "/optimisation/gradient_accumulation_steps",
)
def _groups_stay_on_a_rank(plan: Document) -> Iterator[Fault]:
    optimisation, group = plan["optimisation"], plan["generation"]["num_generations"]
    batch, accumulation = optimisation["per_device_batch_size"], optimisation["gradient_accumulation_steps"]
    if not ARMS[plan["arm"]].is_sft and (batch * accumulation) % group:
        yield CONTEXT.fault(
            pointer="/optimisation/per_device_batch_size",
            found=f"{batch} x {accumulation} accumulation steps = {batch * accumulation} completions per rank and step",
            expected=f"a multiple of generation.num_generations, {group}: a group never spans ranks",
            fix=f"set it, for example, to {group}: {group} x {accumulation} accumulation steps",
        )


@_rule("/objective", "/objective/num_iterations", "/optimisation/save_interval", "/optimisation/max_steps")
def _saves_end_a_generation_cycle(plan: Document) -> Iterator[Fault]:
    if plan["objective"] is None:
        return
    cycle = plan["objective"]["num_iterations"]
    for name, why in (("save_interval", ": a run resumed inside a cycle would sample again"), ("max_steps", "")):
        steps = plan["optimisation"][name]
        if steps % cycle:
            yield CONTEXT.fault(
                pointer=f"/optimisation/{name}",
                found=str(steps),
                expected=f"a multiple of objective.num_iterations, {cycle}",
                fix=f"set it to {max(cycle, steps // cycle * cycle)}{why}",
            )


@_rule("/generation/context_tokens", "/generation/max_prompt_tokens", "/generation/max_completion_tokens")
def _context_holds_prompt_and_completion(plan: Document) -> Iterator[Fault]:
    generation = plan["generation"]
    needed = generation["max_prompt_tokens"] + generation["max_completion_tokens"]
    if generation["context_tokens"] < needed:
        yield CONTEXT.fault(
            pointer="/generation/context_tokens",
            found=str(generation["context_tokens"]),
            expected=f"at least max_prompt_tokens + max_completion_tokens = {needed}",
            fix=f"set it to {needed}, or lower one of the two limits",
        )


@_rule("/arm", "/generation/temperature")
def _temperature_leaves_numbers(plan: Document) -> Iterator[Fault]:
    temperature = plan["generation"]["temperature"]
    if not ARMS[plan["arm"]].is_sft and temperature < LEAST_TEMPERATURE:
        yield CONTEXT.fault(
            pointer="/generation/temperature",
            found=found_text(temperature),
            expected=f"at least {LEAST_TEMPERATURE:g}: logits are divided by it in float32, and below, log-probs are "
            "rounding errors or infinite",
            fix="raise it, for example to 0.01, with which the most probable token is almost always sampled",
        )


@_rule("/run_mode", "/optimisation/max_steps")
def _smoke_is_long_enough(plan: Document) -> Iterator[Fault]:
    steps = plan["optimisation"]["max_steps"]
    if plan["run_mode"] == "smoke" and steps <= SMOKE_STOP_STEP:
        yield CONTEXT.fault(
            pointer="/optimisation/max_steps",
            found=str(steps),
            expected=f"more than {SMOKE_STOP_STEP} in a smoke run",
            fix=f"raise it: a smoke run stops at step {SMOKE_STOP_STEP}, and something must be left to resume",
        )


@_rule("/run_mode", "/objective", "/objective/num_iterations")
def _smoke_stops_at_the_end_of_a_cycle(plan: Document) -> Iterator[Fault]:
    if plan["run_mode"] == "smoke" and plan["objective"] is not None:
        cycle = plan["objective"]["num_iterations"]
        if SMOKE_STOP_STEP % cycle:
            yield CONTEXT.fault(
                pointer="/objective/num_iterations",
                found=str(cycle),
                expected=f"a divisor of {SMOKE_STOP_STEP}, the step at which a smoke run stops",
                fix="set it to 1 or 5 in smoke runs",
            )


@_rule(
    "/hardware/accelerator",
    "/hardware/gpu_name_pattern",
    "/hardware/compute_capability",
    "/hardware/gpu_memory_gib",
    "/hardware/driver_minimum",
)
def _no_gpu_fields_on_cpus(plan: Document) -> Iterator[Fault]:
    hardware = plan["hardware"]
    if hardware["accelerator"] == "cpu":
        for name in ("gpu_name_pattern", "compute_capability", "gpu_memory_gib", "driver_minimum"):
            if hardware[name] is not None:
                yield CONTEXT.fault(
                    pointer=f"/hardware/{name}",
                    found=found_text(hardware[name]),
                    expected="null when the accelerator is cpu",
                    fix="set it to null, or set accelerator to cuda",
                )


@_rule("/hardware/accelerator", "/model/attn_implementation")
def _flash_attention_needs_a_gpu(plan: Document) -> Iterator[Fault]:
    if plan["hardware"]["accelerator"] == "cpu" and plan["model"]["attn_implementation"] == "flash_attention_2":
        yield CONTEXT.fault(
            pointer="/model/attn_implementation",
            found="flash_attention_2",
            expected="eager or sdpa when the accelerator is cpu",
            fix="set it to sdpa",
        )


@_rule("/objective", "/objective/papo")
def _papo_entropy_has_a_gradient(plan: Document) -> Iterator[Fault]:
    papo = plan["objective"] and plan["objective"]["papo"]
    if papo and papo["eta_aug"] > 0 and not papo["aug_entropy_grad"]:
        yield CONTEXT.fault(
            pointer="/objective/papo/eta_aug",
            found=found_text(papo["eta_aug"]),
            expected="0 while aug_entropy_grad is false",
            fix="set aug_entropy_grad to true, or eta_aug to 0: without a gradient the term has no effect",
        )


@_rule("/arm", "/objective", "/objective/evi_po")
def _coefficients_that_the_arm_leaves_out(plan: Document) -> Iterator[Fault]:
    arm, evi_po = ARMS[plan["arm"]], plan["objective"] and plan["objective"]["evi_po"]
    for name, trained in (("lambda_dir", arm.direction), ("lambda_ev", arm.evidence)):
        if arm.trainer == "evi_po" and evi_po and trained == "none" and evi_po[name] != 0:
            yield CONTEXT.fault(
                pointer=f"/objective/evi_po/{name}",
                found=found_text(evi_po[name]),
                expected=f"0 in the arm {arm.name}",
                fix=f"set it to 0, or change the arm to evi_po: {arm.name} is the arm without this term",
            )


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
        replace(fault, gate=gate, file=file)
        for rule in _RULES
        if not any(_touches(refused_pointer, need) for refused_pointer in refused for need in rule.needs)
        and not _needs_absent(plan, rule.needs)
        for fault in rule.check(plan)
    ]


def _touches(refused: str, need: str) -> bool:
    return refused == need or need.startswith(f"{refused}/") or refused.startswith(f"{need}/")


def _needs_absent(plan: dict[str, Any], needs: tuple[str, ...]) -> bool:
    """Whether a needed field is missing, or its parent is not an object. A block that is null is left to the rules."""
    for need in needs:
        value: Any = plan
        for part in need.split("/")[1:]:
            if value is None:
                break
            if not isinstance(value, dict) or part not in value:
                return True
            value = value[part]
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
        found.append(f"/objective/papo/gamma: {papo['gamma']}: published runs collapsed above {PAPO_COLLAPSE_GAMMA}")
    if papo and papo["recipe"] == "papo_d" and objective["num_iterations"] == 1:
        found.append(
            "/objective/papo/recipe: papo_d has no effect with one update per batch of completions: "
            "raise objective.num_iterations"
        )
    arm, evi_po = ARMS[plan["arm"]], objective and objective["evi_po"]
    for name, trained in (("lambda_dir", arm.direction), ("lambda_ev", arm.evidence)):
        if evi_po and trained != "none" and evi_po[name] == 0:
            found.append(f"/objective/evi_po/{name}: 0: the arm {arm.name} trains without this term then")
    return [*found, *idle_settings(plan)]
