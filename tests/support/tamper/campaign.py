"""Tampering with finished runs, many times over, and counting what a verification finds."""

from __future__ import annotations

import random
import tempfile
from collections import Counter, defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from explicit_learning.errors import Refusal
from explicit_learning.gates.signing import public_pem
from explicit_learning.rundir import layout
from explicit_learning.verify.opening import open_run
from explicit_learning.verify.verifying import LIMIT_UNSIGNED, LIMIT_UNVERIFIED, verify_run
from tests.support.finished_archives import RL, SFT, public_key, signer
from tests.support.tamper.damage import DAMAGE
from tests.support.tamper.forged_statement import ENVELOPES, RESIGNED, seal_without_the_key
from tests.support.tamper.forgeries import FORGERIES
from tests.support.tamper.memory import MemoryTree
from tests.support.tamper.repair import repair_nearest, repair_records, seal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from securesystemslib.signer import CryptoSigner

__all__ = ["DEPTHS", "Base", "Case", "Outcome", "Tally", "all_cases", "bases", "campaign", "judge", "seeded"]

BLIND, STATEMENT = "damage", "statement"
# What a forger computes again after an edit.
DEPTHS = ("nothing repaired", "nearest hash", "every record", "statement too")
# How often damage and forged statements are drawn for each forgery at a depth: there are fewer kinds of them.
SHARES = {BLIND: 10, STATEMENT: 4}
Result = Literal["found", "missed", "limit", "skipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """A run to tamper with.

    Attributes:
        name: Its name.
        tree: Its files.
        plan_file: The plan beside the inputs that a verification reaches; ``None`` if there is none.
        signed: Whether its statement is signed by the test key, which the verification is given.
    """

    name: str
    tree: MemoryTree
    plan_file: Path | None
    signed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A kind of tampering: damage, a forgery of records at a depth, or a forgery of the statement."""

    kind: str
    depth: str = DEPTHS[0]

    @property
    def group(self) -> str:
        """What a forger computed again, or that there was no such thing."""
        return BLIND if self.kind in DAMAGE else STATEMENT if self.kind in ENVELOPES else self.depth


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one tampering.

    Attributes:
        case: What was done.
        base: To which run.
        place: Where.
        result: ``found``; ``limit`` for a complete forgery of an unsigned run, which only a signature could show, if
            the verification said so; ``skipped`` if the run has nothing of the kind, or is as before; else ``missed``.
        faults: What the verification said.
    """

    case: Case
    base: Base
    place: str
    result: Result
    faults: tuple[str, ...] = ()


@contextmanager
def bases(*, signed: bool | None = None, run: Path | None = None) -> Iterator[list[Base]]:
    """Yield the runs to tamper with: each unsigned, and signed by the test key.

    Args:
        signed: Only the signed ones, or only the unsigned ones; ``None`` for both.
        run: A run directory or archive to take instead of the fixtures.
    """
    with tempfile.TemporaryDirectory() as folder:
        if run is None:
            found = [(each.name, open_run(each.file), each.beside_inputs(Path(folder))) for each in (RL, SFT)]
        else:
            found = [(run.name, open_run(run), None)]
        made = []
        for name, tree, plan_file in found:
            for with_key in (False, True):
                if signed in {None, with_key}:
                    base = _sealed(MemoryTree.of(tree), signer() if with_key else None)
                    made.append(Base(name=name, tree=base, plan_file=plan_file, signed=with_key))
        yield made


def _sealed(tree: MemoryTree, key: CryptoSigner | None) -> MemoryTree:
    if key is None:
        tree.data.pop(layout.public_key_file(), None)
    else:
        tree.data[layout.public_key_file()] = public_pem(key.public_key)
    seal(tree, key)
    return tree


def seeded(seed: int) -> random.Random:
    """Return what makes the choices of a tampering."""
    return random.Random(seed)  # noqa: S311 - a test's choices


def all_cases() -> list[Case]:
    """Return every kind of tampering, forgeries at every depth."""
    blind = [Case(kind=kind) for kind in (*DAMAGE, *ENVELOPES)]
    return blind + [Case(kind=kind, depth=depth) for kind in FORGERIES for depth in DEPTHS]


def tamper(case: Case, base: Base, chance: random.Random) -> tuple[MemoryTree, str]:
    """Return a copy of a run that was tampered with, and where; an empty text if the run has nothing of the kind."""
    tree = base.tree.copy()
    if (apply := DAMAGE.get(case.kind) or ENVELOPES.get(case.kind)) is not None:
        return tree, apply(tree, chance)
    place = FORGERIES[case.kind].apply(tree, chance)
    if not place or case.depth == DEPTHS[0]:
        return tree, place
    if case.depth == DEPTHS[1]:
        repair_nearest(tree, place)
        return tree, place
    repair_records(tree, place)
    if case.depth == DEPTHS[3]:
        if base.signed:
            seal_without_the_key(tree, chance)
        else:
            seal(tree)
    return tree, place


def _is_complete(case: Case, base: Base) -> bool:
    """Whether a tampering is a complete and consistent forgery: only a signature could tell it from the run."""
    if base.signed:
        return False
    if case.kind == RESIGNED:
        return True  # an unsigned run has no signer to take the place of
    if case.kind not in FORGERIES or case.depth != DEPTHS[3]:
        return False
    return FORGERIES[case.kind].is_complete(base.tree, inputs=base.plan_file is not None)


def judge(case: Case, base: Base, chance: random.Random) -> Outcome:
    """Tamper with a run once, verify it, and judge the answer."""
    tree, place = tamper(case, base, chance)
    if not place or tree == base.tree:
        return Outcome(case=case, base=base, place=place, result="skipped")
    key = public_key() if base.signed else None
    # A reader who has the run's own plan file finds any other plan at once: nobody is helped so.
    same_plan = tree.data.get(layout.PLAN) == base.tree.data[layout.PLAN]
    try:
        found = verify_run(tree, key=key, plan_file=base.plan_file if same_plan else None)
    except Refusal as refusal:
        return Outcome(case=case, base=base, place=place, result="found", faults=tuple(map(str, refusal.faults)))
    result: Result = "missed"
    if found.faults:
        result = "found"
    elif _is_complete(case, base) and {LIMIT_UNSIGNED, LIMIT_UNVERIFIED} & set(found.limits):
        result = "limit"
    return Outcome(case=case, base=base, place=place, result=result, faults=tuple(map(str, found.faults)))


@dataclass
class Tally:
    """What was found and what was not."""

    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def missed(self) -> list[Outcome]:
        """Everything that had to be found and was not."""
        return [each for each in self.outcomes if each.result == "missed"]

    def counts(self, of: Callable[[Outcome], str]) -> dict[str, dict[Result, int]]:
        """Return how many tamperings had each result, by a property of theirs, sorted."""
        counted: dict[str, Counter[Result]] = defaultdict(Counter)
        for each in self.outcomes:
            counted[of(each)][each.result] += 1
        return {name: dict(counted[name]) for name in sorted(counted)}


def campaign(number: int, seed: int, runs: Sequence[Base], advance: Callable[[int], None] = lambda _: None) -> Tally:
    """Tamper a number of times, every forgery about as often, in an order that the seed fixes.

    Args:
        number: How often.
        seed: Of all choices.
        runs: The runs, each as likely.
        advance: Is told of each tampering.
    """
    chance, tally, cases = seeded(seed), Tally(), list[Case]()
    while len(tally.outcomes) < number:
        if not cases:
            cases = [case for case in all_cases() for _ in range(SHARES.get(case.group, 1))]
            chance.shuffle(cases)
        outcome = judge(cases.pop(), chance.choice(runs), chance)
        if outcome.result != "skipped":
            tally.outcomes.append(outcome)
            advance(1)
    return tally
