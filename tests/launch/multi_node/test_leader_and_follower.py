"""Node 0 and a node that follows it, both in this process and without ranks: what each sends, and how each ends."""

from __future__ import annotations

import errno
import json
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.resources import SCHEMAS
from explicit_learning.files.typed_json import from_json, to_json
from explicit_learning.launch.multi_node.messages import (
    JOIN_REPLY,
    JoinReply,
    JoinRequest,
    join_request_of,
    read_join_reply,
    read_report,
    receipt_of,
)
from explicit_learning.launch.multi_node.nodes import MultiNodeError, NodePlace
from explicit_learning.launch.outcomes import NodeEnd, RankEnd
from explicit_learning.launch.signals import StopRequest
from explicit_learning.rundir.launch_manifest import (
    MANIFEST_SHA256_VARIABLE,
    MANIFEST_VARIABLE,
    FollowerManifest,
    read_launch_manifest,
    write_launch_manifest,
)
from explicit_learning.rundir.launches import read_launches
from explicit_learning.rundir.outcome import RankOutcome
from explicit_learning.rundir.rank_report import RankReport
from tests.support.finished_run import Run, plan_document
from tests.support.machines import COMMIT, MACHINE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from explicit_learning.launch.multi_node.watch import NodeWatch
    from explicit_learning.rundir.launch_manifest import LaunchManifest

pytestmark = pytest.mark.slow  # imports torch


REPORT = from_json(RankReport, json.loads((SCHEMAS / "examples" / "rank-outcome.json").read_text())["report"])


def ended(rank: int, message: str | None = None) -> NodeEnd:
    outcome = RankOutcome(status="completed", optimizer_step=3, message=message, report=REPORT)
    end = RankEnd(outcome=outcome, written_at=1.5, exit_code=0, failed_first=False)
    return NodeEnd(ranks={str(rank): end}, kill_reason=None)


def completes(_manifest: LaunchManifest, _watch: NodeWatch) -> NodeEnd:
    return ended(0)


class Pair:
    """A prepared run, its launch manifest, and the places of two nodes."""

    def __init__(self, folder: Path) -> None:
        run = Run.of(folder / "run", plan_document())
        run.prepare(record=False)
        self.folder, self.manifest = folder, run.launch_manifest()
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            port = int(free.getsockname()[1])
        self.place = NodePlace(
            count=2, rank=0, host="127.0.0.1", port=port, rendezvous_id="x", address="127.0.0.1", interface="lo"
        )

    def joining(self, **changes: Any) -> FollowerManifest:
        node = FollowerManifest(
            plan=self.manifest.plan,
            run_folder=self.manifest.run_folder,
            paths=replace(self.manifest.paths, model="/where/node/1/has/it"),
            running_commit=self.manifest.running_commit,
            machine=self.manifest.machine,
        )
        return replace(node, **changes)

    def lead(
        self, code: ExitCode, run_ranks: Callable[[LaunchManifest, NodeWatch], NodeEnd] = completes
    ) -> list[NodeEnd]:
        from explicit_learning.launch.multi_node.leader import Leader

        leader = Leader(self.place, stop=StopRequest())
        try:
            return leader.run(self.manifest, run_ranks)
        finally:
            leader.send_exit_code(code)

    def follow(
        self, joining: FollowerManifest, run_ranks: Callable[[LaunchManifest, NodeWatch], NodeEnd], *, count: int = 2
    ) -> ExitCode:
        from explicit_learning.launch.multi_node.follower import follow

        os.environ |= write_launch_manifest(self.folder / "launch.json", joining)
        return follow(joining, replace(self.place, rank=1, count=count), stop=StopRequest(), run_ranks=run_ranks)


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    from explicit_learning.launch.multi_node import leader

    for variable in (MANIFEST_VARIABLE, MANIFEST_SHA256_VARIABLE):
        monkeypatch.setenv(variable, "")  # the follower sets them; this restores them
    monkeypatch.setattr(leader, "JOIN_SECONDS", 30.0)
    return Pair(tmp_path)


