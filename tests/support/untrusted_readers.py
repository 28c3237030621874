"""Readers of bytes that anybody may have written, under one interface for property tests and harnesses.

Each reader puts bytes in the place where the program looks for them, and calls what the program calls. It returns
faults, raises a `Refusal`, or reads a value; anything else is a defect.
"""

from __future__ import annotations

import base64
import io
import json
import struct
import tarfile
import time
from dataclasses import dataclass, field, fields
from functools import cache
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from PIL import Image

from explicit_learning.accounting.binding import Binding
from explicit_learning.accounting.ledger import Ledger, read_ledger
from explicit_learning.accounting.trace import read_trace
from explicit_learning.completion.envelope import PAYLOAD_TYPE
from explicit_learning.data.dataset_manifest import Asset
from explicit_learning.data.image_headers import bombs_are_errors, header_fault
from explicit_learning.data.reading import read_sft_rows, read_slot_rows
from explicit_learning.errors import Context, Fault, FaultCollector, Refusal
from explicit_learning.errors.collector import LIMIT
from explicit_learning.experiment.document import read_experiment
from explicit_learning.files.resources import ROOT, SCHEMAS
from explicit_learning.files.schema import validate
from explicit_learning.files.strict_json import load_json
from explicit_learning.files.tree import FolderTree, tree_sha256
from explicit_learning.freeze.draft import fill_defaults
from explicit_learning.freeze.freezing import read_draft
from explicit_learning.gates.signing import public_key_of
from explicit_learning.model_files.headers import safetensors_header
from explicit_learning.model_files.tensors import file_tensors
from explicit_learning.plan.reading import read_plan
from explicit_learning.rundir import layout
from explicit_learning.rundir.answers import parsed_fields
from explicit_learning.rundir.evaluation import read_answers
from explicit_learning.verify.archive.tree import ArchiveTree
from explicit_learning.verify.statement import check_envelope
from tests.support.finished_archives import RL, SFT
from tests.support.mutation import changed_bytes, changed_json, changed_lines, changed_value, json_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from hypothesis.strategies import DrawFn, SearchStrategy

__all__ = ["READERS", "Reader", "judged"]

AT = Context(gate="fuzz", fix="restore the file")
MOST_SECONDS = 5.0  # of CPU time, for some 100 kB; the slowest example takes a tenth of it
MOST_TEXT = 5_000  # characters of one fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """A reader.

    Attributes:
        name: What it reads.
        read: Reads bytes in a folder of its own, and returns the faults that it found.
        seeds: Bytes that it reads without a fault.
        changed: Draws bytes that are almost right.
    """

    name: str
    read: Callable[[Path, bytes], Sequence[Fault]]
    seeds: tuple[bytes, ...] = field(repr=False)
    changed: SearchStrategy[bytes] = field(repr=False)


def judged(reader: Reader, folder: Path, data: bytes) -> tuple[Fault, ...]:
    """Let a reader read, and return its faults, once they have shown to be what a person can act on.

    Raises:
        AssertionError: If it takes too long, or a fault names no file, is endless, or cannot be printed as it is.
        Exception: Whatever the reader raises beside a `Refusal`: a defect.
    """
    begun = time.process_time()
    try:
        faults = tuple(reader.read(folder, data))
    except Refusal as refusal:
        faults = refusal.faults
    spent = time.process_time() - begun
    assert spent < MOST_SECONDS, f"{spent:.1f} s of CPU time for {len(data):,} bytes"
    assert len(faults) <= LIMIT + 1, f"{len(faults):,} faults"
    for fault in faults:
        assert (fault.file is not None and fault.file.startswith(str(folder))) or len(faults) == LIMIT + 1, fault
        text = str(fault)
        assert len(text) <= MOST_TEXT, text[:MOST_TEXT]
        assert all(line.isprintable() for line in text.split("\n")), ascii(text)
        assert text.count("\n") == 3, ascii(text)
    return faults


def example(name: str) -> Any:
    """Return the golden example of a schema."""
    return json.loads((SCHEMAS / "examples" / f"{name}.json").read_bytes())


def _lines(*rows: Any) -> bytes:
    return b"".join(json_text(row).encode() + b"\n" for row in rows)


def _written(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


# --- documents ----------------------------------------------------------------------------------------------------


def _plan(folder: Path, data: bytes) -> Sequence[Fault]:
    return read_plan(_written(folder, "plan.json", data)).faults


def _draft(folder: Path, data: bytes) -> Sequence[Fault]:
    path = _written(folder, "draft.json", data)
    draft = read_draft(path)
    if faults := validate(draft, "draft", gate="draft", file=str(path)):
        return faults
    filled, _ = fill_defaults(draft)
    json.dumps(filled)
    return ()


def _experiment(folder: Path, data: bytes) -> Sequence[Fault]:
    for name, draft in _drafts().items():
        if not (folder / name).exists():
            _written(folder, name, draft)
    read_experiment(_written(folder, "experiment.json", data))
    return ()


@cache
def _drafts() -> dict[str, bytes]:
    names = ("sft_certificate", "answer_grpo", "intervention_grpo")
    return {f"{name}.json": (ROOT / "plans" / "demo" / f"{name}.json").read_bytes() for name in names}


EXPERIMENT = json.loads((ROOT / "plans" / "demo" / "experiment.json").read_bytes()) | {
    "rl": ["answer_grpo.json", "intervention_grpo.json"],
    "overrides": {"rl": {"optimisation": {"save_interval": 10}}},
}


def _strict_json(folder: Path, data: bytes) -> Sequence[Fault]:
    load_json(_written(folder, "document.json", data), gate="fuzz")
    return ()


# --- rows ---------------------------------------------------------------------------------------------------------


def _slots(folder: Path, data: bytes) -> Sequence[Fault]:
    read_slot_rows(_written(folder, "slots.jsonl", data))
    return ()


def _evaluation_rows(folder: Path, data: bytes) -> Sequence[Fault]:
    read_slot_rows(_written(folder, "evaluation.jsonl", data), split="evaluation")
    return ()


def _sft(folder: Path, data: bytes) -> Sequence[Fault]:
    read_sft_rows(_written(folder, "sft.jsonl", data))
    return ()


def _full_slot(row: dict[str, Any]) -> dict[str, Any]:
    """Return the FULL slot of a slot's group, which a file needs as well."""
    full = row | {"slot_id": "full", "relation": "FULL", "selected_view": row["full_view"]}
    return {name: value for name, value in full.items() if name != "substitute_answer"}


