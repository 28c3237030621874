"""The process that evaluates: `el evaluate` starts it with a rank's environment.

It reads an `EvaluationJob` from standard input, and writes each evaluation whole or not at all; the answers so far lie
in a temporary file. All its requests are for one engine. One process answers several, because for a small model
importing the libraries takes longer than answering.
"""

from __future__ import annotations

import sys
from pathlib import Path

from explicit_learning.errors import Refusal
from explicit_learning.evaluation.child import begin
from explicit_learning.evaluation.completing import engine_of
from explicit_learning.evaluation.greedy import evaluate
from explicit_learning.evaluation.partial import remove_partial
from explicit_learning.evaluation.requests import EvaluationJob
from explicit_learning.files.os_errors import write_fault
from explicit_learning.files.progress import say
from explicit_learning.files.typed_json import from_json
from explicit_learning.rundir.evaluation import write_evaluation


def main() -> int:
    """Answer every request and return an exit code."""
    job = from_json(EvaluationJob, begin())
    engine = engine_of(job.requests[0].identity.engine)
    for request in job.requests:
        say(f"evaluating {request.label}")
        try:
            answers = evaluate(request, engine, machine=job.machine)
            write_evaluation(Path(request.out), request.identity, answers, machine=job.machine)
            remove_partial(Path(request.out).parent)
        except (Refusal, OSError) as error:
            refusal = error if isinstance(error, Refusal) else Refusal(write_fault(error, Path(request.out)))
            say(str(refusal))
            return int(refusal.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
