"""Where two plans differ, and which fields only name a plan or say where something lies.

Fields are not listed to be compared, but to be left out: a field that is added to plans is compared without a change
here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from explicit_learning.files.schema import pointer

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["NAMES", "PATHS", "plan_differences"]

# What names a plan. The commit at freezing is reported by each run, and an arm may be added to an experiment later.
NAMES = frozenset({"/arm", "/run_id", "/frozen_config_sha256", "/code_commit", "/code_dirty"})
# Paths start at the plan's folder; the hashes beside them are compared.
PATHS = frozenset(
    {"/model/path", "/initial_adapter/path", "/prompt/path", "/data/asset_root", "/validation/slots/path"}
) | {f"/data/{name}/path" for name in ("dataset", "dataset_manifest", "evaluation_manifest")}


def plan_differences(
    one: dict[str, Any], other: dict[str, Any], *, left_out: frozenset[str] = frozenset()
) -> Iterator[tuple[str, Any, Any]]:
    """Yield the JSON pointer and both values of each field that differs, in order.

    Args:
        one: A plan's document, or a filled draft.
        other: Another one.
        left_out: Pointers of fields and groups that are not compared.
    """
    yield from _differences(one, other, left_out, ())


def _differences(
    one: Any,  # noqa: ANN401 - any JSON value
    other: Any,  # noqa: ANN401 - any JSON value
    left_out: frozenset[str],
    parts: tuple[str, ...],
) -> Iterator[tuple[str, Any, Any]]:
    where = pointer(parts)
    if one == other or where in left_out:
        return
    if not (isinstance(one, dict) and isinstance(other, dict)):
        yield where, one, other
        return
    for name in sorted({*one, *other}):
        if not name.startswith("$"):
            yield from _differences(one.get(name), other.get(name), left_out, (*parts, name))
