"""Each completion rule, and a run that breaks exactly it."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.accounting.rows import SampledCompletion
from explicit_learning.arms import ARMS
from explicit_learning.completion.recount import RankRecount, recount_rank
from explicit_learning.completion.rules import _must_have_gradient, broken_completion_rules
from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.tree import FolderTree
from explicit_learning.rundir.rank_report import LossTerm, TrainableParameter
from tests.support.finished_run import PASSES, RANKS, SLOTS, Run, plan_document, row

if TYPE_CHECKING:
    from pathlib import Path

TENSORS = "f" * 64
BASE_IDS = {slot.slot_id: slot.base_id for slot in SLOTS}


def recounts(run: Run) -> list[RankRecount]:
    return [recount_rank(FolderTree(run.folder), run.plan, rank, base_ids=BASE_IDS) for rank in range(RANKS)]


def broken(run: Run, **changes: Any) -> list[tuple[str | None, str]]:
    counted = [] if run.is_sft else recounts(run)
    reports = run.reports(TENSORS, **changes)
    faults = broken_completion_rules(run.plan, counted, reports, adapter_tensors_sha256=TENSORS)
    assert all(fault.exit_code == ExitCode.INTERNAL for fault in faults)
    return [(fault.pointer or str(fault.file).removeprefix(f"{run.folder}/"), fault.found) for fault in faults]


def test_a_whole_run_breaks_no_rule_and_is_counted(rl: Run) -> None:
    rl.prepare()
    rl.sample()
    assert broken(rl) == []
    counted = recounts(rl)
    assert [(recount.rows, recount.trace_rows, recount.tokens, len(recount.groups)) for recount in counted] == [
        (12, 12, 66, 6)
    ] * 2
    assert [(recount.malformed, recount.truncated, recount.zero_variance_groups) for recount in counted] == [
        (0, 0, 0)
    ] * 2
    assert [recount.ceiling for recount in counted] == [150, 150]


def test_the_counters_count(rl: Run) -> None:
    def change(_: int, pairs: list[Any]) -> list[Any]:
        # One group of equal rewards, and one with a truncated completion beside a lone reward.
        cut = {"terminated": False, "valid": False, "reason": "truncated_completion", "total": -1.0}
        changes: list[dict[str, Any]] = [{}, {"total": 1.0}, {}, cut]
        return [(entry, row(entry, 0, **changed)) for (entry, _), changed in zip(pairs, changes, strict=True)]

    rl.prepare()
    rl.sample(change=change)
    assert [(recount.malformed, recount.truncated, recount.zero_variance_groups) for recount in recounts(rl)] == [
        (3, 3, 6)
    ] * 2


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"optimizer_steps": 2},
            [("/optimizer_steps", "2 steps on rank 0"), ("/optimizer_steps", "2 steps on rank 1")],
        ),
        ({"sampled_tokens": 131}, [("/sampled_tokens", "131 reported by 2 ranks")]),
        ({"completions": 25}, [("/completions", "25 reported by 2 ranks")]),
        (
            {"records": 11},
            [("/records", f"11 rows used (rank {rank})") for rank in range(RANKS)],
        ),
        (
            {"base_weights_after_sha256": "4" * 64},
            [("/base_weights_after_sha256", f"digest {'4' * 64} on rank {rank}") for rank in range(RANKS)],
        ),
        (
            {"final_adapter_tensors_sha256": "4" * 64},
            [("/final_adapter_tensors_sha256", f"digest {'4' * 64} on rank {rank}") for rank in range(RANKS)],
        ),
        ({"forwards": 2}, [("/forwards", f"2 forwards on rank {rank}") for rank in range(RANKS)]),
        ({"loss_terms": {}}, [("/loss_terms", f"no loss term on rank {rank}") for rank in range(RANKS)]),
    ],
)
def test_what_ranks_report_breaks_its_rule(rl: Run, changes: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    rl.prepare()
    rl.sample()
    assert broken(rl, **changes) == expected


LORA_A = TrainableParameter(shape=(2, 3), dtype="float32")


@pytest.mark.parametrize(
    "other",
    [
        {"lora_A": dataclasses.replace(LORA_A, shape=(3, 2))},
        {"lora_A": dataclasses.replace(LORA_A, dtype="bfloat16")},
        {"lora_A": LORA_A, "lora_B": LORA_A},
        {},
    ],
)
def test_ranks_that_train_other_parameters(rl: Run, other: dict[str, TrainableParameter]) -> None:
    rl.prepare()
    rl.sample()
    first, second = rl.reports(TENSORS)
    second = dataclasses.replace(second, trainable_parameters=other)
    (fault,) = broken_completion_rules(rl.plan, recounts(rl), [first, second], adapter_tensors_sha256=TENSORS)
    name = "lora_B" if "lora_B" in other else "lora_A"
    assert (fault.pointer, fault.found) == ("/trainable_parameters", f"1 other parameters on rank 1, such as {name}")


def test_ranks_that_compute_with_other_functions(rl: Run) -> None:
    rl.prepare()
    rl.sample()
    first, second = rl.reports(TENSORS)
    second = dataclasses.replace(second, layer_functions={"chunk_gated_delta_rule": "fla.chunk_gated_delta_rule"})
    (fault,) = broken_completion_rules(rl.plan, recounts(rl), [first, second], adapter_tensors_sha256=TENSORS)
    assert fault.pointer == "/layer_functions"
    assert fault.found == '{"chunk_gated_delta_rule": "fla.chunk_gated_delta_rule"} on rank 1'


# --- the loss's terms ---------------------------------------------------------------------------------------------

ACTED = LossTerm(called=PASSES, finite=True, gradient=True)
UNWEIGHED = LossTerm(called=PASSES, finite=True, gradient=False)
NEVER = LossTerm(called=0, finite=True, gradient=False)
SOMETIMES = LossTerm(called=1, finite=True, gradient=True)
EVI_PO = {
    "adapter_version": "evi_po/1",
    "lambda_dir": 0.5,
    "lambda_ev": 0.1,
    "kappa": 1.0,
    "margin": 1.0,
    "tau": 0.07,
    "max_rows_per_forward": 32,
}
PAPO = {
    "adapter_version": "papo/1",
    "upstream_sha256": "0" * 64,
    "recipe": "custom",
    "gamma": 0.01,
    "eta_aug": 0.0,
    "eta_ori": 0.03,
    "aug_entropy_grad": False,
    "mask_probability": 0.6,
    "mask_patch_pixels": 32,
}


def of_terms(tmp_path: Path, arm: str, block: dict[str, Any] | None, **terms: LossTerm) -> list[tuple[str | None, str]]:
    """Return which rules an arm's run breaks whose first rank measured these terms; both ranks report the same."""
    changes = {"objective__papo" if arm == "papo" else "objective__evi_po": block} if block else {}
    run = Run.of(tmp_path, plan_document(arm=arm, **changes))
    run.prepare()
    run.sample()
    found = broken(run, loss_terms=terms)
    assert len(found) % RANKS == 0
    return found[: len(found) // RANKS]


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        (ACTED, None),
        (LossTerm(called=PASSES, finite=False, gradient=True), "a value that was not finite (rank 0)"),
        (LossTerm(called=PASSES - 1, finite=True, gradient=True), f"computed in {PASSES - 1} backward passes (rank 0)"),
        (NEVER, "computed in 0 backward passes (rank 0)"),
        (UNWEIGHED, "no gradient in any backward pass (rank 0)"),
    ],
)
def test_the_policy_term_acts_in_every_pass(tmp_path: Path, policy: LossTerm, told: str | None) -> None:
    found = of_terms(tmp_path, "answer_grpo", None, policy=policy)
    assert found == ([("/loss_terms/policy", told)] if told else [])


