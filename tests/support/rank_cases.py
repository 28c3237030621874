"""Ranks that do one thing each, chosen by the variable ``CASE``, in the real process of a rank."""

from __future__ import annotations

import errno
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from explicit_learning.files.atomic import write_bytes, write_json, write_text
from explicit_learning.launch.rank import run_rank
from explicit_learning.rundir.outcome import RankOutcome

if TYPE_CHECKING:
    from explicit_learning.launch.rank import RankContext

COMPLETED = RankOutcome(status="completed", optimizer_step=7)
VARIABLES = ("MALLOC_MMAP_THRESHOLD_", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "PYTHONHASHSEED", "PYTHONSAFEPATH")
VARIABLES += ("EXPLICIT_SIGNING_KEY",)


def ready(context: RankContext) -> None:
    write_text(context.manifest.run / f"ready-{context.rank}", str(os.getpid()))


def leave(context: RankContext, **seen: Any) -> None:
    """Leave what this rank saw for the test that started it."""
    write_json(context.manifest.run / f"seen-{context.rank}.json", seen)


def until_agreed(context: RankContext) -> RankOutcome:
    """Agree on a stop as a backend does, then save."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    ready(context)
    step = 0
    while True:
        step += 1
        stop = torch.tensor(int(context.stop.requested()))
        dist.all_reduce(stop, op=dist.ReduceOp.MAX)
        if stop.item():
            break
        time.sleep(0.02)
    noted = [arrival.signal.name for arrival in context.stop.arrivals()]
    leave(context, signals=noted)
    return RankOutcome(status="stopped", optimizer_step=step, checkpoint=f"checkpoint-{step}")


def until_signalled(context: RankContext) -> RankOutcome:
    """Stop when this rank itself gets a signal."""
    ready(context)
    while not context.stop.requested():
        time.sleep(0.02)
    time.sleep(1)  # saving takes a while
    leave(context, signals=[arrival.signal.name for arrival in context.stop.arrivals()], pid=os.getpid())
    return RankOutcome(status="stopped", optimizer_step=1, checkpoint="checkpoint-1")


def complete(context: RankContext) -> RankOutcome:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.tensor(context.rank + 1)
    dist.all_reduce(total)
    context.say(f"a line of rank {context.rank}")
    print("printed by Python")
    os.write(1, b"written by native code\n")
    leave(
        context,
        sum=int(total.item()),
        variables={name: os.environ.get(name) for name in VARIABLES},
        own_session=os.getsid(0) == os.getpid(),
        files=sorted(_open_files()),
    )
    return COMPLETED


def _open_files() -> set[str]:
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that lists the folder is closed by now
            found.add(str(link.readlink()))
    return found


def one_fails(context: RankContext) -> RankOutcome:
    if context.rank == 1:
        return RankOutcome(status="failed", optimizer_step=3, message="the ledger is another run's", exit_code=65)
    while not context.stop.requested():
        time.sleep(0.02)
    raise RuntimeError("[gloo] Connection closed by peer")


def one_raises(context: RankContext) -> RankOutcome:
    """Rank 1 finds the disk full while rank 0 waits for it in a collective."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    if context.rank == 1:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "checkpoint-5")
    dist.all_reduce(torch.zeros(1))
    return COMPLETED


def one_raises_before_they_meet(context: RankContext) -> RankOutcome:
    """The rank that ``FAILS`` finds the disk full, and the other waits for it to connect."""
    import torch.distributed as dist

    if context.rank == int(os.environ["FAILS"]):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "model.safetensors")
    ready(context)
    dist.init_process_group("gloo")
    return COMPLETED


def one_never_connects(context: RankContext) -> RankOutcome:
    """Rank 1 takes its time, and rank 0 waits for it to connect."""
    import torch.distributed as dist

    ready(context)
    if context.rank == 0:
        dist.init_process_group("gloo")
    time.sleep(600)
    return COMPLETED


def nowhere_to_log(context: RankContext) -> RankOutcome:
    """The disk is full, for the log too, and a child is there that no signal ends."""
    del context
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
        os._exit(0)
    full = os.open("/dev/full", os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(full, stream)
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "ledger.jsonl")


def both_wait(context: RankContext) -> RankOutcome:
    print("the last line of a rank")
    ready(context)
    time.sleep(600)
    return COMPLETED


def leaves_no_outcome(context: RankContext) -> RankOutcome:
    if context.rank == 1:
        os._exit(0)
    return COMPLETED


def never_stops(context: RankContext) -> RankOutcome:
    """Never look at the stop request; a child of its own must not outlive it either."""
    child = os.fork()
    if child == 0:
        time.sleep(600)
        os._exit(0)
    write_bytes(context.manifest.run / f"child-{context.rank}", str(child).encode())
    checkpoint = context.manifest.run / "checkpoint-5"
    if "CHECKPOINT" in os.environ and context.rank == 0:
        checkpoint.mkdir()
        write_text(checkpoint / "complete.json", "{}")
    ready(context)
    time.sleep(600)
    return COMPLETED


if __name__ == "__main__":
    run_rank(globals()[os.environ["CASE"]])
