"""A refusal crosses a process boundary whole."""

import pickle

from explicit_learning.errors import Context, ExitCode, Refusal

CONTEXT = Context(gate="data", fix="restore it", exit_code=ExitCode.IO)


def test_a_refusal_is_pickled_with_its_faults_and_notes() -> None:
    faults = [CONTEXT.fault(found="8", expected="7"), CONTEXT.fault(found="9", expected="7", pointer="/gold")]
    refusal = Refusal(faults)
    refusal.add_note("in a worker")
    copy = pickle.loads(pickle.dumps(refusal))  # noqa: S301 - this test's own
    assert (copy.faults, copy.exit_code, str(copy)) == (tuple(faults), ExitCode.IO, str(refusal))
    assert copy.__notes__ == ["in a worker"]
