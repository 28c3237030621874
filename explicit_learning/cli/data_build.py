"""`el data build SOURCE -o DIR`: a dataset from a person's own images, questions, answers and evidence."""

from __future__ import annotations

import re
import sys
from argparse import ArgumentTypeError
from fractions import Fraction
from typing import TYPE_CHECKING

from explicit_learning.cli.numbers import positive, seed
from explicit_learning.cli.output import add_json_argument, answer
from explicit_learning.cli.paths import given_path
from explicit_learning.data.answers import AnswerType
from explicit_learning.data.build.options import (
    DEFAULT_EVALUATION_OPERATOR,
    DEFAULT_NEAR_BITS,
    DEFAULT_TRAINING_OPERATORS,
    HASH_BITS,
    MAX_NEAR_BITS,
    PARTS,
    BuildOptions,
    Operator,
    OperatorChoice,
    Shares,
    default_workers,
)
from explicit_learning.data.build.readers.opening import AUTO_FORM, FORMS, open_source
from explicit_learning.data.build.source import BoxFormat
from explicit_learning.errors import Context, ExitCode
from explicit_learning.files.progress import say
from explicit_learning.launch.signals import StopRequest, stop_signals_to

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from explicit_learning.data.build.report import Built
    from explicit_learning.data.build.source import Source

__all__ = ["add_arguments", "run"]