def _slot_files(name: str) -> tuple[list[Any], ...]:
    row = example(name)
    return ([_full_slot(row), row],) if row["relation"] != "FULL" else ([row],)


# --- records of a run ---------------------------------------------------------------------------------------------


@cache
def _member(archive: Path, name: str) -> bytes:
    with tarfile.open(archive) as packed:
        stream = packed.extractfile(name)
        assert stream is not None
        return stream.read()


def _rows_of(archive: Path, name: str) -> list[Any]:
    return [json.loads(line) for line in _member(archive, name).splitlines()]


LEDGER = _rows_of(RL.file, "accounting/rank-0/ledger.jsonl")
TRACE = _rows_of(RL.file, "accounting/rank-0/trace.jsonl")
BINDING = Binding(**{part.name: LEDGER[0][part.name] for part in fields(Binding)})


def _ledger(folder: Path, data: bytes) -> Sequence[Fault]:
    _written(folder, "accounting/rank-0/ledger.jsonl", data)
    list(read_ledger(FolderTree(folder), BINDING))
    return ()


def _trace(folder: Path, data: bytes) -> Sequence[Fault]:
    _written(folder, "accounting/rank-0/trace.jsonl", data)
    list(read_trace(FolderTree(folder), BINDING))
    return ()


def _opened_ledger(folder: Path, data: bytes) -> Sequence[Fault]:
    """Open a ledger at its beginning, as a run does that has no checkpoint yet: its rows are set aside."""
    for old in folder.rglob("*.jsonl"):
        old.unlink()
    _written(folder, "accounting/rank-0/ledger.jsonl", data)
    Ledger.open(folder, BINDING).close()
    return ()


def _answers(folder: Path, data: bytes) -> Sequence[Fault]:
    _written(folder, layout.ANSWERS, data)
    for answer in read_answers(FolderTree(folder)):
        parsed_fields(answer)
    return ()


# --- statements ---------------------------------------------------------------------------------------------------

STATEMENT = "provenance/run.intoto.json"
ENVELOPES = tuple(json.loads(_member(run.file, STATEMENT)) for run in (RL, SFT))
KEY = "key.pub"


def _statement(folder: Path, data: bytes) -> Sequence[Fault]:
    if not (folder / KEY).exists():
        _written(folder, KEY, PUBLIC_KEY)
    _written(folder, STATEMENT, data)
    collector = FaultCollector(AT)
    check_envelope(FolderTree(folder), STATEMENT, None, collector, beside=KEY)
    return collector.faults()


def _public_key(folder: Path, data: bytes) -> Sequence[Fault]:
    public_key_of(data, AT.at(folder / KEY))
    return ()


PUBLIC_KEY = (ROOT / "tests/fixtures/finished-runs/TEST-KEY-never-trust.pem.pub").read_bytes()


