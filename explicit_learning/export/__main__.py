"""The process that merges and compares: `el export --merged` starts it, and waits."""

from __future__ import annotations

import sys
from pathlib import Path

from explicit_learning.errors import Refusal
from explicit_learning.evaluation.child import begin
from explicit_learning.export.comparing import compare
from explicit_learning.export.job import MergeJob
from explicit_learning.export.merging import merge_weights
from explicit_learning.files.atomic import write_json
from explicit_learning.files.os_errors import write_fault
from explicit_learning.files.progress import say
from explicit_learning.files.typed_json import from_json, to_json
from explicit_learning.rundir.layout import ADAPTER_WEIGHTS


def main() -> int:
    """Merge, compare, and return an exit code."""
    job = from_json(MergeJob, begin())
    lora, out = job.plan.lora, Path(job.out)
    weights = Path(job.adapter) / ADAPTER_WEIGHTS
    try:
        merge_weights(Path(job.paths.model), weights, out, scale=lora.alpha / lora.rank, dtype=job.dtype)
        write_json(Path(job.answer), to_json(compare(job)))
    except (Refusal, OSError) as error:
        refusal = error if isinstance(error, Refusal) else Refusal(write_fault(error, out))
        say(str(refusal))
        return int(refusal.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
