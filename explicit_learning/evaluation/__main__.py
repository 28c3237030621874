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
from explicit_learning.evaluation.record import write_evaluation
from explicit_learning.evaluation.requests import EvaluationRequest
from explicit_learning.files.os_errors import write_fault
from explicit_learning.files.progress import say
from explicit_learning.files.typed_json import from_json


def main() -> int:
    """Answer every request and return an exit code."""
    from transformers.utils import logging

    # A training run has a log for what libraries print while they load; here it would stand between the answers.
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    for request in (from_json(EvaluationRequest, item) for item in json.load(sys.stdin)):
        say(f"evaluating {request.label}")
        try:
            adapter = Path(request.adapter) if request.adapter else None
            write_evaluation(
                Path(request.out), request.identity, evaluate(request.plan, request.paths, adapter=adapter)
            )
        except (Refusal, OSError) as error:
            refusal = error if isinstance(error, Refusal) else Refusal(write_fault(error, Path(request.out)))
            say(str(refusal))
            return int(refusal.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