def test_the_follower_gets_the_manifest_and_the_exit_code_and_sends_its_ends(pair: Pair) -> None:
    seen: list[LaunchManifest] = []

    def run_ranks(manifest: LaunchManifest, _: NodeWatch) -> NodeEnd:
        seen.append(manifest)
        return ended(1, "at a checkpoint")

    with ThreadPoolExecutor() as pool:
        ends = pool.submit(pair.lead, ExitCode.BUDGET_EXHAUSTED)
        assert pair.follow(pair.joining(), run_ranks) == ExitCode.BUDGET_EXHAUSTED
        assert ends.result() == [ended(0), ended(1, "at a checkpoint")]
    assert seen == [replace(pair.manifest, paths=pair.joining().paths)]
    assert read_launch_manifest() == seen[0], "its ranks read this machine's paths"
    (launch,) = read_launches(pair.manifest.run)
    assert launch.start.nodes == (MACHINE, MACHINE)


def never(_manifest: LaunchManifest, _watch: NodeWatch) -> NodeEnd:
    raise AssertionError("no rank is started")


def test_a_follower_of_other_code_is_refused_on_both_nodes(pair: Pair) -> None:
    found = f"node 1 runs commit {'f' * 40}, node 0 runs {pair.manifest.running_commit}"
    with ThreadPoolExecutor() as pool:
        leading = pool.submit(pair.lead, ExitCode.INTERNAL)
        with pytest.raises(Refusal, match="start all nodes again") as refused:
            pair.follow(pair.joining(running_commit="f" * 40), never)
        with pytest.raises(MultiNodeError, match=f"{found}: start the same code on all nodes"):
            leading.result()
    assert refused.value.exit_code == ExitCode.INTERNAL
    assert refused.value.faults[0].found == f"node 0 does not start: {found}: start the same code on all nodes"


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"running_commit": "f" * 40, "cpus": 8}, f"node 1 runs commit {'f' * 40}, node 0 runs {COMMIT}"),
        ({"running_commit": None}, f"node 1 runs commit null, node 0 runs {COMMIT}"),
        ({"plan": {"seed": "abc"}}, "node 1 has another plan than node 0"),
        ({"cpus": 8}, "the join request of node 1 breaks its schema (at /cpus: found unknown field 'cpus'"),
        (
            {"machine": 8},
            "the join request of node 1 breaks its schema (at /machine: found 8, expected a JSON object",
        ),
    ],
)
def test_a_request_of_another_form_is_answered_with_the_reason(pair: Pair, changes: dict[str, Any], found: str) -> None:
    from explicit_learning.launch.multi_node.store import NodeStore

    request = to_json(JoinRequest(node=pair.joining(), nnodes=2, sees_run=True))
    request["node"] |= changes
    with ThreadPoolExecutor() as pool:
        leading = pool.submit(pair.lead, ExitCode.INTERNAL)
        store = NodeStore(replace(pair.place, rank=1), seconds=30, stopped=lambda: False)
        store.put(join_request_of(1), request)
        reply = store.wait_for(JOIN_REPLY, seconds=30)
        store.put(receipt_of(1), True)
        with pytest.raises(MultiNodeError) as refused:
            leading.result()
    assert found in reply["refusal"]
    assert reply == {"manifest": None, "nnodes": 2, "refusal": str(refused.value), "exit_code": 70}


@pytest.mark.parametrize("accepts", [False, True])
def test_a_node_that_computes_other_numbers_is_refused_unless_that_is_accepted(pair: Pair, accepts: bool) -> None:
    libraries = replace(MACHINE.platform, libraries=MACHINE.platform.libraries | {"torch": "2.13.0"})
    other = replace(MACHINE, platform=libraries)
    pair.manifest = replace(pair.manifest, accept_changes=accepts)
    found = "/nodes/1/platform/libraries/torch is 2.13.0, node 0 has 2.11.0"
    with ThreadPoolExecutor() as pool:
        leading = pool.submit(pair.lead, ExitCode.DONE)
        if accepts:
            assert pair.follow(pair.joining(machine=other), lambda _: ended(1)) == ExitCode.DONE
            leading.result()
            (launch,) = read_launches(pair.manifest.run)
            assert launch.start.nodes == (MACHINE, other)
            assert [change.pointer for change in launch.start.accepted_changes] == ["/nodes/1/platform/libraries/torch"]
            return
        with pytest.raises(Refusal, match="node 0 does not start"):
            pair.follow(pair.joining(machine=other), never)
        with pytest.raises(MultiNodeError, match=found):
            leading.result()
    assert read_launches(pair.manifest.run) == ()


