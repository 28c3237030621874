"""The process that evaluates: what `el evaluate` starts with a rank's environment.

It reads requests from standard input, one JSON object, and writes each evaluation whole. Several are answered in one
process because importing the libraries takes longer than answering for a small model.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from explicit_learning.errors import Refusal
from explicit_learning.evaluation.greedy import evaluate
from explicit_learning.files.atomic import write_json
from explicit_learning.files.progress import say
from explicit_learning.files.typed_json import from_json
from explicit_learning.plan.typed_plan import Plan, ResolvedPaths


def main() -> int:
    """Answer every request and return an exit code."""
    from transformers.utils import logging

    # What the libraries say while they load is in a training run's log; here it would stand between the answers.
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    requests: list[dict[str, Any]] = json.load(sys.stdin)
    for request in requests:
        out = Path(request["out"])
        say(f"evaluating {request['label']}")
        try:
            summary = evaluate(
                from_json(Plan, request["plan"]),
                from_json(ResolvedPaths, request["paths"]),
                adapter=Path(request["adapter"]) if request["adapter"] else None,
            )
        except Refusal as refusal:
            say(str(refusal))
            return int(refusal.exit_code)
        out.parent.mkdir(parents=True, exist_ok=True)
        write_json(out, request["identities"] | summary)
    return 0


if __name__ == "__main__":
    sys.exit(main())
