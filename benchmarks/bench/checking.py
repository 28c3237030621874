"""`el check`: how soon it refuses a broken plan, and what it saves where nothing changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.bench.figures import Target, paired
from explicit_learning.files import remembered_hashes
from explicit_learning.files.hashing import snapshot_sha256
from explicit_learning.files.remembered_hashes import remembering_hashes
from explicit_learning.files.resources import ROOT, SCHEMAS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.bench.figures import Figure

MODEL_BYTES = 4_400_000_000  # Qwen3.5-2B in bfloat16
LEAST_CHECKER = """
import json, sys
import jsonschema
schema = json.load(open(sys.argv[1]))
list(jsonschema.Draft202012Validator(schema).iter_errors(json.load(open(sys.argv[2]))))
"""


def figures(*, turns: int, model_bytes: int = MODEL_BYTES) -> Iterator[Figure]:
    """Yield the figures of `el check`.

    Args:
        turns: Number of turns.
        model_bytes: Size of the model beside the plan. Unit: bytes.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = folder / "model"
        model.mkdir()
        with (model / "model.safetensors").open("wb") as stream:
            stream.truncate(model_bytes)  # zeros, which take no disk and are hashed like other bytes
        yield _broken(folder, model, turns)
        yield _unchanged(folder, model, turns)


def _broken(folder: Path, model: Path, turns: int) -> Figure:
    plan = json.loads((SCHEMAS / "examples" / "plan.json").read_text("utf-8"))
    plan["model"]["path"] = model.name
    plan["seed"] = "not a number"
    file = folder / "plan.json"
    file.write_text(json.dumps(plan))
    schema = str(SCHEMAS / "plan.schema.json")

    def run(*words: str, code: int) -> None:
        done = subprocess.run([sys.executable, *words], capture_output=True, cwd=folder, check=False)
        if done.returncode != code:
            raise RuntimeError(done.stderr.decode())

    return paired(
        "`el check` of a broken plan beside a model of 4.4 GB",
        "the interpreter and jsonschema on that plan",
        lambda: run(str(ROOT / "entrypoint.py"), "check", file.name, code=65),
        lambda: run("-c", LEAST_CHECKER, schema, file.name, code=0),
        target=Target(ratio=1.5, at_most=True),
        clock="CPU",
        turns=turns,
    )


def _unchanged(folder: Path, model: Path, turns: int) -> Figure:
    """Time a model's identity, with what is remembered and without."""
    caches = "XDG_CACHE_HOME"
    before = os.environ.get(caches), remembered_hashes.YOUNG_NS
    os.environ[caches], remembered_hashes.YOUNG_NS = str(folder / "caches"), 0

    def remembered() -> None:
        with remembering_hashes():
            snapshot_sha256(model)

    try:
        remembered()
        return paired(
            "identity of an unchanged model of 4.4 GB in `el check`",
            "hashing it again, as `el check --deep` and `el run` do",
            remembered,
            lambda: snapshot_sha256(model),
            target=Target(ratio=20, at_most=False),
            clock="wall",
            turns=min(turns, 3),
        )
    finally:
        remembered_hashes.YOUNG_NS = before[1]
        os.environ.pop(caches) if before[0] is None else os.environ.update({caches: before[0]})
