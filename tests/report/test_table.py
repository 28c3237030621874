"""The table of evaluations names the engine that answered."""

from __future__ import annotations

from explicit_learning.report.table import evaluation_table


def evaluation(engine: str) -> dict[str, object]:
    counts = {"rows": 4, "right": 3, "accuracy": 0.75, "abstained": 0, "said_full_answer": 3}
    return {"engine": engine, "relations": {"FULL": {**counts, "states": {"original": counts}}}}


def test_one_engine_is_named_below_the_table() -> None:
    for engine, name in (("exact", "the exact engine"), ("vllm", "vLLM")):
        text = evaluation_table([("one", evaluation(engine)), ("two", evaluation(engine))])
        assert f"answered by {name};" in " ".join(text.split())
        assert "engine ┃" not in text
        assert text.count("75 %") == 2


def test_of_several_each_row_says_its_own() -> None:
    text = evaluation_table([("one", evaluation("vllm")), ("two", evaluation("exact"))])
    assert "engine ┃" in text
    assert [line.split("│")[-2].strip() for line in text.splitlines() if "│" in line] == ["vllm", "exact"]
