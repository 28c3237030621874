"""Metrics in buckets: short runs as they are, long ones with their extremes."""

from __future__ import annotations

import pytest

from explicit_learning.report.run.series import BUCKETS, LARGEST, bucketed


def test_a_short_run_is_shown_step_by_step() -> None:
    found = bucketed([(step, {"loss": float(step)}) for step in range(1, 6)], steps=5)
    assert (found.window, found.rows, found.steps) == (1, 5, 5)
    assert [(bucket.step, bucket.mean, bucket.count) for bucket in found.series["loss"]] == [
        (step, float(step), 1) for step in range(1, 6)
    ]


def test_a_long_run_keeps_the_peak_of_a_single_step() -> None:
    steps, peak = 100_000, 12_345
    rows = ((step, {"loss": 100.0 if step == peak else 1.0}) for step in range(1, steps + 1))
    found = bucketed(rows, steps=steps)
    assert found.window == steps // BUCKETS
    assert found.rows == steps
    buckets = found.series["loss"]
    assert len(buckets) == BUCKETS
    assert [bucket.high for bucket in buckets].count(100.0) == 1
    assert buckets[(peak - 1) // found.window].high == 100.0
    assert buckets[(peak - 1) // found.window].mean == pytest.approx(1 + 99 / found.window)
    assert {bucket.low for bucket in buckets} == {1.0}
    assert buckets[-1].step == steps


def test_values_that_are_not_finite_are_counted_and_left_out() -> None:
    found = bucketed([(1, {"loss": None, "kl": 0.5}), (2, {"loss": 2.0}), (3, {"loss": None})], steps=3)
    assert found.left_out == {"loss": 2}
    assert [(bucket.step, bucket.mean) for bucket in found.series["loss"]] == [(2, 2.0)]
    assert [(bucket.step, bucket.mean) for bucket in found.series["kl"]] == [(1, 0.5)]


def test_rows_that_are_logged_seldom_fall_into_the_buckets_of_their_steps() -> None:
    found = bucketed([(step, {"loss": 1.0}) for step in range(10, 2001, 10)], steps=2000)
    assert found.window == 5
    assert [bucket.step for bucket in found.series["loss"]] == list(range(10, 2001, 10))


def test_values_too_large_to_add_up_are_counted_and_left_out() -> None:
    found = bucketed([(1, {"loss": 1e308}), (2, {"loss": -(10**300)}), (3, {"loss": LARGEST})], steps=3)
    assert found.left_out == {"loss": 2}
    assert [(bucket.step, bucket.mean) for bucket in found.series["loss"]] == [(3, LARGEST)]


def test_rows_far_beyond_the_steps_of_a_run_do_not_make_a_page_grow() -> None:
    metrics = bucketed(((step, {"loss": float(step)}) for step in range(1, 100_001)), steps=60)
    buckets = metrics.series["loss"]
    assert (metrics.window, len(buckets), metrics.rows) == (128, 782, 100_000)
    assert sum(bucket.count for bucket in buckets) == 100_000
    assert (buckets[0].step, buckets[0].low, buckets[0].high, buckets[0].mean) == (128, 1.0, 128.0, 64.5)
    assert (buckets[-1].step, buckets[-1].high) == (100_000, 100_000.0)
