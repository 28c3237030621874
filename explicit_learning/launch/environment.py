"""What must be in the environment before Python or CUDA starts.

Allocators, hash seeds, thread counts and cuBLAS workspaces are read once, when a process starts; setting them in a
running rank has no effect, or half of it. They are therefore decided here, in one table with a reason for each,
exported before the launcher is executed, and recorded.

A person's own value is kept where it changes only speed or comfort. Where it would change results it is replaced, and
the record holds what was replaced: a run whose numbers depend on a line in a shell profile cannot be repeated.
Libraries read many more variables than anybody has a list of. So every variable that is not known to change no number
is removed, and the record holds those that name a library which computes.
"""

from __future__ import annotations

import os
import pwd
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from explicit_learning.files.child_environment import KEY_VARIABLE
from explicit_learning.files.resources import ROOT
from explicit_learning.plan.vllm_limits import CPU_CACHE_BYTES
from explicit_learning.rundir.launches import EnvironmentRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from explicit_learning.plan.typed_plan import Plan

__all__ = ["CACHES", "SETTINGS", "RankEnvironment", "Setting", "rank_environment", "scratch_environment"]

USER_VARIABLES = ("USER", "LOGNAME")
# Where the libraries of the lock keep caches, by variable, and the name of the folder that replaces one that cannot be
# used. Found in their sources: without its variable, most of them write below the home folder. The image sets all.
CACHES = {
    "XDG_CACHE_HOME": "cache",
    "HF_HOME": "huggingface",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "torch-extensions",
    "TORCH_HOME": "torch",
    "PYTORCH_KERNEL_CACHE_PATH": "torch-kernels",
    "TRITON_CACHE_DIR": "triton",
    "TRITON_HOME": "triton-home",
    "TILELANG_CACHE_DIR": "tilelang",
    "TVM_FFI_CACHE_DIR": "tvm-ffi",
    "NUMBA_CACHE_DIR": "numba",
    "CUDA_CACHE_PATH": "cuda",
    "CUDA_TILE_CACHE_DIR": "cuda-tile",
    "CUTE_DSL_CACHE_DIR": "cute-dsl",
    "QUACK_CACHE_DIR": "quack",
    "HUMMING_CACHE_DIR": "humming",
    "HUMMING_TMP_DIR": "humming-temporary",
    "VLLM_CACHE_ROOT": "vllm",
    "VLLM_CONFIG_ROOT": "vllm-config",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "MINFER_FMHA_CACHE_DIR": "minfer",
    "MM_SPARSE_ATTN_AOT_CACHE": "minfer-attention",
    "MPLCONFIGDIR": "matplotlib",
}
INDUCTOR = "TORCHINDUCTOR_CACHE_DIR"
# Always in the launch's private folder: what they hold belongs to one launch, and nothing is written to a home folder.
OF_LAUNCH = {
    "HF_DATASETS_CACHE": "datasets",
    "WANDB_CACHE_DIR": "wandb-cache",
    "WANDB_CONFIG_DIR": "wandb-config",
    "WANDB_DATA_DIR": "wandb-data",
}
# What ranks get as it is: the user, the terminal, the place of files, the scheduler, this program's own variables.
PASSED = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "HOSTNAME", "PWD", "TERM", "COLUMNS", "LINES", "NO_COLOR"),
        *("LANG", "LANGUAGE", "TZ", "TMPDIR", "TMP", "TEMP", "KRB5CCNAME", "container"),
        *("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "PYTHONUNBUFFERED", "PYTHONFAULTHANDLER"),
        *("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "ALL_PROXY", "NO_PROXY"),
        *("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
        *USER_VARIABLES,
        *CACHES,
    }
)
# This program's own variables; the launcher tells ranks what they need in those with the longer prefix.
OWN_PREFIX, INTERNAL_PREFIX = "EXPLICIT_", "EXPLICIT_LAUNCH"
# Those whose values are recorded; of another one, which may be a misspelt key, only that it was set.
OWN_RECORDED = frozenset(
    f"{OWN_PREFIX}{name}" for name in ("IMAGE_CACHE_DIR", "IMAGE_DIGEST", "RDZV_ENDPOINT", "REPORT_TO", "RUNS")
)
PASSED_PREFIXES = (
    *(OWN_PREFIX, "LC_", "XDG_", "SLURM", "SRUN_", "PMI_", "PMIX_", "KUBERNETES_", "APPTAINER_", "SINGULARITY_"),
)
# What passes too, because a machine cannot do without it, and is recorded: libraries, compilers, which GPUs, networks.
PASSED_AND_RECORDED = frozenset(
    {
        *("LD_LIBRARY_PATH", "LD_PRELOAD", "CC", "CXX", "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES"),
        *("LIBRARY_PATH", "CPATH", "CONDA_PREFIX", "TRITON_LIBCUDA_PATH", "RDMAV_FORK_SAFE", "IBV_FORK_SAFE"),
        *("NCCL_CUMEM_ENABLE", "NCCL_MNNVL_ENABLE", "NCCL_CROSS_NIC"),
        *("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"),
        *("NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_NET_GDR_LEVEL", "NCCL_TOPO_FILE", "NCCL_CONF_FILE"),
    }
)
PASSED_AND_RECORDED_PREFIXES = (
    *("NCCL_SOCKET_", "NCCL_IB_", "NCCL_DEBUG", "NCCL_P2P_", "NCCL_SHM_", "UCX_", "FI_", "TP_SOCKET_IFNAME"),
)
# Removed variables that are recorded: their libraries compute, or decide what computes.
COMPUTING_PREFIXES = (
    *("ATEN_", "TORCH", "PYTORCH_", "OMP_", "GOMP_", "KMP_", "MKL", "OPENBLAS_", "GOTO_", "BLIS_", "NPY_", "NUMPY_"),
    *("ONEDNN_", "DNNL_", "CUDA", "CUBLAS", "CUDNN", "CUFFT", "CUSPARSE", "CUSOLVER", "CUTLASS", "NVIDIA_", "NVRTC_"),
    *("NCCL_", "GLOO_", "TRITON_", "TILELANG_", "TVM_", "FLA_", "FLASH", "XFORMERS_", "VLLM_", "PYTHON", "GLIBC_"),
    *("MALLOC_", "LD_", "ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_", "DEEPSPEED_", "TRANSFORMERS_", "HF_", "PEFT_"),
    *("TRL_", "TOKENIZERS_", "RAYON_", "SAFETENSORS_", "CAUSAL_CONV1D_"),
)
NOT_RECORDED = "(not recorded)"
# Names that hold secrets, by the words that are in them; and values that carry one: a URL's user, a token's prefix.
SECRET = re.compile(r"TOKEN(?!IZ)|KEY|SECRET|PASS|CREDENTIAL|AUTH|COOKIE|HEADER|(^|_)PATS?(_|$)", re.IGNORECASE)
SECRET_VALUE = re.compile(r"://[^/\s]*@|\b(hf|sk|ghp|nvapi|wandb)[_-]\w|\bBearer\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One environment variable.

    Attributes:
        name: The variable.
        value: Its value, or a function of the plan and the number of usable CPU cores.
        applies: Whether it is set for a plan.
        forced: Whether it replaces a value that the user had set.
        reason: Why.
    """

    name: str
    value: str | Callable[[Plan, int], str]
    applies: Callable[[Plan], bool]
    forced: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnvironment:
    """The environment that ranks start with.

    Attributes:
        variables: All of it, for ``exec``.
        settings: What this program decided, and what it let through and is worth recording, by name.
        overridden: The user's values that were replaced or removed and could change numbers, by name.
        explicit: This program's own variables that the user set.
    """

    variables: dict[str, str]
    settings: dict[str, str]
    overridden: dict[str, str]
    explicit: dict[str, str]

    def record(self) -> EnvironmentRecord:
        """Return what a launch records of it, as JSON can hold it."""
        return EnvironmentRecord(
            settings=_shown(self.settings), overridden=_shown(self.overridden), explicit=_shown(self.explicit)
        )


def _shown(variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables without the values of secrets; bytes that are not UTF-8 are shown by their code."""

    def text(value: str) -> str:
        return os.fsencode(value).decode(errors="backslashreplace")

    return {
        text(name): NOT_RECORDED if SECRET.search(name) or SECRET_VALUE.search(value) else text(value)
        for name, value in variables.items()
    }


def _always(_plan: Plan) -> bool:
    return True


def _on_cpu(plan: Plan) -> bool:
    return plan.hardware.accelerator == "cpu"


def _on_cuda(plan: Plan) -> bool:
    return plan.hardware.accelerator == "cuda"


def _strict_on_cuda(plan: Plan) -> bool:
    return _on_cuda(plan) and plan.determinism == "strict"


def _share_of_cores(plan: Plan, cores: int) -> str:
    return str(max(1, cores // plan.hardware.world_size))


def _forced(name: str, value: str, applies: Callable[[Plan], bool], reason: str) -> Setting:
    return Setting(name=name, value=value, applies=applies, forced=True, reason=reason)


def _default(
    name: str, value: str | Callable[[Plan, int], str], applies: Callable[[Plan], bool], reason: str
) -> Setting:
    return Setting(name=name, value=value, applies=applies, forced=False, reason=reason)


SETTINGS: tuple[Setting, ...] = (
    _forced("PYTHONHASHSEED", "0", _always, "the order of sets of strings reaches files (PEFT's adapter_config.json)"),
    _forced("PYTHONNOUSERSITE", "1", _always, "packages in the home folder would shadow the locked ones"),
    _forced("PYTHONSAFEPATH", "1", _always, "a file in the current folder would shadow a package of its name"),
    _forced("PYTHONUTF8", "1", _always, "text files must not be read in the encoding of the host's locale"),
    _forced("HF_HUB_OFFLINE", "1", _always, "everything a run reads is named and hashed in its plan"),
    _forced("TRANSFORMERS_OFFLINE", "1", _always, "same"),
    _forced("HF_DATASETS_OFFLINE", "1", _always, "same"),
    _forced("TOKENIZERS_PARALLELISM", "false", _always, "its threads deadlock in a forked process"),
    _default("HF_HUB_DISABLE_TELEMETRY", "1", _always, "a run reports its use to nobody"),
    _default("VLLM_NO_USAGE_STATS", "1", _always, "same"),
    _forced("DO_NOT_TRACK", "1", _always, "same"),
    _forced("MLFLOW_DISABLE_TELEMETRY", "true", _always, "same"),
    _forced("MLFLOW_ALLOW_FILE_STORE", "true", _always, "MLflow's other store needs a database; it only warns of this"),
    _forced("MLFLOW_ENABLE_ASYNC_LOGGING", "false", _always, "what was logged is in its file when a run is killed"),
    _forced("WANDB_MODE", "offline", _always, "a tracker writes files and opens no connection, so none asks for a key"),
    _forced("WANDB_SILENT", "true", _always, "it would write to the console of the run"),
    _forced("WANDB_CONSOLE", "off", _always, "it would replace the rank's standard output"),
    _forced("WANDB_ERROR_REPORTING", "false", _always, "a run reports its errors to nobody"),
    _forced("WANDB_DISABLE_GIT", "true", _always, "the run's records name its commit; a tracker starts no git"),
    _forced("WANDB_DISABLE_CODE", "true", _always, "same, for a copy of the code"),
    _forced("WANDB_SYMLINK", "false", _always, "a run directory holds no links, so that it can be moved"),
    _forced("NETRC", "/dev/null", _always, "a tracker has no use for passwords in the home folder"),
    _forced("GIT_PYTHON_REFRESH", "quiet", _always, "MLflow's library fails without git"),
    _forced("VLLM_ENABLE_V1_MULTIPROCESSING", "0", _always, "an engine runs in its rank's process, which checks it"),
    _forced("VLLM_BATCH_INVARIANT", "0", _always, "the locked vLLM's batch-invariant mode refuses gated-delta layers"),
    _default("GLOO_SOCKET_IFNAME", "lo", _always, "it connects ranks of one machine; a container may have no other"),
    _forced(
        "MALLOC_MMAP_THRESHOLD_",
        "4000000000",
        _on_cpu,
        "glibc otherwise maps and unmaps memory for every larger tensor, in each step",
    ),
    _forced("MALLOC_TRIM_THRESHOLD_", "4000000000", _on_cpu, "same, for memory given back at the top of the heap"),
    _forced(
        "OMP_NUM_THREADS",
        "1",
        _on_cpu,
        "the number of threads decides in which order sums are taken, so results would depend on the machine's size "
        "and load; and two threads on two busy cores are much slower than one at the sizes that CPU runs have",
    ),
    _forced("MKL_NUM_THREADS", "1", _on_cpu, "overrides OMP_NUM_THREADS in MKL"),
    _forced("VLLM_CPU_OMP_THREADS_BIND", "nobind", _on_cpu, "an engine would bind its rank's threads to cores"),
    _forced("VLLM_CPU_KVCACHE_SPACE", str(CPU_CACHE_BYTES // 2**30), _on_cpu, "otherwise a share of all memory; GiB"),
    _forced("TORCH_COMPILE_DISABLE", "1", _on_cpu, "vLLM would compile its sampler first: half a minute"),
    _forced("CUDA_VISIBLE_DEVICES", "", _on_cpu, "libraries prefer a GPU they can see, also for a CPU plan"),
    _default("OMP_NUM_THREADS", _share_of_cores, _on_cuda, "the host's part is image preprocessing: cores over ranks"),
    _forced("CUDA_DEVICE_ORDER", "PCI_BUS_ID", _on_cuda, "NVML's order, in which the gates saw the GPUs"),
    _forced(
        "FLA_TILELANG",
        "0",
        _on_cuda,
        "flash-linear-attention otherwise computes a part of the backward pass with TileLang, on Hopper alone and with "
        "nvcc at run time; Triton's kernels are the ones that are tested (`make test-kernels`)",
    ),
    _forced(
        "VLLM_USE_FLASHINFER_SAMPLER",
        "0",
        _on_cuda,
        "FlashInfer's sampler is compiled at run time, with compilers that the image lacks, and takes no seeds",
    ),
    _forced("CUBLAS_WORKSPACE_CONFIG", ":4096:8", _strict_on_cuda, "cuBLAS is deterministic only with a fixed one"),
    _forced(
        "FLASH_ATTENTION_DETERMINISTIC",
        "1",
        _strict_on_cuda,
        "transformers hands it to flash-attention, whose backward pass otherwise adds the queries' gradient atomically",
    ),
    _forced(
        "CAUSAL_CONV1D_DETERMINISTIC",
        "1",
        _strict_on_cuda,
        "its backward pass otherwise adds the weight's gradient atomically",
    ),
    _forced("NVIDIA_TF32_OVERRIDE", "0", _strict_on_cuda, "the plan's precision is not TF32"),
    _forced("NCCL_ALGO", "Ring", _strict_on_cuda, "NCCL otherwise chooses by message size, and each adds differently"),
    _forced("NCCL_PROTO", "Simple", _strict_on_cuda, "same"),
    _forced(
        "NCCL_NVLS_ENABLE", "0", _strict_on_cuda, "sums inside the NVLink switch differ from call to call (nccl#1497)"
    ),
)


def rank_environment(
    plan: Plan, base_environment: Mapping[str, str], *, interface: str | None = None, cores: int | None = None
) -> RankEnvironment:
    """Decide the environment of the launcher and the ranks.

    Args:
        plan: The frozen plan.
        base_environment: The environment that this process was started with.
        interface: The network interface that leads to the other nodes; ``None`` on one machine.
        cores: Usable CPU cores; by default those that this process may run on.
    """
    cores = len(os.sched_getaffinity(0)) if cores is None else cores
    applied = [setting for setting in SETTINGS if setting.applies(plan)]
    decided_names = {setting.name for setting in applied} | {"PYTHONPATH"}
    kept = {name: value for name, value in base_environment.items() if name in decided_names or _passes(name)}
    overridden = {
        name: value
        for name, value in base_environment.items()
        if name not in kept and name.startswith(COMPUTING_PREFIXES)
    }
    explicit = {
        name: value if name in OWN_RECORDED else NOT_RECORDED
        for name, value in sorted(base_environment.items())
        if name.startswith(OWN_PREFIX) and not name.startswith(INTERNAL_PREFIX)
    }
    settings = {name: value for name, value in kept.items() if _is_recorded(name)}
    for setting in applied:
        decided = setting.value if isinstance(setting.value, str) else setting.value(plan, cores)
        if interface is not None and setting.name == "GLOO_SOCKET_IFNAME":
            decided = interface  # the loopback interface leads nowhere, and Gloo would guess by the host's name
        own = kept.get(setting.name)
        if own is not None and own != decided and setting.forced:
            overridden[setting.name] = own
        settings[setting.name] = decided if setting.forced or own is None else own
    if interface is not None:
        settings["NCCL_SOCKET_IFNAME"] = kept.get("NCCL_SOCKET_IFNAME", interface)
    # ``-m explicit_learning`` finds this code from any folder, and nothing stands before the environment's packages.
    if kept.get("PYTHONPATH") not in {None, "", str(ROOT)}:
        overridden["PYTHONPATH"] = kept["PYTHONPATH"]
    variables = kept | settings | {"PYTHONPATH": str(ROOT)}
    return RankEnvironment(variables=variables, settings=settings, overridden=overridden, explicit=explicit)


def _passes(name: str) -> bool:
    if name == KEY_VARIABLE:  # whoever signs takes it from its own environment
        return False
    return name in PASSED or name.startswith(PASSED_PREFIXES) or _is_recorded(name)


def _is_recorded(name: str) -> bool:
    return name in PASSED_AND_RECORDED or name.startswith(PASSED_AND_RECORDED_PREFIXES)


def scratch_environment(
    environment: Mapping[str, str], scratch: Path, *, user_is_known: bool | None = None
) -> dict[str, str]:
    """Return the variables that place caches in a folder that is removed at the end of the launch.

    A container started under a uid without a passwd entry has no home, and there `getpass.getuser`, by which some
    libraries name their caches, raises. A cache that the user or the image has placed stays where it is if it can be
    written (Apptainer mounts an image's volumes read-only). Where the home folder is missing or read-only, caches that
    are not placed are placed here. Always placed here are the cache of Hugging Face datasets, whose content would
    outlive the data it was made from, and what a tracker writes beside its files in the run directory.

    Args:
        environment: The environment to complete.
        scratch: An existing private folder.
        user_is_known: Whether the current uid has a passwd entry; looked up by default.
    """
    known = _user_is_known() if user_is_known is None else user_is_known
    result = {name: str(scratch / folder) for name, folder in OF_LAUNCH.items()}
    if not environment.get(INDUCTOR):  # its default is a folder in the temporary one, which nobody removes
        result[INDUCTOR] = str(scratch / CACHES[INDUCTOR])
    if not known:
        result |= {name: "explicit" for name in USER_VARIABLES if not environment.get(name)}
    home = environment.get("HOME", "")
    homeless = not (home and os.access(home, os.W_OK))
    for name, folder in CACHES.items():
        placed = environment.get(name)
        if homeless if not placed else not _can_hold_files(Path(placed)):
            result[name] = str(scratch / folder)
    if homeless and not (known and Path(home).is_dir()):
        result["HOME"] = str(scratch)
    return result


def _can_hold_files(folder: Path) -> bool:
    """Whether a folder is there, or could be made, with files in it."""
    existing = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    return os.access(existing, os.W_OK | os.X_OK)


def _user_is_known() -> bool:
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return False
    return True
