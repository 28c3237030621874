"""Whether the final adapter's model card is the one that its run's records make."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

from explicit_learning.completion.card import CardRecords, model_card
from explicit_learning.errors import Context, found_text
from explicit_learning.files.tree import tree_bytes
from explicit_learning.rundir import layout

if TYPE_CHECKING:
    from collections.abc import Iterator

    from explicit_learning.errors import Fault
    from explicit_learning.files.tree import Tree
    from explicit_learning.verify.record import RunRecord

__all__ = ["card_faults"]

GATE = "card"
FIX = f"restore {layout.MODEL_CARD} from a copy; what is to be added to it belongs beside the run directory"
CONTEXT = Context(gate=GATE, fix=FIX)


def card_faults(tree: Tree, record: RunRecord) -> Iterator[Fault]:
    """Yield the first line in which a card differs from what the records say, byte for byte.

    Args:
        tree: The run's files.
        record: What was read of its documents.

    Raises:
        Refusal: If the card is missing, or cannot be read.
    """
    plan, manifest, marker = record.plan, record.manifest, record.marker
    if plan is None or manifest is None or marker is None or not record.launches:
        return  # the faults of what is missing say why the card was not compared
    name = f"{layout.FINAL_ADAPTER}/{layout.MODEL_CARD}"
    expected = model_card(CardRecords.of_complete_run(plan, manifest, record.launches, marker)).encode()
    found = tree_bytes(tree, name, gate=GATE, fix=FIX)
    if found == expected:
        return
    lines = zip_longest(found.splitlines(keepends=True), expected.splitlines(keepends=True))
    number, (ours, right) = next((number, pair) for number, pair in enumerate(lines, 1) if pair[0] != pair[1])
    yield CONTEXT.fault(
        file=f"{tree.place(name)}:{number}", pointer="", found=_shown(ours), expected=f"{_shown(right)}, as records say"
    )


def _shown(line: bytes | None) -> str:
    return "no such line" if line is None else found_text(line.decode(errors="replace"))
