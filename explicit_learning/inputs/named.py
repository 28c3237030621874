"""What a plan or a draft names, resolved and checked in one way for freezing, gates and evaluation.

Freezing writes down what is measured here; gates and evaluation ask for what was frozen. The data set is read after
the rest (`explicit_learning.inputs.data`), because a draft's may have to be made first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from explicit_learning.data.prompt import load_system_prompt
from explicit_learning.errors import Context, Refusal
from explicit_learning.files.hashing import sha256_file
from explicit_learning.inputs.base_model import BaseModel, read_base_model
from explicit_learning.inputs.identities import identity, require_identity
from explicit_learning.inputs.initial_adapter import AdapterFolder, read_initial_adapter
from explicit_learning.inputs.lora_targets import resolve_targets

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from explicit_learning.data.dataset import CheckedDataset
    from explicit_learning.errors import Fault
    from explicit_learning.plan.typed_plan import Lora

__all__ = ["Inputs", "Named", "SystemPrompt", "read_inputs", "read_system_prompt"]

PROMPT = Context(gate="prompt")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A file or folder that a plan or draft names.

    Attributes:
        path: Where it lies.
        sha256: The identity that was frozen; ``None`` in a draft.
    """

    path: Path
    sha256: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemPrompt:
    """The system prompt: its file and its text."""

    file: Path
    text: str

    def sha256(self) -> str:
        """Return the file's hash.

        Raises:
            Refusal: With exit code 74 if it cannot be read.
        """
        return identity(self.file, sha256_file, PROMPT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What a plan or draft names; ``None`` stands for what is not named, or was refused.

    Attributes:
        model: The base model.
        adapter: The initial adapter.
        prompt: The system prompt.
        data: The data set, once it was read; its own faults say what is wrong with it.
        faults: Everything that is wrong with them.
        warnings: What is odd about them, and permitted.
        not_checked: What was not looked at, because the plan itself is refused.
    """

    model: BaseModel | None
    adapter: AdapterFolder | None
    prompt: SystemPrompt | None
    data: CheckedDataset | None = None
    faults: tuple[Fault, ...]
    warnings: tuple[str, ...] = ()
    not_checked: tuple[str, ...] = ()


def read_inputs(
    *, model: Named | None, adapter: Named | None, prompt: Named | None, lora: Lora | None, file: str
) -> Inputs:
    """Read and check all inputs but the data.

    Args:
        model: The base model.
        adapter: The initial adapter.
        prompt: The system prompt.
        lora: The adapter's shape. As with the others, ``None`` leaves out whatever needs it.
        file: The plan or draft, for faults about its own fields.
    """
    faults: list[Fault] = []

    def read(named: Named | None, reader: Callable[[Named], T]) -> T | None:
        try:
            return None if named is None else reader(named)
        except Refusal as refusal:
            faults.extend(refusal.faults)
            return None

    base = read(model, lambda named: read_base_model(named.path, frozen=named.sha256))
    text = read(prompt, lambda named: read_system_prompt(named.path, frozen=named.sha256))
    targets = None
    if base is not None and lora is not None:
        try:
            targets = resolve_targets(base.linear, lora, file=file)
        except Refusal as refusal:
            faults += refusal.faults
    start = read(
        adapter,
        lambda named: read_initial_adapter(
            named.path, frozen=named.sha256, lora=lora, model=None if targets is None else base
        ),
    )
    return Inputs(model=base, adapter=start, prompt=text, faults=tuple(faults))


def read_system_prompt(path: Path, *, frozen: str | None = None) -> SystemPrompt:
    """Read the system prompt.

    Raises:
        Refusal: If it cannot be read, holds no text, or is another file than the frozen one.
    """
    text = load_system_prompt(path)
    require_identity(path, sha256_file, PROMPT, frozen=frozen, pointer="/prompt/sha256")
    return SystemPrompt(file=path, text=text)