def test_a_node_with_other_files_of_the_program_is_refused(pair: Pair) -> None:
    other = replace(MACHINE, code=replace(MACHINE.code, files_sha256="5" * 64))
    with ThreadPoolExecutor() as pool:
        leading = pool.submit(pair.lead, ExitCode.INTERNAL)
        with pytest.raises(Refusal, match="the program's files on node 1 are not those on node 0"):
            pair.follow(pair.joining(machine=other), never)
        with pytest.raises(MultiNodeError, match="start the same code on all nodes"):
            leading.result()


def test_a_reply_with_another_plan_is_refused(pair: Pair) -> None:
    reply = to_json(JoinReply(manifest=pair.manifest, nnodes=2))
    assert read_join_reply(reply, 1, pair.joining()).manifest == pair.manifest
    reply["manifest"]["plan"]["seed"] = "abc"
    with pytest.raises(MultiNodeError, match="node 0 has another plan than node 1"):
        read_join_reply(reply, 1, pair.joining())


def test_a_report_that_breaks_its_schema_counts_as_none() -> None:
    report = to_json(ended(1))
    assert read_report(report, 1) == ended(1)
    report["ranks"]["1"]["outcome"]["optimizer_step"] = "abc"
    with pytest.raises(MultiNodeError, match="the report of node 1 breaks its schema"):
        read_report(report, 1)


def test_a_follower_that_expects_another_number_of_nodes_is_refused(pair: Pair) -> None:
    with ThreadPoolExecutor() as pool:
        leading = pool.submit(pair.lead, ExitCode.INTERNAL)
        with pytest.raises(Refusal):
            pair.follow(pair.joining(), never, count=3)
        with pytest.raises(MultiNodeError, match="node 1 was started with --nnodes 3, node 0 with --nnodes 2"):
            leading.result()


def test_a_node_whose_ranks_cannot_start_reports_why_and_the_other_learns_it_at_once(pair: Pair) -> None:
    told: list[str] = []

    def fails(_manifest: LaunchManifest, _watch: NodeWatch) -> NodeEnd:
        raise OSError(errno.ENOSPC, "No space left on device", "launch.json")

    def waits(_: LaunchManifest, watch: NodeWatch) -> NodeEnd:
        end = time.monotonic() + 30
        while (failure := watch.failure()) is None:
            assert time.monotonic() < end
            time.sleep(0.05)
        told.append(failure.reason)
        return NodeEnd(ranks={}, kill_reason=None)

    for launch_id, at_0, at_1 in (("launch-1", waits, fails), ("launch-2", fails, waits)):
        pair.manifest = replace(pair.manifest, launch_id=launch_id)
        with ThreadPoolExecutor() as pool:
            leading = pool.submit(pair.lead, ExitCode.IO, at_0)
            assert pair.follow(pair.joining(), at_1) == ExitCode.IO
            ends = leading.result()
        rank = "1" if at_1 is fails else "0"
        [end] = [end.ranks[rank] for end in ends if end.ranks]
        assert end.outcome is not None
        assert (end.exit_code, end.failed_first, end.outcome.code) == (74, True, ExitCode.IO)
        assert (end.outcome.message or "").startswith("disk full: [Errno 28] No space left on device: 'launch.json'")
        reason = "its ranks could not be run (OSError: [Errno 28] No space left on device: 'launch.json')"
        assert told.pop() == f"node {rank}: {reason}"


def test_a_leader_that_cannot_record_the_nodes_refuses_them_with_its_code(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    from explicit_learning.launch.multi_node import leader

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "events.jsonl")

    monkeypatch.setattr(leader, "record_start", full)
    with ThreadPoolExecutor() as pool:
        leading = pool.submit(pair.lead, ExitCode.IO)
        with pytest.raises(Refusal, match=r"node 0 does not start: OSError: \[Errno 28\]") as refused:
            pair.follow(pair.joining(), never)
        with pytest.raises(OSError, match=r"events\.jsonl"):
            leading.result()
    assert refused.value.exit_code == ExitCode.IO
