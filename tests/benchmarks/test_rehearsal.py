"""The rehearsal's parts: the real shape, a tokenizer from ranks, commands that end as they should, tables."""

from __future__ import annotations

import base64
import json
import re
import sys
from typing import TYPE_CHECKING

import pytest

from assets.making.architecture import make_config
from assets.making.tokenizer import SPECIAL_TOKENS, tokenizer_of
from benchmarks.rehearsal import memory_bound
from benchmarks.rehearsal.__main__ import MARK, claim, main
from benchmarks.rehearsal.memory_bound import evi_po_bound
from benchmarks.rehearsal.runs import Command, Runs
from benchmarks.rehearsal.shape import SHAPES
from benchmarks.rehearsal.tables import commands_table, phases_table
from benchmarks.rehearsal.vocabulary import REQUIREMENTS, merges_of, parts_of, read_ranks, vocabulary_of
from explicit_learning.errors import ExitCode
from explicit_learning.files.resources import ASSETS
from explicit_learning.files.typed_json import from_json
from explicit_learning.gates.memory_estimate import estimate_memory
from explicit_learning.gates.row_sizes import RowSizes
from explicit_learning.inputs.data import ImageTokens
from explicit_learning.plan.typed_plan import Plan
from explicit_learning.rundir.launches import RankEnd
from explicit_learning.rundir.rank_report import PhaseUse
from tests.support.plans import MODEL

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.rundir.rank_report import PhaseName

BYTES = {bytes([value]): value for value in range(256)}
TEMPLATE = (ASSETS / "making" / "chat_template.jinja").read_text()


def ranks(*tokens: bytes) -> dict[bytes, int]:
    """Return ranks of all bytes and, after them, of longer tokens."""
    return BYTES | {token: rank for rank, token in enumerate(tokens, start=256)}


# "lower" is made of "low" and "er" although "we" has a lower rank than "er": the merge to "lo" and "low" came first.
LONGER = (b"lo", b"low", b"we", b"er", b"lower", b" lower", "é".encode(), b"is", b"his", b" t", b" this")


def test_a_tokens_last_merge_follows_from_the_ranks_below_its_own() -> None:
    without_this = LONGER[:-1]
    assert merges_of(ranks(*without_this)) == [
        (b"l", b"o"),
        (b"lo", b"w"),
        (b"w", b"e"),
        (b"e", b"r"),
        (b"low", b"er"),
        (b" ", b"lower"),
        (b"\xc3", b"\xa9"),
        (b"i", b"s"),
        (b"h", b"is"),
        (b" ", b"t"),
    ]
    assert merges_of(ranks(*LONGER))[-1] == (b" t", b"his")


def test_a_token_that_no_two_others_make_is_refused() -> None:
    with pytest.raises(ValueError, match=re.escape("the token b'abc' of rank 256 is made of 3 lower ones, not of two")):
        merges_of(ranks(b"abc"))


def test_a_tokenizer_with_these_merges_splits_words_as_the_ranks_do() -> None:
    table = ranks(*LONGER)
    tokenizer = tokenizer_of(*vocabulary_of(table), TEMPLATE)
    assert len(tokenizer) == len(table) + 20
    for word in (b"lower", b" lower", b"wer", b"lowest", "élow".encode(), b" this", b" his"):
        expected = [table[part] for part in parts_of(word, table, below=len(table))]
        assert tokenizer(word.decode()).input_ids == expected, word
    text = "The lower one: Größe 漢字 🙂\n"
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert {len(tokenizer(token).input_ids) for token in SPECIAL_TOKENS} == {1}
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")


def test_a_rank_file_holds_tokens_in_base64(tmp_path: Path) -> None:
    file = tmp_path / "ranks"
    file.write_bytes(b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks(*LONGER).items()))
    assert read_ranks(file) == ranks(*LONGER)


def test_the_vocabularys_package_is_pinned_by_hash_and_names_no_index() -> None:
    lines = [line for line in REQUIREMENTS.read_text().splitlines() if not line.startswith("#")]
    assert re.fullmatch(r"dashscope==[\d.]+ \\", lines[0])
    assert [re.fullmatch(r" +--hash=sha256:[0-9a-f]{64}", line) is not None for line in lines[1:]] == [True]


