"""A run's state as a page for a terminal, and as a line for a log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from explicit_learning.watch.state import WatchState

__all__ = ["duration_text", "line_of", "page_of"]

SHOWN = ("reward", "loss", "kl", "mean_token_accuracy", "grad_norm", "entropy", "learning_rate")
MIB = 1 << 20
BAR_COLUMNS = 24
QUIET_SECONDS = 120.0
SECONDS = ((86_400, "d"), (3_600, "h"), (60, "min"))


def duration_text(seconds: float) -> str:
    """Return a duration in its two largest units."""
    left, parts = int(seconds), []
    for size, unit in SECONDS:
        if left >= size:
            parts.append(f"{left // size} {unit}")
            left %= size
    if not parts or len(parts) == 1:
        parts.append(f"{left} s")
    return " ".join(parts[:2])


def line_of(state: WatchState) -> str:
    """Return the state as one line."""
    parts = [f"{state.run_id}: step {state.step:,}/{state.steps:,}", what_happens(state)]
    parts += [f"{name} {state.metrics[name]:.4g}" for name in SHOWN[:2] if _is_number(state.metrics.get(name))]
    if state.tokens is not None:
        parts.append(f"tokens {state.tokens:,}" + (f" of {state.budget:,}" if state.budget else ""))
    if state.seconds_left is not None:
        parts.append(f"about {duration_text(state.seconds_left)} left")
    return ", ".join(parts)


def what_happens(state: WatchState) -> str:
    """Return what the run is doing, in words."""
    if state.status == "completed":
        return "completed"
    if state.status == "budget_exhausted":
        return "ended: its token budget was used up"
    if state.is_running:
        quiet = f", nothing written for {duration_text(state.quiet_seconds)}"
        return "running" + (quiet if state.quiet_seconds > QUIET_SECONDS else "")
    if state.exit_code is not None:
        return f"not running: ended with exit code {state.exit_code}; the same el run command continues it"
    if state.quiet_seconds > QUIET_SECONDS:
        return f"no process of it on this machine, and nothing written for {duration_text(state.quiet_seconds)}"
    return "running on another machine, or starting"


def page_of(state: WatchState) -> RenderableType:
    """Return the state as a page; it fits any width from 40 columns on."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    facts.add_row("progress", ProgressBar(total=max(state.steps, 1), completed=state.step, width=BAR_COLUMNS))
    if state.budget and state.tokens is not None:
        facts.add_row("budget", ProgressBar(total=state.budget, completed=state.tokens, width=BAR_COLUMNS))
    for name, value in _facts(state):
        facts.add_row(name, value)
    head = Text(f"{state.run_id}  ({state.arm})", style="bold", overflow="fold")
    return Group(head, facts, _ranks(state))


def _facts(state: WatchState) -> Iterator[tuple[str, str]]:
    yield "status", what_happens(state)
    yield "step", f"{state.step:,} of {state.steps:,}"
    for name in SHOWN:
        value = state.metrics.get(name)
        if _is_number(value):
            yield name.replace("_", " "), f"{value:.4g}"
    if state.tokens is not None:
        share = f" of {state.budget:,} ({100 * state.tokens / state.budget:.1f} %)" if state.budget else ""
        yield "tokens", f"{state.tokens:,}{share}"
    if state.seconds_per_step is not None:
        yield "pace", f"{state.seconds_per_step:.3g} s a step"
    if state.seconds_left is not None:
        yield "time left", f"about {duration_text(state.seconds_left)}"
    yield "checkpoint", "none yet" if state.checkpoint is None else f"step {state.checkpoint:,}"
    yield "launches", f"{state.launches:,}"


def _ranks(state: WatchState) -> RenderableType:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("rank", "pid", "memory", "completions", "tokens"):
        table.add_column(title, justify="right", style="dim" if title == "pid" else "")
    for rank in state.ranks:
        memory = "–" if rank.resident_bytes is None else f"{rank.resident_bytes / MIB:,.0f} MiB"
        counts = ("–" if value is None else f"{value:,}" for value in (rank.completions, rank.tokens))
        table.add_row(str(rank.rank), "–" if rank.pid is None else str(rank.pid), memory, *counts)
    return table


def _is_number(value: Any) -> bool:  # noqa: ANN401 - any JSON value
    return isinstance(value, int | float) and not isinstance(value, bool)