OFF = "off"
SHOWN = 8  # lines of a kind that are printed
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_USAGE = Context(gate="usage", exit_code=ExitCode.USAGE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("source", type=given_path, metavar="SOURCE", help="a file of rows, or a folder of such files")
    parser.add_argument("-o", "--out", type=given_path, required=True, metavar="DIR", help="folder to make")
    of_source = parser.add_argument_group("the source")
    forms = (AUTO_FORM, *FORMS)
    of_source.add_argument("--form", choices=forms, default=AUTO_FORM, help=f"its form (default {AUTO_FORM})")
    text = "take a field of a row from another one of the source, as question=text; may be repeated"
    of_source.add_argument("--map", type=_mapped, action="append", default=[], metavar="FIELD=NAME", help=text)
    text = "folder that the images' paths start at (default: the source's)"
    of_source.add_argument("--images", type=given_path, metavar="DIR", help=text)
    boxes = tuple(form.value for form in BoxFormat)
    of_source.add_argument("--boxes", choices=boxes, help="what a box's four numbers mean (default: as the form says)")
    types = ("auto", *(kind.value for kind in AnswerType))
    of_source.add_argument("--answer-type", choices=types, help="how all answers are compared (default: as rows say)")
    of_source.add_argument("--strict", action="store_true", help="stop if a row cannot be used")
    of_dataset = parser.add_argument_group("the dataset")
    text = "shares of the items; the rest become slots (default evaluation=0.2,sft=0.3)"
    split = of_dataset.add_mutually_exclusive_group()
    split.add_argument("--split", type=_shares, default=Shares(), metavar="PART=SHARE,…", help=text)
    text = "field of the source that says where each row belongs: train, sft, slots or evaluation"
    split.add_argument("--split-column", metavar="NAME", help=text)
    text = f"bits of {HASH_BITS} in which near copies of a picture may differ (default {DEFAULT_NEAR_BITS}), or off"
    of_dataset.add_argument("--near-duplicates", type=_near_bits, default=DEFAULT_NEAR_BITS, metavar="BITS", help=text)
    known = ", ".join(operator.value for operator in Operator)
    text = (
        f"operators that remove evidence in training (default {','.join(DEFAULT_TRAINING_OPERATORS)}; known: {known})"
    )
    of_dataset.add_argument(
        "--training-operators", type=_operators, default=DEFAULT_TRAINING_OPERATORS, metavar="NAME,…", help=text
    )
    text = f"the one that only evaluation sees (default {DEFAULT_EVALUATION_OPERATOR})"
    names = tuple(Operator)
    of_dataset.add_argument(
        "--evaluation-operator", type=Operator, choices=names, default=DEFAULT_EVALUATION_OPERATOR, help=text
    )
    text = "make SUBSTITUTE views by pasting the evidence of a row with the same question and another answer"
    of_dataset.add_argument("--paste-substitutes", action="store_true", help=text)
    text = "put choices into a drawn order, so that a choice's letter says nothing"
    of_dataset.add_argument("--shuffle-choices", action="store_true", help=text)
    of_dataset.add_argument("--seed", type=seed, default=0, help="what everything random is drawn by (default 0)")
    of_dataset.add_argument("--name", type=_name, help="name of the dataset (default: the source's)")
    text = f"processes at work (default {default_workers()}); the result does not depend on it"
    parser.add_argument("--workers", type=positive, default=default_workers(), metavar="N", help=text)
    add_json_argument(parser)


def run(args: argparse.Namespace) -> ExitCode:
    """Build the dataset, and print what it came to."""
    from explicit_learning.data.build.building import build_dataset

    try:
        operators = OperatorChoice(training=args.training_operators, evaluation=args.evaluation_operator)
    except ValueError as error:
        fix = "name operators for training that evaluation does not use"
        raise _USAGE.refusal(
            pointer="--training-operators", found=str(error), expected="different operators", fix=fix
        ) from None
    stop = StopRequest()
    stop_signals_to(stop)
    mapping = dict(args.map)
    if args.split_column is not None:
        mapping["split"] = args.split_column
    source = open_source(
        args.source,
        form=args.form,
        images=args.images,
        mapping=mapping,
        box_format=None if args.boxes is None else BoxFormat(args.boxes),
    )
    _say_source(source)
    options = BuildOptions(
        name=args.name or _name_of(args.source),
        seed=args.seed,
        shares=args.split,
        split_column=args.split_column,
        operators=operators,
        paste_substitutes=args.paste_substitutes,
        answer_type=args.answer_type,
        shuffle_choices=args.shuffle_choices,
        near_bits=args.near_duplicates,
        strict=args.strict,
    )
    result = build_dataset(source, args.out, options, worker_count=args.workers, stop=stop.requested)
    if not args.json:
        print("\n".join(_lines(result)), file=sys.stderr)
    return answer([], as_json=args.json, **_document(result, source))


def _say_source(source: Source) -> None:
    """Say what the source is taken for, before hours are spent on it."""
    files = ", ".join(file.path.name for file in source.files[:SHOWN])
    more = f" and {len(source.files) - SHOWN:,} more" if len(source.files) > SHOWN else ""
    fields = ", ".join(f"{field}={name}" for field, name in source.mapping.items())
    say(f"{source.form}: {files}{more}; boxes {source.box_format}; fields {fields}")


def _lines(result: Built) -> list[str]:
    """Return the result in words."""
    largest = ", ".join(f"{size:,}" for size in result.largest_components)
    linked = "equal pixels" if result.near_bits is None else f"{result.near_bits} of {HASH_BITS} bits"
    lines = [f"{result.manifest}: {sum(result.items.values()):,} of {result.rows_read:,} rows became items"]
    for part in PARTS:
        relations = ", ".join(f"{count:,} {relation}" for relation, count in result.relations[part].items())
        lines.append(f"  {part}: {result.items[part]:,} items; views: {relations or 'none'}")
    lines.append(
        f"  pictures linked by {linked} (--near-duplicates): {result.components:,} components, largest {largest} items"
    )
    lines += [f"  answers: {line}" for line in result.answers]
    lines += _counted("told", result.told)
    for relation, reasons in result.left_out.items():
        lines += _counted(f"{relation} left out", reasons)
    if result.refused_rows:
        lines.append(f"  rows refused: {result.refused_rows:,}; see refused.jsonl")
        lines += _counted("refused", result.refused)
    lines.append(f"  arms: {', '.join(result.arms) or 'none'}")
    lines += [f"  not {name}: {reason}" for name, reason in result.arms_refused.items()]
    return [*lines, f"  identity {result.identity}"]


def _counted(label: str, counts: dict[str, int]) -> list[str]:
    lines = [f"  {label}: {count:,} × {text}" for text, count in list(counts.items())[:SHOWN]]
    return lines + ([f"  {label}: {len(counts) - SHOWN:,} more kinds"] if len(counts) > SHOWN else [])


def _document(result: Built, source: Source) -> dict[str, object]:
    """Return the result as members of the JSON answer."""
    return {
        "manifest": str(result.manifest),
        "sha256": result.identity,
        "form": source.form,
        "mapping": dict(source.mapping),
        "rows": result.rows_read,
        "items": result.items,
        "views": result.relations,
        "left_out": result.left_out,
        "refused_rows": result.refused_rows,
        "refused": result.refused,
        "components": result.components,
        "largest_components": list(result.largest_components),
        "near_duplicate_bits": result.near_bits,
        "answers": list(result.answers),
        "told": result.told,
        "arms": list(result.arms),
        "arms_refused": result.arms_refused,
    }


def _name_of(source: Path) -> str:
    """Return a name that a manifest can hold, made of a source's."""
    plain = re.sub(r"[^A-Za-z0-9._:-]+", "-", source.resolve().stem).strip("-._:")
    return plain[:128] or "dataset"


# --- values -------------------------------------------------------------------------------------------------------


def _mapped(text: str) -> tuple[str, str]:
    field, sign, name = text.partition("=")
    if not (field and sign and name):
        raise ArgumentTypeError(f"{text!r} is not FIELD=NAME")
    return field, name


def _shares(text: str) -> Shares:
    shares = {"evaluation": Fraction(0), "sft": Fraction(0)}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        if name not in shares:
            raise ArgumentTypeError(f"{part!r} is not evaluation=SHARE or sft=SHARE; slots get the rest")
        try:
            shares[name] = Fraction(value)
        except (ValueError, ZeroDivisionError):
            raise ArgumentTypeError(f"{value!r} is not a share such as 0.2") from None
    try:
        return Shares(**shares)
    except ValueError as error:
        raise ArgumentTypeError(f"{text!r}: {error}") from None


def _near_bits(text: str) -> int | None:
    if text == OFF:
        return None
    if not text.isdecimal() or int(text) > MAX_NEAR_BITS:
        raise ArgumentTypeError(f"{text!r} is not an integer from 0 to {MAX_NEAR_BITS}, or {OFF}")
    return int(text)


def _operators(text: str) -> tuple[Operator, ...]:
    try:
        return tuple(Operator(name.strip()) for name in text.split(","))
    except ValueError:
        known = ", ".join(operator.value for operator in Operator)
        raise ArgumentTypeError(f"{text!r} is not a list of operators; known are {known}") from None


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ArgumentTypeError(f"{text!r} is not a name of letters, digits, '.', '_', ':' and '-'")
    return text
