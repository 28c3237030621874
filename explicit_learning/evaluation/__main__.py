"""The process that evaluates: `el evaluate` starts it with a rank's environment.

It reads requests from standard input, as one JSON array, and writes each evaluation whole or not at all. One process
answers all requests, because for a small model importing the libraries takes longer than answering.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from explicit_learning.errors import Refusal
from explicit_learning.evaluation.greedy import evaluate
from explicit_learning.evaluation.requests import EvaluationRequest
from explicit_learning.files.atomic import write_json
from explicit_learning.files.progress import say
from explicit_learning.files.typed_json import from_json, to_json


def main() -> int:
    """Answer every request and return an exit code."""
    from transformers.utils import logging

    # A training run has a log for what libraries print while they load; here it would stand between the answers.
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    for request in (from_json(EvaluationRequest, item) for item in json.load(sys.stdin)):
        say(f"evaluating {request.label}")
        try:
            summary = evaluate(request.plan, request.paths, adapter=Path(request.adapter) if request.adapter else None)
        except Refusal as refusal:
            say(str(refusal))
            return int(refusal.exit_code)
        out = Path(request.out)
        out.parent.mkdir(parents=True, exist_ok=True)
        write_json(out, to_json(request.identity) | summary)
    return 0


if __name__ == "__main__":
    sys.exit(main())