def _enveloped(payload: bytes) -> bytes:
    envelope = {"payload": base64.b64encode(payload).decode(), "payloadType": PAYLOAD_TYPE, "signatures": []}
    return json.dumps(envelope, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def _payloads() -> SearchStrategy[bytes]:
    """Draw envelopes whose statement was changed, not the envelope."""
    statements = [json.loads(base64.b64decode(envelope["payload"])) for envelope in ENVELOPES]
    return changed_json(statements).map(_enveloped)


# --- binary files -------------------------------------------------------------------------------------------------


def _images() -> tuple[bytes, ...]:
    """Return a small image of each format, with an orientation where the format has one."""
    picture = Image.linear_gradient("L").resize((12, 9)).convert("RGB")
    exif = Image.Exif()
    exif[0x0112] = 6
    result = []
    for form, options in (("PNG", {}), ("PNG", {"exif": exif}), ("JPEG", {"exif": exif}), ("WEBP", {}), ("BMP", {})):
        stream = io.BytesIO()
        picture.save(stream, form, **options)
        result.append(stream.getvalue())
    return tuple(result)


def _image(folder: Path, data: bytes) -> Sequence[Fault]:
    asset = Asset(path="image", sha256="0" * 64, bytes=0, width=12, height=9)
    with bombs_are_errors():
        fault = header_fault(_written(folder, "image", data), asset, AT.at(folder / "manifest.json"), "/images/0")
    return () if fault is None else (fault,)


def _tensor_file(header: bytes, data: bytes = bytes(24)) -> bytes:
    return struct.pack("<Q", len(header)) + header + data


TENSORS = {
    "__metadata__": {"format": "pt"},
    "a.weight": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
    "b": {"dtype": "BF16", "shape": [4], "data_offsets": [16, 24]},
    "c": {"dtype": "F32", "shape": [0], "data_offsets": [24, 24]},
}


def _tensors(folder: Path, data: bytes) -> Sequence[Fault]:
    path = _written(folder, "model.safetensors", data)
    safetensors_header(path)
    file_tensors(path)
    return ()


def _archive(folder: Path, data: bytes) -> Sequence[Fault]:
    tree = ArchiveTree(_written(folder, "run.tar", data))
    for name in tree.files:
        tree_sha256(tree, name)
        tree.place(name)
    return ()


def _packed(*members: tuple[str, bytes]) -> bytes:
    """Return an archive in POSIX's form; a long name gets an extended header."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


ARCHIVE = _packed(("plan.json", b"{}\n"), ("logs/" + "long/" * 30 + "name.log", b"x" * 600), ("empty", b""))


@st.composite
def _changed_archive(draw: DrawFn) -> bytes:
    """Draw an archive that was changed; most of the time its headers get the right checksums afterwards."""
    data = bytearray(draw(changed_bytes([ARCHIVE])))
    if draw(st.integers(0, 3)):
        for at in range(0, len(data) - 511, 512):
            block = data[at : at + 512]
            if block[257:262] == b"ustar":
                block[148:156] = b" " * 8
                data[at + 148 : at + 156] = b"%06o\0 " % sum(block)
    return bytes(data)


def _reader(
    name: str,
    read: Callable[[Path, bytes], Sequence[Fault]],
    seeds: Sequence[bytes],
    *changed: SearchStrategy[bytes],
) -> Reader:
    return Reader(name=name, read=read, seeds=tuple(seeds), changed=st.one_of(*changed, changed_bytes(seeds)))


def _of_documents(name: str, read: Callable[[Path, bytes], Sequence[Fault]], *documents: Any) -> Reader:
    seeds = [json.dumps(document).encode() for document in documents]
    # Twice: a change of a value reaches further than one of a byte.
    return _reader(name, read, seeds, changed_json(documents), changed_json(documents))


def _of_rows(name: str, read: Callable[[Path, bytes], Sequence[Fault]], *files: Sequence[Any]) -> Reader:
    return _reader(name, read, [_lines(*rows) for rows in files], changed_lines(files), changed_lines(files))


_HEADERS = changed_value([TENSORS]).map(lambda value: _tensor_file(json_text(value).encode("utf-8", "surrogatepass")))

READERS = (
    _of_documents("json", _strict_json, example("plan"), [1, 2.5, None, "text", {"a": [True]}]),
    _of_documents("plan", _plan, example("plan")),
    _of_documents("draft", _draft, example("draft"), *map(json.loads, _drafts().values())),
    _of_documents("experiment", _experiment, EXPERIMENT),
    _of_rows("slots", _slots, *_slot_files("slot-row")),
    _of_rows("evaluation-rows", _evaluation_rows, *_slot_files("evaluation-row")),
    _of_rows("sft", _sft, [example("sft-row")]),
    _of_rows("ledger", _ledger, LEDGER),
    _of_rows("opened-ledger", _opened_ledger, LEDGER),
    _of_rows("trace", _trace, TRACE),
    _of_rows("answers", _answers, [example("evaluation-answer")] * 2),
    _reader(
        "statement",
        _statement,
        [_member(run.file, STATEMENT) for run in (RL, SFT)],
        changed_json(ENVELOPES),
        _payloads(),
    ),
    _reader("public-key", _public_key, [PUBLIC_KEY]),
    _reader("image", _image, _images()),
    _reader("safetensors", _tensors, [_tensor_file(json.dumps(TENSORS).encode())], _HEADERS),
    _reader("archive", _archive, [ARCHIVE], _changed_archive()),
)
