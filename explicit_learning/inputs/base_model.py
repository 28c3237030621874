"""The base model: whole, as it was frozen, and of a kind that ranks can train adapters on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import Context, Fault, Refusal
from explicit_learning.files.hashing import snapshot_sha256
from explicit_learning.inputs.identities import identity, require_identity
from explicit_learning.model_files.architecture import architecture_faults, model_config
from explicit_learning.model_files.folders import model_structure
from explicit_learning.model_files.terminal_tokens import terminal_tokens
from explicit_learning.model_files.weights import dropout_faults, linear_modules, quantisation_faults

if TYPE_CHECKING:
    from pathlib import Path


__all__ = ["BaseModel", "position_faults", "read_base_model"]

CONTEXT = Context(gate="model", fix="restore the model's files; without them ranks cannot load it")


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseModel:
    """A base model that ranks can train adapters on.

    Attributes:
        folder: Its folder.
        terminal: The tokens that end its completions.
        linear: Its linear modules, full name to shape (out, in).
        positions: Longest sequence that it is made for. Unit: tokens.
    """

    folder: Path
    terminal: tuple[int, ...]
    linear: dict[str, tuple[int, int]]
    positions: int

    def snapshot_sha256(self) -> str:
        """Return the identity of all its files.

        Raises:
            Refusal: With exit code 74 if a file cannot be read.
        """
        return identity(self.folder, snapshot_sha256, CONTEXT)


def read_base_model(folder: Path, *, frozen: str | None = None) -> BaseModel:
    """Read a model folder.

    Args:
        folder: The folder.
        frozen: The identity it must have; ``None`` in a draft.

    Raises:
        Refusal: If a file is missing or broken, the model is another one than the frozen one, it is of another
            architecture or does not say how large it is, it is quantised, or it drops attention weights at random.
    """
    if faults := model_structure(folder):
        raise Refusal(faults)
    require_identity(folder, snapshot_sha256, CONTEXT, frozen=frozen, pointer="/model/snapshot_sha256")
    try:
        if faults := architecture_faults(folder) or quantisation_faults(folder) + dropout_faults(folder):
            raise Refusal(faults)
        return BaseModel(
            folder=folder,
            terminal=terminal_tokens(folder),
            linear=linear_modules(folder),
            positions=model_config(folder)["text_config"]["max_position_embeddings"],
        )
    except OSError as error:
        found = f"cannot be read: {error.strerror or error}"
        raise CONTEXT.refusal(file=error.filename or folder, found=found, expected="readable files") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        found = str(error) if isinstance(error, ValueError) else f"settings of an unknown form: {error!r}"
        expected = "the configuration, tokenizer and weight files of a model"
        raise CONTEXT.refusal(file=folder, found=found, expected=expected) from None


def position_faults(base: BaseModel, plan: dict[str, Any], *, file: str) -> list[Fault]:
    """Return which sequences of a plan are longer than its model is made for.

    Args:
        base: The model.
        plan: The plan's document, or a draft's with its defaults; its groups here have passed the schema.
        file: The document's file.
    """
    lengths = {"/generation/context_tokens": plan["generation"]["context_tokens"]}
    if plan["vllm"] is not None:
        lengths["/vllm/max_model_len"] = plan["vllm"]["max_model_len"]
    return [
        CONTEXT.fault(
            file=file,
            pointer=pointer,
            found=str(length),
            expected=f"at most {base.positions}, the model's max_position_embeddings",
            fix=f"lower it to {base.positions} or less",
        )
        for pointer, length in lengths.items()
        if length > base.positions
    ]
