"""Evaluations as `el evaluate` leaves them, without a model that answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from explicit_learning.completion.evaluation_statement import write_evaluation_statement
from explicit_learning.data.answers import AnswerType
from explicit_learning.data.rows import ImageRef, Relation, SlotRow, View
from explicit_learning.files.hashing import sha256_file
from explicit_learning.model_files.folders import adapter_sha256
from explicit_learning.plan.reading import load_plan
from explicit_learning.rundir import layout
from explicit_learning.rundir.answers import Asked, Preference, answered, asked_of
from explicit_learning.rundir.evaluation import identity_of, write_evaluation
from tests.support.machines import MACHINE

if TYPE_CHECKING:
    from pathlib import Path

    from securesystemslib.signer import CryptoSigner

    from explicit_learning.rundir.answers import Answer

__all__ = ["QUESTIONS", "answer_to", "answers_to", "evaluate_run", "question"]


def question(relation: str, *, number: int = 0, state: str = "state", group: str = "g") -> SlotRow:
    """Return a question: seven on the original image, three on the substitute's."""

    def view(role: Relation, shown: str) -> View:
        image = ImageRef(image_index=0, path="images/a.png", sha256="0" * 64, width=64, height=64)
        return View(view_id=shown, role=role, state=shown, images=(image,))

    return SlotRow(
        slot_id=f"slot-{number}",
        group_id=group,
        base_id="b",
        split="evaluation",
        question="?",
        choices=(),
        answer_type=AnswerType.NUMBER,
        relation=Relation(relation),
        full_view=view(Relation.FULL, "original"),
        selected_view=view(Relation(relation), state),
        full_answer="7",
        substitute_answer="3",
    )


QUESTIONS = tuple(question(name, number=number) for number, name in enumerate(("FULL", "CONTROL", "MISSING")))


def answers_to(rows: tuple[SlotRow, ...] = QUESTIONS, text: str = "<answer>7</answer>") -> list[Answer]:
    """Return the same answer to every question, those with blank images included."""
    return [answered(asked, text, terminated=True).record() for asked in asked_of(rows)]


def answer_to(relation: str, body: str | None, *, preference: Preference | None = None, **where: Any) -> Answer:
    """Return an answer to a question of a relation; ``None`` for one that breaks the contract.

    Args:
        relation: The relation.
        body: The answer's body.
        preference: The model's own best answer beside an abstention.
        where: Further arguments of `question`, and ``image``.
    """
    image = where.pop("image", "shown")
    text = "no block" if body is None else f"<answer>{body}</answer>"
    asked = Asked(row=question(relation, **where), image=image)
    return answered(asked, text, terminated=True, preference=preference).record()


def evaluate_run(
    run: Path,
    which: str = "final",
    *,
    answers: list[Answer] | None = None,
    signer: CryptoSigner | None = None,
    stated: bool = True,
    **changes: Any,
) -> Path:
    """Write an evaluation into a finished run and return its folder.

    Args:
        run: The run directory.
        which: Whose answers they are.
        answers: Its answers; by default those of `answers_to`.
        signer: What signs its statement.
        stated: Whether it gets one.
        changes: Fields of its identity, instead of the run's.
    """
    plan = load_plan(run / layout.PLAN)
    final = which == "final"
    own: dict[str, Any] = {
        "engine": "exact",
        "evaluation_lock_sha256": MACHINE.lock.sha256,
        "completion_marker_sha256": sha256_file(run / layout.COMPLETION_MARKER) if final else None,
        "adapter_sha256": adapter_sha256(run / layout.FINAL_ADAPTER) if final else None,
    }
    identity = identity_of(plan, which=which, **(own | changes))
    file = run / layout.EVALUATIONS / layout.evaluation_file(identity.name)
    write_evaluation(file, identity, answers_to() if answers is None else answers, machine=MACHINE)
    if stated:
        write_evaluation_statement(file.parent, signer)
    return file.parent
