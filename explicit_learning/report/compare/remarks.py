"""What a reader must know to read a comparison's figures, as sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explicit_learning.gates.resume import deciding_changes
from explicit_learning.report.compare.contrasts import PRIMARY_SEEDS
from explicit_learning.report.compare.figures import seeds_text
from explicit_learning.verify.evaluations import NOT_SCORED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from explicit_learning.report.compare.document import Contrast, LeftOut
    from explicit_learning.report.compare.reading import ReadRun

__all__ = ["remarks_of"]


def remarks_of(
    everything: Sequence[ReadRun], stage: Sequence[ReadRun], contrasts: Sequence[Contrast], others: Sequence[LeftOut]
) -> Iterator[str]:
    """Yield the remarks.

    Args:
        everything: All runs that could be read.
        stage: Those of the stage that is compared.
        contrasts: The differences.
        others: The runs that are left out.
    """
    starts = len(everything) - len(stage)
    if starts:
        runs = "1 SFT run is" if starts == 1 else f"{starts} SFT runs are"
        yield f"{runs} shown and not compared: RL runs start from their adapters."
    if others:
        runs = "1 run is" if len(others) == 1 else f"{len(others)} runs are"
        yield f"{runs} left out of the differences; the reasons are listed."
    unscored = sum(any(text.endswith(NOT_SCORED) for text in run.verification.not_checked) for run in stage)
    if unscored:
        runs = "1 run" if unscored == 1 else f"{unscored} runs"
        yield (
            f"Of {runs}, el verify could not score the answers of every evaluation again, because the evaluation rows "
            "are not reachable: which answers are right is taken from the evaluation."
        )
    commits = {run.commit for run in stage if run.commit is not None}
    if len(commits) > 1:
        yield f"The runs were trained by {len(commits)} commits of the code; el diff compares two runs in full."
    if changes := _machine_changes(stage):
        yield (
            f"The runs were trained on machines that compute differently ({', '.join(changes)} differ): a part of a "
            "difference can be the machines'."
        )
    yield from _of_seeds(contrasts)


def _machine_changes(stage: Sequence[ReadRun]) -> list[str]:
    """Return what decides numbers and is not the same on all machines, as places in a launch's record."""
    machines = [(run.plan.hardware, platform) for run in stage if run.is_main for platform in run.platforms]
    return sorted(
        {
            change.pointer.removeprefix("/platform/")
            for hardware, platform in machines[1:]
            for change in deciding_changes(machines[0][1], platform, hardware)
        }
    )


def _of_seeds(contrasts: Sequence[Contrast]) -> Iterator[str]:
    by_arm = {contrast.arm: contrast for contrast in contrasts}
    for arm, contrast in by_arm.items():
        if contrast.left_out_seeds:
            seeds, common = seeds_text(contrast.left_out_seeds), seeds_text(contrast.seeds)
            yield (
                f"{arm} and {contrast.baseline} do not have the same seeds: they are compared on seeds {common}, and "
                f"seeds {seeds} are left out."
            )
    grades = {contrast.grade for contrast in contrasts}
    if "weak" in grades:
        yield (
            f"Some differences are over fewer than {PRIMARY_SEEDS} seeds. Their t intervals are weak evidence: with so "
            "few seeds the spread over seeds is hardly known."
        )
    if "none" in grades:
        yield (
            "Some differences are of one seed. They have no interval over seeds and no p-value, and their bootstrap "
            "resamples base items alone: it says nothing about other seeds."
        )
    if any(contrast.grade != "none" and contrast.t_interval is None for contrast in contrasts):
        yield (
            "Some differences are the same for every seed. They show no spread over seeds, so they have no t interval "
            "and no p-value. Holm's procedure counts each as a test with a p-value of 1."
        )
