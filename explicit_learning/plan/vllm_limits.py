"""What vLLM's engine takes, whatever a plan asks for.

The limits are those of vLLM 0.31; `tests/vllm/test_limits.py` compares them with the installed package.
"""

from __future__ import annotations

__all__ = ["CPU_CACHE_BYTES", "MOST_TEMPERATURE", "VLLM_LORA_RANKS", "engine_rank"]

# vllm.config.lora.MaxLoRARanks: the sizes that an engine can reserve for an adapter.
VLLM_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
# vllm.SamplingParams refuses a request above it.
MOST_TEMPERATURE = 2
# The key and value cache of an engine on a CPU, where vLLM would otherwise take a share of the machine's memory.
CPU_CACHE_BYTES = 2**30


def engine_rank(rank: int) -> int:
    """Return the rank that an engine reserves for adapters of a rank: the smallest of its sizes that holds them.

    Raises:
        ValueError: If none does.
    """
    sizes = [size for size in VLLM_LORA_RANKS if size >= rank]
    if not sizes:
        raise ValueError(f"rank {rank} is above {VLLM_LORA_RANKS[-1]}, the largest of vLLM's sizes for adapters")
    return sizes[0]
