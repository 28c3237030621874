"""The answer of `el compare`: every figure of its page, as a typed document."""

from __future__ import annotations

from dataclasses import dataclass

from explicit_learning.files.typed_json import document

__all__ = [
    "SCHEMA_VERSION",
    "ArmFigures",
    "ArmMeasure",
    "Comparison",
    "Contrast",
    "Curve",
    "CurvePoint",
    "EvaluatedBy",
    "LeftOut",
    "Measure",
    "Reason",
    "Run",
    "RunMeasure",
]

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why runs are not comparable, or why a run is left out.

    Attributes:
        kind: Which rule says so.
        place: The run, or the file of the experiment; ``None`` where it is about all of them.
        pointer: JSON pointer into its document, or ``None``.
        found: What is there.
        expected: What would be comparable.
    """

    kind: str
    place: str | None
    pointer: str | None
    found: str
    expected: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A run that no difference is computed from.

    Attributes:
        place: Its folder or archive, as it was named; of a run that is not there, the folder that it would have.
        run_id: Its name; ``None`` if its plan cannot be read.
        arm: Its arm; likewise.
        seed: Its seed; likewise.
        reasons: Why.
    """

    place: str
    run_id: str | None
    arm: str | None
    seed: int | None
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedBy:
    """What the compared evaluations have in common; `EvaluationIdentity` describes each field."""

    model_snapshot_sha256: str
    evaluation_manifest_sha256: str
    limit: int | None
    prompt_sha256: str
    max_completion_tokens: int
    batch_size: int
    dtype: str
    determinism: str
    engine: str
    environment_lock_sha256: str
    evaluation_lock_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A rate over held-out rows.

    Attributes:
        name: Its name; a removal operator follows after a colon.
        title: What people call it.
        counts: What is counted, as a sentence without its end.
        items: Base items that have such rows.
        rows: Rows, pairs or groups of one run.
    """

    name: str
    title: str
    counts: str
    items: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMeasure:
    """A measure of one run.

    Attributes:
        measure: Its name.
        right: How many rows, pairs or groups count.
        rows: Of how many.
        rate: Their share.
        interval: Wilson's 95 % interval, which is of this run alone.
    """

    measure: str
    right: int
    rows: int
    rate: float
    interval: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run and its figures.

    Attributes:
        place: Its folder or archive, as it was named.
        run_id: Its name.
        arm: Its arm.
        seed: Its seed.
        stage: ``sft`` or ``rl``.
        mode: ``main`` or ``smoke``.
        status: How far it has come.
        steps: Optimizer steps up to which it has metrics or a checkpoint.
        planned_steps: Optimizer steps of its plan.
        sampled_tokens: Tokens that it sampled, by its marker; ``None`` without one, and in SFT arms.
        completions: Completions that it sampled; likewise.
        frozen_config_sha256: The plan's own hash.
        slot_manifest_sha256: The identity of its slots; ``None`` in SFT arms.
        faults: How many faults verification found.
        first_fault: The first of them, in words; ``None`` if there is none.
        signer: Who signed it, as `el verify` says.
        evaluation: The name of the evaluation that its figures are from; ``None`` without one.
        compared: Whether differences are computed from it.
        measures: Its figures.
    """

    place: str
    run_id: str
    arm: str
    seed: int
    stage: str
    mode: str
    status: str
    steps: int
    planned_steps: int
    sampled_tokens: int | None
    completions: int | None
    frozen_config_sha256: str
    slot_manifest_sha256: str | None
    faults: int
    first_fault: str | None
    signer: str | None
    evaluation: str | None
    compared: bool
    measures: tuple[RunMeasure, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmMeasure:
    """A measure of an arm: its mean over seeds, and its smallest and largest value."""

    measure: str
    mean: float
    smallest: float
    largest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmFigures:
    """An arm.

    Attributes:
        arm: Its name.
        seeds: Seeds of its compared runs, in order.
        measures: Its figures over them.
    """

    arm: str
    seeds: tuple[int, ...]
    measures: tuple[ArmMeasure, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """A measure's difference between an arm and the baseline: the arm minus the baseline.

    Attributes:
        measure: The measure.
        arm: The arm.
        baseline: The baseline arm.
        seeds: Seeds that both have, in order.
        left_out_seeds: Seeds that only one of them has.
        differences: The difference of each of these seeds, in their order.
        mean: Their mean.
        grade: How far the t interval carries: ``primary`` from 5 seeds on, ``weak`` with 2 to 4, ``none`` with one.
        t_interval: Student's t interval over the differences; ``None`` with one seed, or where all are equal.
        t_statistic: Its statistic; likewise.
        p_value: Two-sided p-value of the paired t test; likewise.
        adjusted_p_value: The same, adjusted by Holm's procedure for the number of arms in this measure.
        bootstrap_interval: Percentile interval of the crossed bootstrap of seeds and base items.
    """

    measure: str
    arm: str
    baseline: str
    seeds: tuple[int, ...]
    left_out_seeds: tuple[int, ...]
    differences: tuple[float, ...]
    mean: float
    grade: str
    t_interval: tuple[float, float] | None
    t_statistic: float | None
    p_value: float | None
    adjusted_p_value: float | None
    bootstrap_interval: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """The mean reward of some optimizer steps, the last of them, and the mean of the tokens sampled up to each."""

    step: int
    tokens: float
    reward: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The reward of a run, or the mean over an arm's seeds.

    Attributes:
        arm: The arm.
        seed: The run's seed; ``None`` for the mean over seeds.
        seeds: How many runs it is of.
        points: Its points, by step.
    """

    arm: str
    seed: int | None
    seeds: int
    points: tuple[CurvePoint, ...]


@document("comparison")
@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The whole answer.

    Attributes:
        comparable: Whether differences between arms were computed.
        reasons: Why not, or nothing.
        left_out: Runs that no difference is computed from, and why.
        remarks: What a reader must know to read the figures, as sentences.
        evaluated_by: What the evaluations have in common; ``None`` if no run has one.
        baseline: The arm that the others are compared with; ``None`` if nothing is compared.
        level: Share of intervals that are to hold the true difference.
        draws: How often the bootstrap resampled seeds and base items.
        window: Optimizer steps that each point of a curve is a mean of.
        runs: All runs that could be read.
        measures: The measures, as far as the runs' evaluations agree on their rows.
        arms: The compared arms, the baseline first; none if nothing is compared.
        contrasts: The differences, by measure and arm.
        curves: The curves of reward.
    """

    schema_version: int = SCHEMA_VERSION
    comparable: bool
    reasons: tuple[Reason, ...]
    left_out: tuple[LeftOut, ...]
    remarks: tuple[str, ...]
    evaluated_by: EvaluatedBy | None
    baseline: str | None
    level: float
    draws: int
    window: int
    runs: tuple[Run, ...]
    measures: tuple[Measure, ...]
    arms: tuple[ArmFigures, ...]
    contrasts: tuple[Contrast, ...]
    curves: tuple[Curve, ...]