def test_a_policy_term_has_no_gradient_where_no_rewards_differ(rl: Run) -> None:
    rl.prepare()
    rl.sample(change=lambda _, pairs: [(entry, row(entry, 0, total=1.0)) for entry, _ in pairs])
    assert broken(rl, loss_terms={"policy": UNWEIGHED}) == []


@pytest.mark.parametrize(
    ("arm", "weights", "terms", "told"),
    [
        ("evi_po", {}, {}, {}),
        ("evi_po", {}, {"direction": NEVER}, {"direction": "never computed (rank 0)"}),
        ("evi_po_ce", {}, {"direction": NEVER}, {"direction": "never computed (rank 0)"}),
        ("evi_po", {}, {"direction": UNWEIGHED}, {"direction": "no gradient in any backward pass (rank 0)"}),
        ("evi_po", {}, {"evidence": NEVER}, {"evidence": "never computed (rank 0)"}),
        ("evi_po_no_direction", {"lambda_dir": 0.0}, {"direction": UNWEIGHED, "control": UNWEIGHED}, {}),
        ("evi_po_no_evidence", {"lambda_ev": 0.0}, {"evidence": NEVER}, {}),
        # no CONTROL views, or none whose FULL view was answered right
        ("evi_po", {}, {"control": NEVER}, {}),
        ("evi_po", {}, {"control": UNWEIGHED}, {"control": "no gradient in any backward pass (rank 0)"}),
        ("evi_po", {"kappa": 0.0}, {"control": UNWEIGHED}, {}),
    ],
)
def test_evi_pos_terms_act_where_they_have_a_weight(
    tmp_path: Path, arm: str, weights: dict[str, float], terms: dict[str, LossTerm], told: dict[str, str]
) -> None:
    measured = {"policy": ACTED, "direction": SOMETIMES, "control": SOMETIMES, "evidence": SOMETIMES} | terms
    found = of_terms(tmp_path, arm, EVI_PO | weights, **measured)
    assert found == [(f"/loss_terms/{name}", text) for name, text in told.items()]


