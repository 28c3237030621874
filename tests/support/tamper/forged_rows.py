"""Edits of what a run sampled: ledger and trace of a rank, with the marker's counts made to fit."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from explicit_learning.accounting.binding import log_file
from explicit_learning.data.answers import AnswerType
from explicit_learning.files.typed_json import from_json
from explicit_learning.plan.typed_plan import Plan
from explicit_learning.rewards import score
from explicit_learning.rundir import layout
from tests.support.tamper.documents import Row, document, edit, rows, write_rows

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.support.tamper.memory import MemoryTree

__all__ = ["COMPLETE_ROWS", "ROWS", "ROWS_OF_INPUTS"]

MARKER = layout.COMPLETION_MARKER
TOKENS = re.compile(rb'"token_count":([0-9]+)')


def _logs(tree: MemoryTree, chance: random.Random) -> tuple[str, str] | None:
    """Return a rank's ledger and trace; ``None`` of a run that samples nothing."""
    ranks = [rank for rank in range(8) if log_file("trace", rank) in tree.data]
    if not ranks:
        return None
    rank = chance.choice(ranks)
    return log_file("ledger", rank), log_file("trace", rank)


def _both(change: Callable[[list[Row], int], list[Row]]) -> Callable[[MemoryTree, random.Random], str]:
    """Return what changes the rows of a rank's ledger and trace alike, at a place."""

    def apply(tree: MemoryTree, chance: random.Random) -> str:
        if (logs := _logs(tree, chance)) is None:
            return ""
        at = chance.randrange(1, len(rows(tree, logs[1])))
        for name in logs:
            write_rows(tree, name, change(rows(tree, name), at))
        _recount(tree)
        return logs[1]

    return apply


def _row(change: Callable[[Row], object], kinds: tuple[int, ...] = (1,)) -> Callable[[MemoryTree, random.Random], str]:
    """Return what changes one row, of the ledger (0), the trace (1) or both."""

    def apply(tree: MemoryTree, chance: random.Random) -> str:
        if (logs := _logs(tree, chance)) is None:
            return ""
        at = chance.randrange(len(rows(tree, logs[1])))
        for kind in kinds:
            found = rows(tree, logs[kind])
            change(found[at])
            write_rows(tree, logs[kind], found)
        _recount(tree)
        return logs[kinds[0]]

    return apply


def _recount(tree: MemoryTree) -> None:
    """Make the marker's counts fit ledgers and traces."""
    ranks = [rank for rank in range(8) if log_file("trace", rank) in tree.data]
    traces = [rows(tree, log_file("trace", rank)) for rank in ranks]
    ledgers = [rows(tree, log_file("ledger", rank)) for rank in ranks]
    groups: dict[tuple[str, int], set[float]] = {}
    for row in (row for trace in traces for row in trace):
        rewards = groups.setdefault((row["slot_id"], row["visit"]), set())
        if row["terminated"]:
            rewards.add(row["total"])
    malformed = [sum(not row["valid"] for row in trace) for trace in traces]
    truncated = [sum(not row["terminated"] for row in trace) for trace in traces]
    with edit(tree, MARKER) as marker:
        marker["counts"] |= {
            "sampled_tokens": sum(row["token_count"] for ledger in ledgers for row in ledger),
            "completions": sum(map(len, ledgers)),
            "unique_prompt_groups": len(groups),
            "zero_variance_groups": sum(len(rewards) <= 1 for rewards in groups.values()),
            "malformed": sum(malformed),
            "malformed_by_rank": malformed,
            "truncated": sum(truncated),
            "truncated_by_rank": truncated,
        }


def _scored_text(tree: MemoryTree, row: Row, text: str) -> None:
    """Give a row another text, scored as the program scores it."""
    weights = from_json(Plan, document(tree, layout.PLAN)).reward
    if weights is None:
        raise AssertionError("a plan of a run with traces has a reward")
    again = score(
        text,
        terminated=row["terminated"],
        gold=row["gold"],
        answer_type=AnswerType(row["answer_type"]),
        choices=(),
        weights=weights,
    )
    row["completion_text"] = text
    for name in ("valid", "reason", "parsed_answer", "normalised_prediction", "normaliser_branch", "total"):
        row[name] = getattr(again, name)
    row["components"] = dict(again.components)


def right_answer(tree: MemoryTree, chance: random.Random) -> str:
    """Turn a wrong answer into the right one, with its reward, but not its token ids."""
    return _right_answer(tree, chance, ids=False)


def right_answer_in_tokens(tree: MemoryTree, chance: random.Random) -> str:
    """Turn a wrong answer into the right one, with its reward and its token ids."""
    return _right_answer(tree, chance, ids=True)


def _right_answer(tree: MemoryTree, chance: random.Random, *, ids: bool) -> str:
    if (logs := _logs(tree, chance)) is None:
        return ""
    found = rows(tree, logs[1])
    known = {row["completion_text"]: row["completion_token_ids"] for row in found if row["terminated"]}
    wrong = [row for row in found if row["terminated"] and row["parsed_answer"] not in {None, row["gold"]}]
    texts = {id(row): f"<answer>{row['gold']}</answer>" for row in wrong}
    if ids:
        wrong = [row for row in wrong if len(known.get(texts[id(row)], ())) == row["token_count"]]
    if not wrong:
        return ""
    row = chance.choice(wrong)
    text = texts[id(row)]
    if ids:
        row["completion_token_ids"] = known[text]
    _scored_text(tree, row, text)
    write_rows(tree, logs[1], found)
    _recount(tree)
    return logs[1]


