"""A log that was changed wherever it is told: what it repeats of plan, traces and marker contradicts it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.errors import Context
from explicit_learning.files.tree import FolderTree
from explicit_learning.files.typed_json import from_json
from explicit_learning.plan.log_steps import log_steps
from explicit_learning.plan.typed_plan import Plan
from explicit_learning.rundir.completion_marker import CompletionMarker, read_marker
from explicit_learning.verify.accounting.logged_scores import SCORED, StepScores, score_faults
from explicit_learning.verify.log_rows import log_faults, metrics_of_row
from tests.support.finished_run import Run, plan_document, row, sampled, sft_document
from tests.support.lifecycle import finish

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from explicit_learning.accounting.rows import TraceRow

    Rows = list[dict[str, Any]]

CONTEXT = Context(gate="test", fix="none")
PROMPTS = 8 * 10  # tokens of the prompts of a step's eight completions


@dataclasses.dataclass(frozen=True)
class Logged:
    """A finished run, and what verifies its log."""

    tree: FolderTree
    plan: Plan
    marker: CompletionMarker
    scores: StepScores

    def pointers(self, change: Callable[[Rows], object] = len, **of_marker: Any) -> list[str | None]:
        """Return where the log is wrong once its rows were changed."""
        rows = [dict(each) for each in self.marker.log_history]
        change(rows)
        marker = dataclasses.replace(self.marker, **({"log_history": tuple(rows)} | of_marker))
        found = [*log_faults(self.tree, self.plan, marker)]
        if self.plan.samples:
            found += score_faults(self.tree, self.plan, marker, self.scores, CONTEXT)
        assert {fault.file for fault in found} <= {self.tree.place("training-complete.json")}
        return [fault.pointer for fault in found]


def logged(folder: Path, document: dict[str, Any]) -> Logged:
    run = Run.of(folder, document)
    run.prepare()
    if not run.is_sft:
        run.sample()
    assert finish(run) == 0
    scores = StepScores(run.plan)
    for step in range(3):
        for rank in (0, 1):
            for _, scored in sampled(rank, step):
                scores.add(scored)  # type: ignore[arg-type] # a trace's row has these fields, and more
    return Logged(tree=FolderTree(folder), plan=run.plan, marker=read_marker(folder), scores=scores)


@pytest.fixture(scope="module")
def rl_log(tmp_path_factory: pytest.TempPathFactory) -> Logged:
    return logged(tmp_path_factory.mktemp("rl") / "run", plan_document())


@pytest.fixture(scope="module")
def sft_log(tmp_path_factory: pytest.TempPathFactory) -> Logged:
    return logged(tmp_path_factory.mktemp("sft") / "run", sft_document())


def test_the_logs_themselves_are_right(rl_log: Logged, sft_log: Logged) -> None:
    assert rl_log.pointers() == sft_log.pointers() == []


# By metric, what the eight completions of a step say of it: lengths 5 and 6, every other one right, none truncated.
SCORES = {
    "completions/malformed_ratio": 0.0,
    "completions/truncated_ratio": 0.0,
    "completions/right_ratio": 0.5,
    "groups/zero_variance": 0.0,
    "completions/mean_length": 5.5,
    "completions/min_length": 5.0,
    "completions/max_length": 6.0,
    "completions/clipped_ratio": 0.0,
    "completions/mean_terminated_length": 5.5,
    "completions/min_terminated_length": 5.0,
    "completions/max_terminated_length": 6.0,
    "reward": 0.5,
    "reward_std": 0.534522,
    "rewards/answer/mean": 0.5,
    "rewards/answer/std": 0.534522,
}


def test_what_traces_say_of_a_step_is_known(rl_log: Logged) -> None:
    assert rl_log.scores.between(0, 1) == pytest.approx(SCORES, abs=1e-6)
    assert SCORES.keys() == SCORED.keys()
    assert rl_log.scores.flat_shares(0, 3) == (0.0, 0.0)
    assert rl_log.scores.tokens(0, 1) == (44, 8)


@pytest.mark.parametrize("name", [*SCORES, "frac_reward_zero_std"])
@pytest.mark.parametrize("value", [0.25, None, "0.5"])
def test_a_score_that_the_traces_do_not_give(rl_log: Logged, name: str, value: Any) -> None:
    pointer = f"/log_history/1/{name.replace('/', '~1')}"
    assert rl_log.pointers(lambda rows: rows[1].update({name: value})) == [pointer]


@pytest.mark.parametrize("tokens", [44 + PROMPTS + 1, 44 + 7, 44 + 8 * 10_000, 124.5, None])
def test_tokens_that_no_prompts_can_make(rl_log: Logged, tokens: Any) -> None:
    assert "/log_history/0/num_tokens" in rl_log.pointers(lambda rows: rows[0].update(num_tokens=tokens))


@pytest.mark.parametrize("change", [lambda rate: rate * 1.001, lambda rate: rate + 1e-9, lambda _: 0.5, lambda _: 0])
def test_a_learning_rate_of_another_schedule(rl_log: Logged, sft_log: Logged, change: Callable[[float], float]) -> None:
    for log in (rl_log, sft_log):
        found = log.pointers(lambda rows: rows[1].update(learning_rate=change(rows[1]["learning_rate"])))
        assert found == ["/log_history/1/learning_rate"]


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows.append(dict(rows[-1])),
        lambda rows: rows.pop(),
        lambda rows: rows.pop(0),
        lambda rows: rows[1].update(step=3),
        lambda rows: rows.reverse(),
        lambda rows: rows.append({**rows[-1], "step": 4}),
        lambda rows: rows.clear(),
    ],
)
def test_steps_that_the_plan_does_not_log(rl_log: Logged, change: Callable[[Rows], object]) -> None:
    assert rl_log.pointers(change) == ["/log_history"]


@pytest.mark.parametrize("name", ["loss", "grad_norm", "learning_rate", "entropy", "reward", "num_tokens"])
def test_a_metric_that_was_left_out(rl_log: Logged, name: str) -> None:
    assert f"/log_history/2/{name}" in rl_log.pointers(lambda rows: rows[2].pop(name))


@pytest.mark.parametrize("name", ["accuracy", "papo/k3", "evi_po/delta", "kl", "mean_token_accuracy", "eval_loss"])
def test_a_metric_that_the_arm_does_not_log(rl_log: Logged, name: str) -> None:
    pointer = f"/log_history/0/{name.replace('/', '~1')}"
    assert rl_log.pointers(lambda rows: rows[0].update({name: 0.5})) == [pointer]


@pytest.mark.parametrize(
    ("name", "value"),
    [("loss", None), ("loss", "0.1"), ("grad_norm", -1.0), ("entropy", -0.1), ("clip_ratio/low_mean", 1.1)],
)
def test_a_value_that_no_such_metric_has(rl_log: Logged, name: str, value: Any) -> None:
    pointer = f"/log_history/0/{name.replace('/', '~1')}"
    assert rl_log.pointers(lambda rows: rows[0].update({name: value})) == [pointer]


def test_gradients_are_there_where_the_marker_says_so(rl_log: Logged) -> None:
    assert rl_log.marker.zero_gradient_steps == (2,)
    assert rl_log.pointers(lambda rows: rows[1].update(grad_norm=0.5)) == ["/log_history/1/grad_norm"]
    assert rl_log.pointers(zero_gradient_steps=(2, 3)) == ["/log_history/2/grad_norm"]


def test_probes_and_agreement_are_those_of_the_marker(rl_log: Logged) -> None:
    assert rl_log.marker.log_history[0]["probe/mean"] == 1e-6
    assert rl_log.pointers(lambda rows: rows[0].update({"probe/mean": 1e-7})) == ["/log_history/0/probe~1mean"]
    assert rl_log.pointers(lambda rows: rows[0].pop("probe/max")) == ["/log_history/0/probe~1max"]
    pair = {"agreement/mean": 1e-7, "agreement/max": 1e-6}
    assert rl_log.pointers(lambda rows: rows[0].update(pair)) == []
    assert rl_log.pointers(lambda rows: rows[0].update({"agreement/max": 1e-7})) == ["/log_history/0/agreement~1mean"]
    found = rl_log.pointers(lambda rows: rows[0].update(pair | {"agreement/max": 2e-6}))
    assert found == ["/log_history/0/agreement~1max"]


@pytest.mark.parametrize(("number", "tokens"), [(0, 1.0), (1, 100.0), (2, 10**9), (1, None), (1, 900.5)])
def test_tokens_of_supervised_records(sft_log: Logged, number: int, tokens: Any) -> None:
    pointer = f"/log_history/{number}/num_tokens"
    assert sft_log.pointers(lambda rows: rows[number].update(num_tokens=tokens)) == [pointer]


def test_tokens_in_the_loss_are_among_those_that_were_read(sft_log: Logged) -> None:
    def change(rows: Rows) -> None:
        for each in rows:
            each["num_tokens"] = 20.0 * each["step"]

    assert sft_log.pointers(change) == ["/log_history/2/num_tokens"]  # 480 tokens were in the loss


def scored(step: int, rewards: list[float | None], slot: str = "s0") -> list[TraceRow]:
    """Return the rows of a group; without a reward, a completion was truncated."""
    entries = [entry for entry, _ in sampled(0, step)][:1]
    return [
        dataclasses.replace(
            row(entries[0], step),
            slot_id=slot,
            generation=number,
            terminated=reward is not None,
            valid=reward is not None,
            components={"answer": reward or 0.0, "format": 0.0, "malformed": 0.0},
            total=reward or 0.0,
        )  # type: ignore[misc] # a trace's row has these fields, and more
        for number, reward in enumerate(rewards)
    ]


def scores_of(rows: list[TraceRow], **changes: Any) -> StepScores:
    scores = StepScores(from_json(Plan, plan_document(**changes)))
    for each in rows:
        scores.add(each)
    return scores


def test_truncated_completions_have_no_reward() -> None:
    scores = scores_of(
        [*scored(0, [1.0, None, 0.0]), *scored(0, [None] * 3, "s1"), *scored(0, [1.0, None, None], "s2")]
    )
    found = scores.between(0, 1)
    assert found["reward"] == pytest.approx(2 / 3)
    assert found["reward_std"] == pytest.approx(0.57735, abs=1e-5)
    assert found["completions/clipped_ratio"] == pytest.approx(6 / 9)
    assert found["groups/zero_variance"] == 2
    assert scores.flat_shares(0, 1) == (0.0, 0.0)  # of fewer than two rewards there is no deviation


def test_of_a_cycle_without_rewards_nothing_enters_the_means() -> None:
    scores = scores_of([*scored(0, [None, None]), *scored(1, [1.0, 0.0])])
    assert scores.between(0, 1)["reward"] is None
    assert scores.between(0, 1)["completions/max_terminated_length"] == 0
    assert scores.between(0, 2)["reward"] == 0.5
    assert scores.between(0, 2)["completions/truncated_ratio"] == 0.5
    assert scores.between(2, 3) == {}


@pytest.mark.parametrize(
    ("scale", "reward", "bounds"),
    [("group", 1.0, (0.5, 0.5)), ("batch", 1.0, (0.0, 0.0)), ("none", 1.0, (0.5, 0.5)), ("group", 0.3, (0.0, 0.5))],
)
def test_the_share_of_groups_with_equal_rewards(scale: str, reward: float, bounds: tuple[float, float]) -> None:
    rows = [*scored(0, [reward, reward]), *scored(0, [reward, 0.0], "s1")]
    scores = scores_of(rows, objective__scale_rewards=scale, reward__answer=reward)
    assert scores.flat_shares(0, 1) == bounds


def test_longer_intervals_and_cycles() -> None:
    document = plan_document(optimisation__max_steps=7, optimisation__logging_interval=3, objective__num_iterations=2)
    plan = from_json(Plan, document)
    assert log_steps(plan.optimisation) == [3, 6, 7]
    assert "reward" in metrics_of_row(plan, 3, 6)[0]
    assert "reward" in metrics_of_row(plan, 6, 7)[0]
    wanted, allowed = metrics_of_row(plan, 5, 6)
    assert "reward" not in wanted | allowed