@pytest.mark.parametrize(
    ("weights", "terms", "told"),
    [
        ({}, {}, {}),
        ({}, {"perception": UNWEIGHED}, {"perception": "no gradient in any backward pass (rank 0)"}),
        ({"gamma": 0.0}, {"perception": UNWEIGHED}, {}),
        ({"eta_aug": 0.03}, {}, {"masked_entropy": "no gradient in any backward pass (rank 0)"}),
        ({}, {"original_entropy": SOMETIMES}, {"original_entropy": "computed in 1 backward passes (rank 0)"}),
    ],
)
def test_papos_terms_act_in_every_pass(
    tmp_path: Path, weights: dict[str, float], terms: dict[str, LossTerm], told: dict[str, str]
) -> None:
    measured = {"policy": ACTED, "perception": ACTED, "masked_entropy": UNWEIGHED, "original_entropy": ACTED} | terms
    found = of_terms(tmp_path, "papo", PAPO | weights, **measured)
    assert found == [(f"/loss_terms/{name}", text) for name, text in told.items()]


def test_papos_terms_have_no_gradient_where_no_completion_ended(rl: Run) -> None:
    """TRL masks truncated completions, so that every mean over completions is 0."""
    cut = {"terminated": False, "valid": False, "reason": "truncated_completion", "total": -1.0}
    rl.prepare()
    rl.sample(change=lambda _, pairs: [(entry, row(entry, 0, **cut)) for entry, _ in pairs])
    recount, papo = recounts(rl), {term.name: term for term in ARMS["papo"].terms}
    assert sum(each.trace_rows - each.truncated for each in recount) == 0
    assert not _must_have_gradient(papo["perception"], varied=0, ended=0)
    assert _must_have_gradient(papo["perception"], varied=0, ended=1)
    assert not _must_have_gradient(papo["policy"], varied=0, ended=1)