def other_gold(tree: MemoryTree, chance: random.Random) -> str:
    """Make a wrong answer right by another gold answer."""
    if (logs := _logs(tree, chance)) is None:
        return ""
    found = rows(tree, logs[1])
    wrong = [row for row in found if row["parsed_answer"] not in {None, "", row["gold"]}]
    if not wrong:
        return ""
    row = chance.choice(wrong)
    row["gold"] = row["normalised_gold"] = row["parsed_answer"]
    _scored_text(tree, row, row["completion_text"])
    write_rows(tree, logs[1], found)
    _recount(tree)
    return logs[1]


def set_aside_removed(tree: MemoryTree, _: random.Random) -> str:
    """Hide what an interruption cost, as far as files tell it."""
    names = [name for name in tree.files if name.startswith("accounting/set-aside/")]
    for name in names:
        del tree.data[name]
    with edit(tree, MARKER) as marker:
        marker["counts"]["discarded_completions"] = marker["counts"]["discarded_tokens"] = 0
    return MARKER if names else ""


def set_aside_everywhere(tree: MemoryTree, chance: random.Random) -> str:
    """Hide what an interruption cost in the event log, too."""
    lines = tree.data[layout.EVENTS].splitlines(keepends=True)
    tree.data[layout.EVENTS] = b"".join(line for line in lines if b'"kind":"set-aside"' not in line)
    return set_aside_removed(tree, chance)


def set_aside_row(tree: MemoryTree, chance: random.Random) -> str:
    """Change what a completion that was set aside cost, in its ledger and in the marker."""
    names = [name for name in tree.files if name.startswith("accounting/set-aside/") and "/ledger-" in name]
    if not names:
        return ""
    name = chance.choice(names)
    found = list(TOKENS.finditer(tree.data[name]))
    row = chance.choice(found)
    tree.data[name] = tree.data[name][: row.start(1)] + b"99" + tree.data[name][row.end(1) :]
    with edit(tree, MARKER) as marker:
        marker["counts"]["discarded_tokens"] += 99 - int(row[1])
    return name


def _swap(found: list[Row], at: int) -> list[Row]:
    found[at - 1], found[at] = found[at], found[at - 1]
    return found


def _swap_steps(found: list[Row], at: int) -> list[Row]:
    """Exchange whole groups of different steps, each with its own fields."""
    half = len(found) // 2
    del at
    return found[half:] + found[:half]


def _dropped(kind: int) -> Callable[[MemoryTree, random.Random], str]:
    """Return what drops a row of a rank's ledger (0) or trace (1), and not of the other."""

    def apply(tree: MemoryTree, chance: random.Random) -> str:
        if (logs := _logs(tree, chance)) is None:
            return ""
        found = rows(tree, logs[kind])
        found.pop(chance.randrange(1, len(found)))
        write_rows(tree, logs[kind], found)
        _recount(tree)
        return logs[kind]

    return apply


# By kind, what makes it.
ROWS: dict[str, Callable[[MemoryTree, random.Random], str]] = {
    "row dropped, counts adjusted": _both(lambda found, at: found[:at] + found[at + 1 :]),
    "group dropped, counts adjusted": _both(lambda found, at: found[: at // 2 * 2] + found[at // 2 * 2 + 2 :]),
    "row doubled": _both(lambda found, at: [*found[:at], found[at], *found[at:]]),
    "two rows swapped": _both(_swap),
    "steps exchanged": _both(_swap_steps),
    "trace row dropped": _dropped(1),
    "ledger row dropped": _dropped(0),
    "tokens of a ledger row": _row(lambda row: row.update(token_count=row["token_count"] - 1), (0,)),
    "tokens of ledger and trace": _row(lambda row: row.update(token_count=row["token_count"] - 1), (0, 1)),
    "reward of a row": _row(lambda row: row.update(total=row["total"] + 1)),
    "component of a reward": _row(lambda row: row["components"].update(answer=0.5)),
    "commit of a row": _row(lambda row: row.update(running_commit="c0ffee" + "0" * 34)),
    "step of a row": _row(lambda row: row.update(optimizer_step=row["optimizer_step"] + 1)),
    "slot of a row": _row(lambda row: row.update(slot_id="slot-000000.other"), (0, 1)),
    "visit of a row": _row(lambda row: row.update(visit=row["visit"] + 1), (0, 1)),
    "view of a row": _row(lambda row: row.update(view_id="other")),
    "terminated flag of a row": _row(lambda row: row.update(terminated=not row["terminated"])),
    "arm of a row": _row(lambda row: row.update(arm="papo")),
    "token ids of a row": _row(lambda row: row["completion_token_ids"].insert(0, 20)),
    "right answer, old token ids": right_answer,
    "right answer, token ids and all": right_answer_in_tokens,
    "other gold answer": other_gold,
    "set-aside rows removed": set_aside_removed,
    "set-aside rows removed, events too": set_aside_everywhere,
    "tokens of a set-aside row": set_aside_row,
}
# What nothing contradicts once all is computed again, and why; and what only a run's inputs contradict.
COMPLETE_ROWS = {
    "set-aside rows removed, events too": "the event log alone tells of set-aside rows, and no statement covers it",
}
ROWS_OF_INPUTS = frozenset({"right answer, old token ids", "other gold answer", "view of a row"})
