"""The beginning of a process that computes with a model outside a run (see `explicit_learning.evaluation.process`)."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import warnings
from typing import Any

from explicit_learning.evaluation.process import PARENT_VARIABLE
from explicit_learning.launch.signals import die_with_parent

__all__ = ["begin"]


def begin() -> Any:  # noqa: ANN401 - any JSON value
    """Prepare a process that `run_process` started, and return what it is to do."""
    # Who started this process ends it: an interrupt of the terminal reaches both.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(int(os.environ[PARENT_VARIABLE]))
    _silence_libraries()
    return json.load(sys.stdin)


def _silence_libraries() -> None:
    """Leave out what libraries say while they load: a run has a log for it, here it would stand between the answers."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    for name in ("vllm", "torch.utils.cpp_extension"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.simplefilter("ignore", FutureWarning)
