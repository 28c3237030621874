"""The limits that plans are checked against are those of the installed vLLM."""

from __future__ import annotations

import importlib
import typing

import pytest

from explicit_learning.plan.vllm_limits import MOST_TEMPERATURE, VLLM_LORA_RANKS

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]


def test_sizes_of_adapters_are_the_engines() -> None:
    ranks = importlib.import_module("vllm.config.lora").MaxLoRARanks
    assert typing.get_args(ranks) == VLLM_LORA_RANKS


def test_the_highest_temperature_is_the_engines() -> None:
    sampling = importlib.import_module("vllm").SamplingParams
    assert sampling(temperature=MOST_TEMPERATURE).temperature == MOST_TEMPERATURE
    refusal = importlib.import_module("vllm.exceptions").VLLMValidationError
    with pytest.raises(refusal, match="temperature must be in"):
        sampling(temperature=MOST_TEMPERATURE + 0.001)