@pytest.mark.slow
@pytest.mark.parametrize(("size", "parameters"), [("full", 2_213_241_664), ("small", 791_738_336)])
def test_the_shapes_have_the_real_models_number_of_parameters_and_kinds_of_layers(size: str, parameters: int) -> None:
    import torch
    from transformers import AutoModelForImageTextToText

    shape = SHAPES[size]
    tokenizer = tokenizer_of(*vocabulary_of(BYTES), TEMPLATE)
    config = make_config(tokenizer, text=shape.text, vision=shape.vision)
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert config.text_config.layer_types == (["linear_attention"] * 3 + ["full_attention"]) * (shape.layers // 4)
    assert tuple(model.lm_head.weight.shape) == (248_320, 2048)
    assert model.lm_head.weight is model.get_input_embeddings().weight


def test_a_command_counts_if_it_ends_with_the_expected_code(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    runs.command("good", [sys.executable, "-c", "bytearray(50 << 20); raise SystemExit(75)"], code=ExitCode.STOPPED)
    [found] = runs.commands
    assert found.name == "good"
    assert found.peak_bytes > 50 << 20
    assert found.cpu_seconds > 0
    assert found.seconds > 0
    with pytest.raises(RuntimeError, match="bad ended with exit code 3, not 0"):
        runs.command("bad", [sys.executable, "-c", "raise SystemExit(3)"])
    assert runs.commands == [found]


def test_a_command_is_stopped_once_training_has_begun_and_not_before(tmp_path: Path) -> None:
    log, runs = tmp_path / "log", Runs(tmp_path)
    program = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))\n"
        f"log = open({str(log)!r}, 'w')\n"
        "print('loading', flush=True, file=log)\n"
        "time.sleep(0.3)\n"
        "print('training: an arm', flush=True, file=log)\n"
        "time.sleep(60)\n"
    )
    runs.command("stopped", [sys.executable, "-c", program], code=ExitCode.STOPPED, stop_when=log)
    assert "training: " in log.read_text()
    log.unlink()
    with pytest.raises(RuntimeError, match="early ended with exit code 3, not 75"):
        runs.command("early", [sys.executable, "-c", "raise SystemExit(3)"], code=ExitCode.STOPPED, stop_when=log)


def test_the_bound_grows_with_rows_and_leaves_evaluations_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = tmp_path / "plan.json"
    example = json.loads((ASSETS.parent / "schemas" / "examples" / "plan.json").read_text())
    plan.write_text(json.dumps(example))
    small = evi_po_bound(plan, MODEL)
    longer = example | {"generation": example["generation"] | {"max_prompt_tokens": 10_000}}
    plan.write_text(json.dumps(longer))
    assert small < evi_po_bound(plan, MODEL)
    # Rows are counted, and those of an evaluation are not in the bound.
    sizes = RowSizes(images=ImageTokens(fewest=4, most=4), text=10, evaluation=65_536)
    monkeypatch.setattr(memory_bound, "frozen_row_sizes", lambda *_, **__: sizes)
    many = longer | {"generation": longer["generation"] | {"evaluation_batch_size": 65_536}}
    bounds = []
    for document in (longer, many):
        plan.write_text(json.dumps(document))
        bounds.append(evi_po_bound(plan, MODEL))
    found = estimate_memory(from_json(Plan, longer), MODEL, rows=sizes)
    training = max(moment.size for moment in found.planned if moment.name != "evaluation")
    assert bounds[0] == bounds[1] > 1.25 * training


def test_tables_have_a_row_for_each_command_and_phase() -> None:
    command = Command(name="run papo", seconds=1234.6, cpu_seconds=600.4, peak_bytes=3 << 29)
    assert commands_table([command]).splitlines()[2:] == ["| run papo | 1,235 | 600 | 1.50 |"]
    phases: dict[PhaseName, PhaseUse] = {
        "load": PhaseUse(seconds=2.25, peak_memory_bytes=1 << 30),
        "other": PhaseUse(seconds=0.75, peak_memory_bytes=None),
    }
    end = RankEnd(
        rank=0,
        status="completed",
        optimizer_step=2,
        checkpoint="checkpoint-2",
        message=None,
        peak_memory_bytes=1 << 30,
        peak_reserved_bytes=None,
        device_seconds=1.0,
        gpu=None,
        phases=phases,
    )
    lines = phases_table({"sft": end}).splitlines()
    assert lines[0] == "| phase | sft |"
    assert lines[2] == "| load | 2.2 s, 1.00 |"
    empty = [f"| {name} |  |" for name in ("rollout", "probe", "validation", "score", "backward", "checkpoint")]
    assert lines[4:] == [*empty, "| other | 0.8 s, ? |", "| all | 3 s, 1.00 |"]


def test_a_folder_is_claimed_once_and_kept_for_its_size(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    assert claim(folder, "small") is None
    assert json.loads((folder / MARK).read_text()) == {"size": "small", "seed": 0}
    (folder / "runs").mkdir()
    assert claim(folder, "small") is None
    assert "another rehearsal" in str(claim(folder, "full"))
    (folder / MARK).write_text("{")
    assert "another rehearsal" in str(claim(folder, "small"))


@pytest.mark.parametrize("name", ["runs/precious/training-complete.json", "model/config.json", "notes"])
def test_a_folder_with_other_files_is_refused_and_left_as_it_is(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("x")
    with pytest.raises(SystemExit) as ended:
        main(["--size", "small", "--out", str(tmp_path)])
    assert ended.value.code == 2
    assert "holds other files" in capsys.readouterr().err
    assert file.read_text() == "x"
    assert not (tmp_path / MARK).exists()


def test_a_place_where_no_folder_can_be_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    for place in ("file", "file/below"):
        with pytest.raises(SystemExit):
            main(["--size", "small", "--out", str(tmp_path / place)])
        assert "cannot be used" in capsys.readouterr().err
