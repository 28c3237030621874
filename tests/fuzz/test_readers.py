"""Any bytes give a value, or a refusal that names the file: no other exception, no endless text, no endless time."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.untrusted_readers import READERS, Reader, judged

if TYPE_CHECKING:
    from pathlib import Path

NAMES = [reader.name for reader in READERS]
BY_NAME = {reader.name: reader for reader in READERS}
# `make fuzz` draws more, and other ones in each session; what it finds is kept in .hypothesis and tried first.
LONG = os.environ.get("FUZZ_EXAMPLES")
EXAMPLES = int(LONG) if LONG else 100
PROFILE = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=not LONG,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
    **({} if LONG else {"database": None}),
)


@pytest.fixture(params=NAMES)
def reader(request: pytest.FixtureRequest) -> Reader:
    return BY_NAME[request.param]


def test_a_reader_takes_what_is_right(reader: Reader, tmp_path: Path) -> None:
    for seed in reader.seeds:
        assert reader.name == "image" or judged(reader, tmp_path, seed) == ()


@PROFILE
@given(data=st.data())
def test_a_reader_takes_or_refuses_what_is_almost_right(reader: Reader, tmp_path: Path, data: st.DataObject) -> None:
    judged(reader, tmp_path, data.draw(reader.changed))


@PROFILE
@given(content=st.binary(max_size=600))
def test_a_reader_takes_or_refuses_any_bytes(reader: Reader, tmp_path: Path, content: bytes) -> None:
    judged(reader, tmp_path, content)


@pytest.mark.parametrize(
    ("name", "field"),
    [("slots", "slot_id"), ("evaluation-rows", "slot_id"), ("sft", "record_id"), ("experiment", "sft")],
)
def test_a_name_in_a_file_cannot_write_a_line_of_a_refusal(name: str, field: str, tmp_path: Path) -> None:
    reader = BY_NAME[name]
    row = json.loads(reader.seeds[0].splitlines()[-1])
    lines = "x\nrefused [plan] other.json"
    row[field] = [lines] if isinstance(row[field], list) else lines
    assert judged(reader, tmp_path, json.dumps(row).encode() + b"\n")
