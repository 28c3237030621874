"""Tampering of every kind with finished runs: a signed run cannot be forged, and an unsigned one only completely."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from explicit_learning.verify.measurements import REPEATED
from explicit_learning.verify.verifying import LIMIT_UNSIGNED, verify_run
from tests.support.tamper.campaign import DEPTHS, Base, Case, all_cases, bases, campaign, judge, seeded
from tests.support.tamper.documents import edit
from tests.support.tamper.forgeries import FORGERIES
from tests.support.tamper.repair import repair_records, seal

if TYPE_CHECKING:
    from collections.abc import Iterator

KINDS = sorted({case.kind for case in all_cases()})
FLIPS = 24


@pytest.fixture(scope="module")
def runs() -> Iterator[list[Base]]:
    with bases() as found:
        yield found


def run_of(runs: list[Base], name: str, *, signed: bool) -> Base:
    (found,) = [base for base in runs if base.name.startswith(name) and base.signed is signed]
    return found


def test_a_run_that_was_not_touched_is_verified(runs: list[Base]) -> None:
    assert len(runs) == 4
    for base in runs:
        tree = base.tree.copy()
        repair_records(tree)
        assert tree == base.tree
        found = verify_run(tree, plan_file=base.plan_file)
        assert (found.faults, found.not_checked) == ((), (REPEATED,))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_found_or_its_limit_is_told(runs: list[Base], kind: str) -> None:
    case = Case(kind=kind, depth=DEPTHS[3] if kind in FORGERIES else DEPTHS[0])
    chosen = [base for base in runs if base.name.startswith("sft") or not base.signed]  # the others are slower
    outcomes = [judge(case, base, seeded(1)) for base in chosen]
    assert [each for each in outcomes if each.result == "missed"] == []
    assert {each.result for each in outcomes} != {"skipped"}
    assert all(each.result in {"found", "skipped"} for each in outcomes if each.base.signed)
    if kind in FORGERIES and FORGERIES[kind].complete != "none":  # else the table says too little of what is found
        assert "limit" in {each.result for each in outcomes}


@pytest.mark.parametrize("kind", ["one bit flipped", "one digit changed"])
def test_bits_and_digits_anywhere(runs: list[Base], kind: str) -> None:
    chance = seeded(2)
    outcomes = [judge(Case(kind=kind), chance.choice(runs), chance) for _ in range(FLIPS)]
    assert {each.result for each in outcomes} <= {"found", "skipped"}
    assert sum(each.result == "found" for each in outcomes) > FLIPS / 2


# A forgery with every hash recomputed, and what contradicts it all the same.
CONTRADICTED = {
    "library in one launch": ("launches/", "/accepted_changes"),
    "CPU in one launch": ("launches/", "/accepted_changes"),
    "accepted changes": ("launches/", "/accepted_changes"),
    "GPU of a rank": ("launches/", "/nodes/0/platform/gpus"),
    "end of an earlier launch removed": ("training-complete.json", "/launches/measured"),
    "peak memory": ("training-complete.json", "/memory"),
    "first launch removed": ("launches/", "/step"),
    "launches reordered": ("launches/", "/step"),
    "commit of one launch": ("accounting/", "/running_commit"),
    "final adapter": ("checkpoint-4/adapter_model.safetensors", ""),
    "final adapter and checkpoint": ("checkpoint-4/state-digests-rank-0.json", "/components/policy_adapter"),
    "adapter of an earlier checkpoint": ("checkpoint-2/state-digests-rank-1.json", "/components/policy_adapter"),
    "reference adapter": ("checkpoint-2/state-digests-rank-0.json", "/components/reference_adapter"),
    "initial adapter, all digests": ("checkpoint-4/ref/adapter_model.safetensors", ""),
    "base weights, marker alone": ("checkpoint-2/state-digests-rank-0.json", "/components/base_weights"),
    "log and metrics": ("checkpoint-4/trainer_state.json", "/log_history/3/loss"),
    "log, marker alone": ("metrics.jsonl:4", ""),
    "kind of file of checkpoints removed": ("checkpoint-2/complete.json /files/", ""),
    "file added to a checkpoint": ("checkpoint-4/complete.json /files/", ""),
    "last checkpoint removed": ("checkpoint-4", ""),
    "mark of a checkpoint removed": ("checkpoint-", ""),
    "step of a trainer state": ("checkpoint-", "/global_step"),
    "row added to a trainer state": ("checkpoint-", "/log_history"),
    "value added to a trainer state": ("checkpoint-", "/accuracy"),
    "value of a trainer state not finite": ("checkpoint-", "/loss"),
    "clock of an earlier row in a trainer state": ("checkpoint-4/trainer_state.json", "/log_history/0"),
    "epoch of a trainer state": ("checkpoint-", "/epoch"),
    "truncated in counters": ("checkpoint-", "/loop/truncated"),
    "zero-variance groups in counters": ("checkpoint-", "/loop/zero_variance_groups"),
    "sampling forwards in counters": ("checkpoint-", "/loop/sampling_forwards"),
    "value of a probe in counters": ("checkpoint-", "/loop/probes"),
    "counters but not their digest": ("checkpoint-", "/components/counters"),
    "rank of an adapter in a checkpoint": ("checkpoint-", "/r"),
    "field of an adapter in a checkpoint": ("checkpoint-", "/revision"),
    "random streams of another form": ("checkpoint-", ""),
    "another data seed": ("accounting/", "/slot_id"),
    "reward of a row": ("accounting/", "/total"),
    "right answer, old token ids": ("accounting/", "/completion_text"),
    "right answer, token ids and all": ("training-complete.json", "~1right_ratio"),
    "other gold answer": ("accounting/", "/gold"),
    "row dropped, counts adjusted": ("accounting", "/generations"),
    "set-aside rows removed": ("events.jsonl", "/data/stored"),
    "exit code of a launch": ("launches/", "/exit_code"),
    "stop passed off as a failure": ("launches/", "/ranks/0/optimizer_step"),
    "checkpoint of a launch's end": ("launches/", "/ranks/0/optimizer_step"),
    "rank of a launch's end removed": ("launches/", "/ranks"),
    "another learning rate": ("training-complete.json", "/log_history/1/learning_rate"),
    "learning rate in the log": ("training-complete.json", "/log_history/3/learning_rate"),
    "lengths in the log": ("training-complete.json", "/log_history/3/completions~1max_length"),
    "deviation of rewards in the log": ("training-complete.json", "/log_history/3/reward_std"),
    "equal groups in the log": ("training-complete.json", "/log_history/3/groups~1zero_variance"),
    "tokens in the log": ("training-complete.json", "/log_history/3/num_tokens"),
    "metric of another arm in the log": ("training-complete.json", "/log_history/0/papo~1k3"),
    "steps in the log": ("training-complete.json", "/log_history"),
    "strange file": ("results.md", ""),
    "model card": ("final-adapter/README.md:", ""),
    "digest in a resume audit": ("resume-audits/", "/ranks/0/components"),
}


@pytest.mark.parametrize("kind", CONTRADICTED)
def test_what_contradicts_a_forgery_is_named(runs: list[Base], kind: str) -> None:
    base = run_of(runs, "rl", signed=False)
    outcome = judge(Case(kind=kind, depth=DEPTHS[3]), base, seeded(5))
    file, pointer = CONTRADICTED[kind]
    assert outcome.result == "found"
    headlines = [text.splitlines()[0] for text in outcome.faults]
    assert any(f"run/{file}" in line and line.endswith(pointer) for line in headlines), headlines


def test_why_a_forgery_cannot_be_found_is_said() -> None:
    assert {name for name, forgery in FORGERIES.items() if bool(forgery.why) != (forgery.complete != "none")} == set()


@pytest.mark.parametrize(
    ("counter", "group"),
    [
        ("forwards", "compute"),
        ("sampling_forwards", "compute"),
        ("scored_tokens", "compute"),
        ("device_seconds", "compute"),
        ("runtime_seconds", "compute"),
        ("records", "counts"),
        ("zero_gradient_steps", None),
        ("unchanged_adapter_steps", None),
    ],
)
def test_what_ranks_counted_is_what_the_marker_tells(runs: list[Base], counter: str, group: str | None) -> None:
    base = run_of(runs, "rl", signed=False)
    tree = base.tree.copy()
    with edit(tree, "training-complete.json") as marker:
        if group is None:
            marker[counter] = [*marker[counter], 4]
        else:
            marker[group][counter] += 1
    repair_records(tree)
    seal(tree)
    pointer = f"/{group}/{counter}" if group else f"/{counter}"
    faults = verify_run(tree, plan_file=base.plan_file).faults
    assert pointer in {fault.pointer for fault in faults if fault.gate in {"checkpoints", "launches"}}


def test_the_limit_of_an_unsigned_run_is_told_with_a_complete_forgery(runs: list[Base]) -> None:
    case = Case(kind="another seed", depth=DEPTHS[3])
    for base in runs:
        outcome = judge(case, base, seeded(0))
        assert outcome.result == ("found" if base.signed else "limit")
        if not base.signed:
            assert LIMIT_UNSIGNED in verify_run(base.tree, plan_file=base.plan_file).limits


@pytest.mark.slow
def test_a_campaign_misses_nothing(runs: list[Base]) -> None:
    tally = campaign(300, 5, runs)
    assert tally.missed == []
    assert len(tally.outcomes) == 300
    by_signature = tally.counts(lambda outcome: "signed" if outcome.base.signed else "unsigned")
    assert by_signature["signed"].keys() == {"found"}
    assert by_signature["unsigned"]["found"] > by_signature["unsigned"]["limit"] > 0


def test_a_campaign_is_fixed_by_its_seed(runs: list[Base]) -> None:
    first, again = ([(each.case, each.place) for each in campaign(12, 3, runs).outcomes] for _ in range(2))
    assert first == again