@pytest.mark.parametrize(
    ("terms", "told"),
    [
        ({"policy": ACTED}, "policy on rank 0"),
        (dict.fromkeys(("policy", "direction", "control"), ACTED), "control, direction, policy on rank 0"),
    ],
)
def test_terms_of_another_arm_are_named(tmp_path: Path, terms: dict[str, LossTerm], told: str) -> None:
    assert of_terms(tmp_path, "evi_po", EVI_PO, **terms) == [("/loss_terms", told)]


def test_a_missing_rank_is_named(rl: Run) -> None:
    rl.prepare()
    rl.sample()
    faults = broken_completion_rules(rl.plan, recounts(rl), rl.reports(TENSORS)[:1], adapter_tensors_sha256=TENSORS)
    assert [fault.found for fault in faults] == ["reports of ranks [0]"]


def test_a_step_too_few_in_the_ledgers(rl: Run) -> None:
    rl.prepare()
    rl.sample(range(2))
    assert broken(rl, completions=16, sampled_tokens=88) == [("/completions", "16 completions in the ledgers")]


def test_a_group_without_its_last_generation(rl: Run) -> None:
    def change(rank: int, pairs: list[Any]) -> list[Any]:
        if rank or pairs[0][0].visit:
            return pairs
        (entry, _), *others = pairs
        moved = dataclasses.replace(entry, visit=9)
        return [(moved, row(moved, 0)), *others]

    rl.prepare()
    rl.sample(change=change)
    assert broken(rl) == [
        ("/generations", "generations missing from s0.r0 visit 0, s0.r0 visit 9"),
        ("/groups", "13 groups"),
    ]


def test_a_completion_in_two_ledgers(rl: Run) -> None:
    def change(rank: int, pairs: list[Any]) -> list[Any]:
        if rank == 0:
            return pairs
        entries = [dataclasses.replace(entry, slot_id=entry.slot_id.replace("r1", "r0")) for entry, _ in pairs]
        return [(entry, row(entry, 0)) for entry in entries]

    rl.prepare()
    rl.sample(change=change)
    assert broken(rl) == [
        (
            "/generations",
            (
                "completions of s0.r0 visit 0, s0.r0 visit 1, s0.r0 visit 2, s1.r0 visit 0, s1.r0 visit 1 and 1 more "
                "in several ledgers"
            ),
        ),
        ("/groups", "6 groups"),
    ]


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def drop_last_row(path: Path) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


@pytest.fixture
def whole(rl: Run) -> Run:
    rl.prepare()
    rl.sample()
    return rl


def test_a_trace_row_too_few(whole: Run) -> None:
    drop_last_row(whole.folder / "accounting/rank-1/trace.jsonl")
    assert broken(whole) == [("/trace", "11 trace rows on rank 1")]


def test_a_ledger_row_too_few(whole: Run) -> None:
    drop_last_row(whole.folder / "accounting/rank-1/ledger.jsonl")
    assert [pointer for pointer, _ in broken(whole)] == [
        "/completions",
        "/sampled_tokens",
        "/completions",
        "/generations",
        "/groups",
        "/trace",
    ]


def test_an_edited_count(whole: Run) -> None:
    edit(whole.folder / "accounting/rank-0/ledger.jsonl", '"token_count":5', '"token_count":4')
    assert [pointer for pointer, _ in broken(whole)] == ["/sampled_tokens", "accounting/rank-0/trace.jsonl:2"]


def test_a_trace_row_of_another_completion(whole: Run) -> None:
    edit(whole.folder / "accounting/rank-0/trace.jsonl", '"visit":0', '"visit":9')
    ((where, found),) = broken(whole)
    assert where == "accounting/rank-0/trace.jsonl:2"
    assert '"visit": 9' in found


