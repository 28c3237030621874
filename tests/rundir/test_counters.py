"""Counters that another version counted: named when the run is resumed, and not after all its training."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.typed_json import from_json
from explicit_learning.plan.typed_plan import Plan
from explicit_learning.rundir.counters import (
    Counters,
    StoredCounters,
    TrainerCounters,
    ValidationCounts,
    digested_counters,
    load_counters,
    require_own_counters,
    save_counters,
)
from tests.support.finished_run import plan_document
from tests.support.plans import VALIDATION

if TYPE_CHECKING:
    from pathlib import Path

OTHER = "another version of this program wrote it: continue the run with that version, or start it again"


def refused(plan: Plan, counters: Counters, file: Path, step: int) -> dict[str, tuple[str, str]]:
    with pytest.raises(Refusal) as caught:
        require_own_counters(counters, plan, step=step, file=file)
    assert caught.value.exit_code == ExitCode.CONTRACT
    assert all(fault.file == str(file) and fault.fix.startswith(OTHER) for fault in caught.value.faults)
    return {fault.pointer or "": (fault.found, fault.expected) for fault in caught.value.faults}


def test_rl_counters_follow_from_the_step(tmp_path: Path) -> None:
    plan = from_json(Plan, plan_document())
    slots = plan.optimisation.per_device_batch_size * plan.optimisation.gradient_accumulation_steps
    slots //= plan.generation.num_generations
    passes = 2 * plan.optimisation.gradient_accumulation_steps
    own = Counters(records=2 * slots, terms={"policy": [passes, passes, 1]})
    require_own_counters(own, plan, step=2, file=tmp_path)
    after = "after step 2, as this version counts"
    own.records += 1
    own.terms["policy"][0] += 1
    assert refused(plan, own, tmp_path, 2) == {
        "/loop/records": (str(2 * slots + 1), f"{2 * slots} {after}"),
        "/loop/terms/policy/0": (str(passes + 1), f"{passes} {after}"),
    }
    own = Counters(records=2 * slots, terms={})
    assert refused(plan, own, tmp_path, 2) == {"/loop/terms": ("[]", f'["policy"] {after}')}


def test_a_run_without_validation_has_no_count_of_it_in_its_digest() -> None:
    trainer = TrainerCounters(loss_sum=0.0, last_logged=0, metrics={}, total_tokens=0)
    without = digested_counters(StoredCounters(loop=Counters(), trainer=trainer), step=1, backward_passes=1)
    assert "validation" not in without["loop"]  # as in runs that an earlier version made
    counted = Counters(validation=ValidationCounts(forwards=3, tokens=20))
    found = digested_counters(StoredCounters(loop=counted, trainer=trainer), step=1, backward_passes=1)
    assert found["loop"] == without["loop"] | {"validation": {"forwards": 3, "tokens": 20}}


def test_a_count_of_validation_belongs_to_plans_that_validate(tmp_path: Path) -> None:
    plans = [from_json(Plan, plan_document(**changes)) for changes in ({}, {"validation": VALIDATION})]
    slots = plans[0].optimisation.per_device_batch_size // plans[0].generation.num_generations
    for plan, counts, wrong in ((plans[0], None, ValidationCounts()), (plans[1], ValidationCounts(), None)):
        own = Counters(records=slots, terms={"policy": [1, 1, 1]}, validation=counts)
        require_own_counters(own, plan, step=1, file=tmp_path)
        own.validation = wrong
        assert refused(plan, own, tmp_path, 1).keys() == {"/loop/validation"}


@pytest.mark.parametrize("change", [lambda loop: loop.pop("records"), lambda loop: loop.update(unheard_of=1)])
def test_counters_of_another_form_name_another_version(tmp_path: Path, change: Any) -> None:
    trainer = TrainerCounters(loss_sum=0.0, last_logged=0, metrics={}, total_tokens=0)
    save_counters(tmp_path, 0, StoredCounters(loop=Counters(), trainer=trainer))
    (file,) = tmp_path.iterdir()
    document = json.loads(file.read_text())
    change(document["loop"])
    file.write_text(json.dumps(document))
    with pytest.raises(Refusal) as caught:
        load_counters(tmp_path, 0)
    assert [fault.fix.startswith(OTHER) for fault in caught.value.faults] == [True]
