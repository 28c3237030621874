"""How this program refuses: faults, exit codes, and how they are collected and shown."""

from __future__ import annotations

from explicit_learning.errors.collector import LIMIT, Context, FaultCollector
from explicit_learning.errors.faults import (
    FOUND_LIMIT,
    ExitCode,
    Fault,
    Refusal,
    beginning_of,
    exit_code_of,
    found_text,
)
from explicit_learning.errors.json_answer import json_answer, print_json

__all__ = [
    "FOUND_LIMIT",
    "LIMIT",
    "Context",
    "ExitCode",
    "Fault",
    "FaultCollector",
    "Refusal",
    "beginning_of",
    "exit_code_of",
    "found_text",
    "json_answer",
    "print_json",
]