def test_ids_that_are_not_as_many_as_counted(whole: Run) -> None:
    edit(whole.folder / "accounting/rank-0/trace.jsonl", "[3,4,5,6,2]", "[3,4,5,2]")
    assert broken(whole) == [("accounting/rank-0/trace.jsonl:2", "4 token ids")]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('"arm":"answer_grpo","base_id"', '"arm":"papo","base_id"', 'arm "papo"'),
        ('"base_id":"b-s0.r0"', '"base_id":"b-s1.r0"', 'base item "b-s1.r0" of slot s0.r0'),
    ],
)
def test_a_trace_row_of_another_arm_or_base_item(whole: Run, old: str, new: str, told: str) -> None:
    edit(whole.folder / "accounting/rank-0/trace.jsonl", old, new)
    assert broken(whole) == [("accounting/rank-0/trace.jsonl:2", told)]


def test_a_trace_row_of_a_slot_that_the_dataset_lacks(whole: Run) -> None:
    known = {name: base for name, base in BASE_IDS.items() if name != "s0.r0"}
    (fault,) = recount_rank(FolderTree(whole.folder), whole.plan, 0, base_ids=known).faults
    assert (fault.found, fault.expected) == ('base item "b-s0.r0" of slot s0.r0', "a slot of the dataset")


def test_a_doubled_ledger_row(whole: Run) -> None:
    path = whole.folder / "accounting/rank-0/ledger.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines, lines[-1]]))
    found = broken(whole, completions=25, sampled_tokens=138)
    assert found[0] == ("accounting/rank-0/ledger.jsonl:14", "completion s1.r0/2/1 again")
    assert [pointer for pointer, _ in found[1:]] == ["/completions", "/groups", "/trace"]


def test_a_row_without_a_field(whole: Run) -> None:
    edit(whole.folder / "accounting/rank-0/trace.jsonl", '"terminated":true,', "")
    with pytest.raises(Refusal) as refusal:
        recount_rank(FolderTree(whole.folder), whole.plan, 0, base_ids=BASE_IDS)
    (fault,) = refusal.value.faults
    assert (str(fault.file)[-len("rank-0/trace.jsonl:2") :], fault.pointer) == ("rank-0/trace.jsonl:2", "/terminated")


def test_more_tokens_than_the_ceiling(whole: Run) -> None:
    path = whole.folder / "accounting/rank-0"
    for name in ("ledger.jsonl", "trace.jsonl"):
        edit(path / name, '"token_count":5', '"token_count":90')
    edit(path / "trace.jsonl", "[3,4,5,6,2]", json.dumps([*range(89), 2], separators=(",", ":")))
    assert broken(whole, sampled_tokens=132 + 85) == [("/ceiling", "151 tokens on rank 0")]


def test_a_ledger_of_another_run_is_refused(whole: Run, tmp_path: Path) -> None:
    other = Run.of(tmp_path / "run", plan_document(seed=1))
    with pytest.raises(Refusal) as refusal:
        recount_rank(FolderTree(whole.folder), other.plan, 0, base_ids=BASE_IDS)
    assert [fault.pointer for fault in refusal.value.faults] == ["/frozen_config_sha256"]


def test_a_torn_ledger_is_refused(whole: Run) -> None:
    path = whole.folder / "accounting/rank-0/ledger.jsonl"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(Refusal, match="truncated"):
        recounts(whole)


def test_sft_rules(sft: Run) -> None:
    assert broken(sft) == []
    assert broken(sft, sft_loss_tokens=479) == [
        ("/sft_loss_tokens", "479 loss tokens (rank 0)"),
        ("/sft_loss_tokens", "479 loss tokens (rank 1)"),
    ]
    assert [pointer for pointer, _ in broken(sft, optimizer_steps=4)] == ["/optimizer_steps", "/optimizer_steps"]


def test_entries_are_what_the_ledger_takes() -> None:
    assert {field.name for field in dataclasses.fields(SampledCompletion)} == {
        "slot_id",
        "visit",
        "generation",
        "token_count",
    }
