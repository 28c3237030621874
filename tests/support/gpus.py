"""GPUs as NVML would report them."""

from __future__ import annotations

from typing import Any

from explicit_learning.gates.nvml import UNSUPPORTED, Gpu


def gpu(**fields: Any) -> Gpu:
    """Return an idle H200, with these fields instead."""
    return Gpu(
        **{
            "index": 0,
            "uuid": "GPU-8932f937-d72c",
            "name": "NVIDIA H200",
            "compute_capability": "9.0",
            "memory_bytes": 2**37,
            "pci_bus_id": UNSUPPORTED,
            "mig_mode": "disabled",
            "ecc_mode": "enabled",
            "compute_mode": "default",
            "vbios_version": UNSUPPORTED,
            "max_sm_clock_mhz": UNSUPPORTED,
            "max_memory_clock_mhz": UNSUPPORTED,
            "application_sm_clock_mhz": UNSUPPORTED,
            "power_limit_milliwatt": UNSUPPORTED,
            "problem": None,
            **fields,
        }
    )
