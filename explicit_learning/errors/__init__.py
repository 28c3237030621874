"""How this program refuses: faults, exit codes, and how they are collected and shown."""

from __future__ import annotations

from explicit_learning.errors.collector import Context, FaultCollector
from explicit_learning.errors.faults import FOUND_LIMIT, ExitCode, Fault, Refusal, exit_code_of, found_text
from explicit_learning.errors.json_answer import json_answer, print_json

__all__ = [
    "FOUND_LIMIT",
    "Context",
    "ExitCode",
    "Fault",
    "FaultCollector",
    "Refusal",
    "exit_code_of",
    "found_text",
    "json_answer",
    "print_json",
]
