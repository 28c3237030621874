"""What ranks find in their environment, and why."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from explicit_learning.files.resources import ROOT
from explicit_learning.launch.environment import CACHES, OF_LAUNCH, SETTINGS, rank_environment, scratch_environment
from tests.support.launches import plan


def of_launch(scratch: Path) -> dict[str, str]:
    return {name: str(scratch / folder) for name, folder in OF_LAUNCH.items()}


def test_trackers_stay_offline_whatever_the_user_set() -> None:
    own = {"WANDB_MODE": "online", "WANDB_API_KEY": "a key", "MLFLOW_TRACKING_URI": "http://host", "NETRC": "/a/netrc"}
    environment = rank_environment(plan(), own)
    assert {name: environment.variables.get(name) for name in own} == {
        "WANDB_MODE": "offline",
        "WANDB_API_KEY": None,
        "MLFLOW_TRACKING_URI": None,
        "NETRC": "/dev/null",
    }
    assert environment.overridden == {"WANDB_MODE": "online", "NETRC": "/a/netrc"}
    assert environment.settings.items() >= {"DO_NOT_TRACK": "1", "MLFLOW_DISABLE_TELEMETRY": "true"}.items()


def test_cpu_ranks_get_allocator_threads_and_no_gpu() -> None:
    settings = rank_environment(plan(world_size=1), {}, cores=64).settings
    assert settings["MALLOC_MMAP_THRESHOLD_"] == "4000000000"
    assert settings["MALLOC_TRIM_THRESHOLD_"] == "4000000000"
    assert (settings["OMP_NUM_THREADS"], settings["CUDA_VISIBLE_DEVICES"]) == ("1", "")
    assert "CUBLAS_WORKSPACE_CONFIG" not in settings


@pytest.mark.parametrize(("cores", "world_size", "threads"), [(64, 8, "8"), (4, 8, "1"), (9, 2, "4")])
def test_gpu_ranks_share_the_cores(cores: int, world_size: int, threads: str) -> None:
    settings = rank_environment(plan(accelerator="cuda", world_size=world_size), {}, cores=cores).settings
    assert settings["OMP_NUM_THREADS"] == threads
    assert "MALLOC_MMAP_THRESHOLD_" not in settings
    assert "CUDA_VISIBLE_DEVICES" not in settings


@pytest.mark.parametrize("own", [{}, {"FLA_TILELANG": "1"}])
def test_tilelang_computes_nothing_on_gpus(own: dict[str, str]) -> None:
    environment = rank_environment(plan(accelerator="cuda"), own)
    assert environment.variables["FLA_TILELANG"] == environment.settings["FLA_TILELANG"] == "0"
    assert environment.overridden == own


def test_strict_runs_on_gpus_pin_cublas_and_nccl() -> None:
    strict = rank_environment(plan(accelerator="cuda", determinism="strict"), {}).settings
    seeded = rank_environment(plan(accelerator="cuda"), {}).settings
    assert {name: strict[name] for name in sorted(strict.keys() - seeded.keys())} == {
        "CAUSAL_CONV1D_DETERMINISTIC": "1",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "FLASH_ATTENTION_DETERMINISTIC": "1",
        "NCCL_ALGO": "Ring",
        "NCCL_NVLS_ENABLE": "0",
        "NCCL_PROTO": "Simple",
        "NVIDIA_TF32_OVERRIDE": "0",
    }


def test_what_changes_results_is_replaced_and_recorded() -> None:
    own = {"PYTHONHASHSEED": "7", "HF_HUB_OFFLINE": "1", "ACCELERATE_MIXED_PRECISION": "fp16", "LANG": "C.UTF-8"}
    environment = rank_environment(plan(), own)
    assert environment.overridden == {"PYTHONHASHSEED": "7", "ACCELERATE_MIXED_PRECISION": "fp16"}
    assert environment.variables["PYTHONHASHSEED"] == "0"
    assert environment.variables["LANG"] == "C.UTF-8"
    assert "ACCELERATE_MIXED_PRECISION" not in environment.variables
    assert "LANG" not in environment.settings


@pytest.mark.parametrize(
    "name",
    [
        *("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_DEFAULT_FPMATH_MODE", "MKL_CBWR", "MKL_DYNAMIC"),
        *("OPENBLAS_CORETYPE", "NPY_DISABLE_CPU_FEATURES", "KMP_AFFINITY", "OMP_SCHEDULE", "GLIBC_TUNABLES"),
        *("TORCH_BLAS_PREFER_CUBLASLT", "TORCHINDUCTOR_MAX_AUTOTUNE", "PYTORCH_CUDA_ALLOC_CONF", "TORCH_LOGS"),
        *("CUDA_LAUNCH_BLOCKING", "CUBLASLT_LOG_LEVEL", "CUDNN_LOGINFO_DBG", "NCCL_BUFFSIZE", "NCCL_NTHREADS"),
        *("TRITON_F32_DEFAULT", "TILELANG_DISABLE_CACHE", "FLA_USE_TMA", "PYTHONOPTIMIZE", "PYTHONHOME"),
        "CAUSAL_CONV1D_FORCE_BUILD",
    ],
)
@pytest.mark.parametrize("accelerator", ["cpu", "cuda"])
def test_variables_that_choose_how_to_compute_do_not_reach_ranks(name: str, accelerator: str) -> None:
    environment = rank_environment(plan(accelerator=accelerator), {name: "1"})
    assert name not in environment.variables
    assert environment.overridden == {name: "1"}


def test_what_a_machine_needs_passes_and_is_recorded() -> None:
    own = {
        "NCCL_SOCKET_IFNAME": "ib0",
        "NCCL_IB_HCA": "mlx5_0",
        "NCCL_DEBUG": "INFO",
        "LD_LIBRARY_PATH": "/opt/driver",
        "CUDA_VISIBLE_DEVICES": "1",
    }
    environment = rank_environment(plan(accelerator="cuda"), own)
    assert own.items() <= environment.variables.items()
    assert own.items() <= environment.settings.items()
    assert environment.overridden == {}


def test_what_has_to_do_with_the_user_or_the_scheduler_passes() -> None:
    own = {"PATH": "/bin", "SLURM_JOB_ID": "7", "EXPLICIT_RUNS": "/runs", "https_proxy": "http://proxy", "TMPDIR": "/t"}
    environment = rank_environment(plan(), own)
    assert own.items() <= environment.variables.items()
    assert not own.keys() & environment.settings.keys()


def test_what_is_unknown_is_removed_and_secrets_are_not_recorded() -> None:
    environment = rank_environment(plan(), {"UNKNOWN_LIBRARY_MODE": "fast", "HF_TOKEN": "hf_secret"})
    assert not {"UNKNOWN_LIBRARY_MODE", "HF_TOKEN"} & environment.variables.keys()
    assert environment.record().overridden == {"HF_TOKEN": "(not recorded)"}


def test_what_changes_only_comfort_stands_and_is_recorded() -> None:
    environment = rank_environment(plan(accelerator="cuda"), {"OMP_NUM_THREADS": "3"}, cores=64)
    assert environment.settings["OMP_NUM_THREADS"] == "3"
    assert environment.overridden == {}


def test_every_setting_has_a_reason() -> None:
    assert [setting.name for setting in SETTINGS if not setting.reason] == []


def test_the_package_is_found_from_anywhere_and_the_users_path_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "explicit_learning").mkdir()
    (tmp_path / "explicit_learning" / "__init__.py").write_text("raise SystemExit('the wrong package')")
    environment = rank_environment(plan(), dict(os.environ) | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"})
    variables = environment.variables
    assert variables["PYTHONPATH"] == str(ROOT)
    assert environment.overridden["PYTHONPATH"] == f"{tmp_path}{os.pathsep}{ROOT}"
    code = "import explicit_learning; print(explicit_learning.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", code], env=variables, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == str(ROOT / "explicit_learning" / "__init__.py")


def test_a_known_user_keeps_home_and_caches(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    assert scratch_environment({"HOME": str(tmp_path)}, scratch, user_is_known=True) == {
        **of_launch(scratch),
        # Its default is a folder in the temporary one, which would stay.
        "TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor"),
    }
    own = {"HOME": str(tmp_path), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "their own")}
    assert scratch_environment(own, scratch, user_is_known=True) == of_launch(scratch)


def test_an_unknown_user_gets_a_name_a_home_and_caches(tmp_path: Path) -> None:
    own = {"HOME": "/missing", "TRITON_CACHE_DIR": str(tmp_path / "their own")}
    found = scratch_environment(own, tmp_path, user_is_known=False)
    assert found == {
        **of_launch(tmp_path),
        "USER": "explicit",
        "LOGNAME": "explicit",
        "HOME": str(tmp_path),
        **{name: str(tmp_path / folder) for name, folder in CACHES.items() if name != "TRITON_CACHE_DIR"},
    }


@pytest.mark.parametrize("home", ["missing", "read-only"])
def test_a_known_user_whose_home_cannot_be_written_to_gets_caches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    """As in a SIF under a uid that the image knows. What a read-only home holds (`.netrc`) stays readable."""
    folder, scratch = tmp_path / home, tmp_path / "scratch"
    if home == "read-only":
        folder.mkdir()
        access = os.access
        monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != folder and access(path, mode))
    found = scratch_environment({"HOME": str(folder)}, scratch, user_is_known=True)
    caches = {name: str(scratch / cache) for name, cache in CACHES.items()}
    own = of_launch(scratch) | ({"HOME": str(scratch)} if home == "missing" else {})
    assert found == caches | own
    assert len(set(caches.values())) == len(CACHES)


@pytest.mark.slow
def test_libraries_keep_their_caches_where_they_are_told(tmp_path: Path) -> None:
    """Of the libraries that are installed with the subset, too; each by its own function."""
    code = (
        "import os\n"
        "from pathlib import Path\n"
        "from explicit_learning.launch.environment import scratch_environment\n"
        f"os.environ.update(scratch_environment(os.environ, Path({str(tmp_path)!r}), user_is_known=True))\n"
        "import triton.knobs, torch.hub, torch.utils.cpp_extension, torch._inductor.runtime.cache_dir_utils\n"
        "print(triton.knobs.cache.dir, triton.knobs.cache.home_dir, torch.hub.get_dir(), sep='\\n')\n"
        "print(torch._inductor.runtime.cache_dir_utils.cache_dir())\n"
        "print(torch.utils.cpp_extension._get_build_directory('name', False))\n"
    )
    bare = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": "/missing"}
    found = subprocess.run([sys.executable, "-c", code], env=bare, capture_output=True, text=True, check=True)
    *folders, extension = (Path(line) for line in found.stdout.splitlines())
    assert folders == [tmp_path / each for each in ("triton", "triton-home", "torch/hub", "inductor")]
    assert extension.is_relative_to(tmp_path / "torch-extensions")


def test_a_cache_where_nobody_can_write_is_moved(tmp_path: Path) -> None:
    """As in Apptainer, which mounts the folder that the image's variables name read-only."""
    (tmp_path / "file").touch()
    usable, unusable = str(tmp_path / "new" / "cache"), str(tmp_path / "file" / "cache")
    own = {"HOME": str(tmp_path), "XDG_CACHE_HOME": unusable, "HF_HOME": usable, "TORCHINDUCTOR_CACHE_DIR": unusable}
    assert scratch_environment(own, tmp_path / "scratch", user_is_known=True) == {
        **of_launch(tmp_path / "scratch"),
        "XDG_CACHE_HOME": str(tmp_path / "scratch" / "cache"),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "scratch" / "inductor"),
    }


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_uid_without_a_passwd_entry_has_a_user_name(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    bare = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    code = (
        "import getpass, os\n"
        "from pathlib import Path\n"
        "from explicit_learning.launch.environment import scratch_environment\n"
        "os.setuid(54321)\n"
        f"os.environ.update(scratch_environment(os.environ, Path({str(tmp_path)!r})))\n"
        "print(getpass.getuser(), Path.home())\n"
    )
    found = subprocess.run([sys.executable, "-c", code], env=bare, capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["explicit", str(tmp_path)]


def test_variables_that_are_not_utf_8_are_recorded_by_their_bytes() -> None:
    name, value = os.fsdecode(b"OMP_\xe9"), os.fsdecode(b"/opt/biblioth\xe8que:/opt/\xc3\xa8")
    record = rank_environment(plan(), {name: value}).record()
    assert record.overridden == {"OMP_\\xe9": "/opt/biblioth\\xe8que:/opt/\xe8"}


def test_every_variable_of_this_program_is_recorded_and_no_secret() -> None:
    own = {
        "EXPLICIT_RUNS": "/out",
        "EXPLICIT_SIGNING_KEY": "/home/me/key.pem",
        "EXPLICIT_SIGNINGKEY": "/home/me/key.pem",
        "EXPLICIT_REPORT_TO": "",
        "EXPLICIT_LAUNCH_LOCK": "7",
        "HF_TOKEN": "hf_abc",
        "NVIDIA_API_KEY": "nvapi",
        "TORCH_APIKEY": "x",
        "TOKENIZERS_PARALLELISM": "true",
        "HF_ENDPOINT": "https://u:sekret@host/",
        "HF_HUB_HEADERS": "x",
        "TRL_AUTH": "x",
        "HF_PAT": "x",
        "NCCL_IB_PASSWD": "x",
        "HF_my_api_key": "x",
        "TORCH_PATH": "/opt/torch",
    }
    record = rank_environment(plan(), own).record()
    assert record.explicit == {
        "EXPLICIT_REPORT_TO": "",
        "EXPLICIT_RUNS": "/out",
        "EXPLICIT_SIGNINGKEY": "(not recorded)",
        "EXPLICIT_SIGNING_KEY": "(not recorded)",
    }
    hidden = ("HF_TOKEN", "NVIDIA_API_KEY", "TORCH_APIKEY", "HF_ENDPOINT", "HF_HUB_HEADERS", "TRL_AUTH", "HF_PAT")
    unrecorded = "(not recorded)"
    secret = dict.fromkeys((*hidden, "HF_my_api_key"), unrecorded)
    assert record.overridden == secret | {"TOKENIZERS_PARALLELISM": "true", "TORCH_PATH": "/opt/torch"}
    assert {name: value for name, value in record.settings.items() if name.startswith("NCCL")} == {
        "NCCL_IB_PASSWD": unrecorded
    }
    assert "sekret" not in str(record)
    assert record.settings["TOKENIZERS_PARALLELISM"] == "false"
    assert "key.pem" not in str(record)
    assert "hf_abc" not in str(record)
