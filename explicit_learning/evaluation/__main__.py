"""The process that evaluates: `el evaluate` starts it with a rank's environment.

It reads an `EvaluationJob` from standard input, and writes each evaluation whole or not at all. All its requests are
for one engine. One process answers several, because for a small model importing the libraries takes longer than
answering.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import warnings
from pathlib import Path

from explicit_learning.errors import Refusal
from explicit_learning.evaluation.greedy import engine_of, evaluate
from explicit_learning.evaluation.requests import PARENT_VARIABLE, EvaluationJob
from explicit_learning.files.os_errors import write_fault
from explicit_learning.files.progress import say
from explicit_learning.files.typed_json import from_json
from explicit_learning.launch.signals import die_with_parent
from explicit_learning.rundir.evaluation import write_evaluation


def main() -> int:
    """Answer every request and return an exit code."""
    # Who started this process ends it: an interrupt of the terminal reaches both.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(int(os.environ[PARENT_VARIABLE]))
    _silence_libraries()
    job = from_json(EvaluationJob, json.load(sys.stdin))
    engine = engine_of(job.requests[0].identity.engine)
    for request in job.requests:
        say(f"evaluating {request.label}")
        try:
            answers = evaluate(request, engine)
            write_evaluation(Path(request.out), request.identity, answers, machine=job.machine)
        except (Refusal, OSError) as error:
            refusal = error if isinstance(error, Refusal) else Refusal(write_fault(error, Path(request.out)))
            say(str(refusal))
            return int(refusal.exit_code)
    return 0


def _silence_libraries() -> None:
    """Leave out what libraries say while they load: a run has a log for it, here it would stand between the answers."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    for name in ("vllm", "torch.utils.cpp_extension"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.simplefilter("ignore", FutureWarning)


if __name__ == "__main__":
    sys.exit(main())
