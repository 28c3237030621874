"""tools/environment.sh: one environment per lock and Python, made whole or not at all."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from explicit_learning.files.resources import ROOT

LOCK, VLLM_LOCK = "environment.cpu.lock", "environment.vllm-cpu.lock"
BASE_PYTHON = str(Path(sys.executable).resolve())
ENVIRONMENT, VLLM_ENVIRONMENT = (
    f"{name}-{hashlib.sha256((ROOT / lock).read_bytes()).hexdigest()[:12]}"
    f"-py{sys.version_info.major}.{sys.version_info.minor}"
    for name, lock in (("env", LOCK), ("vllm-cpu", VLLM_LOCK))
)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What the script needs of a checkout, in a folder whose name is awkward."""
    root = tmp_path / "a clone, für mich"
    (root / "tools").mkdir(parents=True)
    for name in ("tools/environment.sh", LOCK, VLLM_LOCK, "lint.lock", "docs.lock"):
        shutil.copy(ROOT / name, root / name)
    return root


def start(root: Path, cache: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    environment = {"EXPLICIT_PYTHON": BASE_PYTHON, **os.environ, "EXPLICIT_ENV_CACHE": str(cache), **variables}
    return subprocess.Popen(
        [shutil.which("bash") or "bash", str(root / "tools" / "environment.sh"), *arguments],
        env=environment,
        cwd="/",
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=540)
    return process.returncode, out, err


def only(folder: Path, *names: str) -> str:
    """Return a PATH that holds nothing but these programs."""
    folder.mkdir()
    for name in names:
        found = shutil.which(name)
        assert found
        (folder / name).symlink_to(found)
    return str(folder)


@pytest.mark.parametrize(("arguments", "name"), [((), ENVIRONMENT), (("vllm-cpu",), VLLM_ENVIRONMENT)])
def test_a_made_environment_is_found_at_once(
    checkout: Path, tmp_path: Path, arguments: tuple[str, ...], name: str
) -> None:
    python = tmp_path / "a cache" / "explicit-learning" / name / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    begun = time.monotonic()
    assert finish(start(checkout, tmp_path / "a cache", *arguments)) == (0, f"{python}\n", "")
    assert time.monotonic() - begun < 2  # 0.1 s alone on a machine


def test_an_unknown_environment_is_refused(checkout: Path, tmp_path: Path) -> None:
    code, out, err = finish(start(checkout, tmp_path, "gpu"))
    assert (code, out) == (64, "")
    assert "[vllm-cpu | lint | docs | missing | prune]" in err


def test_what_is_not_made_is_named_and_not_made(checkout: Path, tmp_path: Path) -> None:
    cache = tmp_path / "a cache" / "explicit-learning"
    assert finish(start(checkout, cache.parent, "missing")) == (0, "run\nvllm-cpu\nlint\ndocs\n", "")
    python = cache / ENVIRONMENT / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    assert finish(start(checkout, cache.parent, "missing")) == (0, "vllm-cpu\nlint\ndocs\n", "")
    assert [path.name for path in cache.iterdir()] == [ENVIRONMENT]


def test_environments_of_other_locks_are_removed_on_request_and_nothing_else(checkout: Path, tmp_path: Path) -> None:
    cache = tmp_path / "a cache" / "explicit-learning"
    hashes = hashlib.sha256(b"".join((ROOT / name).read_bytes() for name in ("lint.lock", LOCK))).hexdigest()
    kept = {
        ENVIRONMENT,
        VLLM_ENVIRONMENT,
        f"{ENVIRONMENT.rpartition('.')[0]}.99",  # of these locks, and another Python
        f"lint-{hashes[:12]}-py3.11",
        f"docs-{hashlib.sha256((ROOT / 'docs.lock').read_bytes()).hexdigest()[:12]}-py3.12",
        "env-0123456789ab-py3.11.making",  # another process makes it
        "compiled-0123456789ab",
        "env-of-mine",
    }
    others = {"env-0123456789ab-py3.11", "vllm-cpu-0123456789ab-py3.12", "lint-0123456789ab-py3.11"}
    others.add("docs-0123456789ab-py3.11")
    for name in kept | others:
        (cache / name / "bin").mkdir(parents=True)
        (cache / f"{name}.guard").touch()
    code, out, err = finish(start(checkout, cache.parent, "prune"))
    assert (code, err) == (0, "")
    assert set(out.splitlines()) == {str(cache / name) for name in others}
    assert {path.name for path in cache.iterdir()} == kept | {f"{name}.guard" for name in kept}


def test_no_python_is_refused(checkout: Path, tmp_path: Path) -> None:
    path = only(tmp_path / "bin", "dirname", "basename", "sha256sum", "mkdir", "cat")
    code, out, err = finish(start(checkout, tmp_path / "cache", PATH=path, EXPLICIT_PYTHON=""))
    assert (code, out) == (78, "")
    assert "expected: Python 3.11 or 3.12" in err
    assert "apt-get install python3 python3-venv" in err


def test_a_python_without_venv_names_the_package(checkout: Path, tmp_path: Path) -> None:
    """Debian ships ensurepip apart from Python; this interpreter's own is hidden here the same way."""
    bare = tmp_path / "python-without-ensurepip"
    hidden = "import sys; sys.modules['ensurepip'] = None"
    program = f'#!/bin/sh\nshift 3\nexec {BASE_PYTHON} -I -S -c "{hidden}\n$1"\n'
    bare.write_text(program)
    bare.chmod(0o755)
    path = only(tmp_path / "bin", "dirname", "basename", "sha256sum", "mkdir", "cat")
    code, out, err = finish(start(checkout, tmp_path / "cache", PATH=path, EXPLICIT_PYTHON=str(bare)))
    assert (code, out) == (78, "")
    assert f"apt-get install python{sys.version_info.major}.{sys.version_info.minor}-venv" in err


@pytest.mark.slow
def test_an_unreachable_index_leaves_nothing(checkout: Path, tmp_path: Path) -> None:
    """Proxies that nobody listens at stand for a machine without a network."""
    dead = "http://127.0.0.1:9"  # the discard port
    variables = {
        "PIP_INDEX_URL": f"{dead}/simple",
        "PIP_RETRIES": "0",
        "PIP_NO_CACHE_DIR": "1",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_FIND_LINKS": "",
    }
    code, out, err = finish(start(checkout, tmp_path / "cache", **variables))
    assert (code, out) == (78, "")
    assert "pip could not install uv" in err
    assert "check the network" in err
    assert [path.name for path in (tmp_path / "cache" / "explicit-learning").iterdir()] == [f"{ENVIRONMENT}.guard"]


@pytest.mark.slow
def test_made_once_for_two_and_whole_after_a_kill(checkout: Path, tmp_path: Path) -> None:
    cache = tmp_path / "ein Cache"
    folder = cache / "explicit-learning"
    # Settings that would install something else, somewhere else.
    odd = {"PIP_TARGET": str(tmp_path / "x"), "PIP_USER": "1", "PYTHONPATH": str(tmp_path), "UV_NO_BINARY": "1"}

    killed = start(checkout, cache)
    while not (folder / f"{ENVIRONMENT}.making").exists():
        assert killed.poll() is None
        time.sleep(0.05)
    time.sleep(1)
    os.killpg(killed.pid, 9)
    assert finish(killed)[0] == -9
    assert not (folder / ENVIRONMENT).exists()

    first, second = start(checkout, cache, **odd), start(checkout, cache, **odd)
    python = folder / ENVIRONMENT / "bin" / "python"
    results = finish(first), finish(second)
    assert [(code, out) for code, out, _ in results] == [(0, f"{python}\n")] * 2
    assert sorted("making the environment of" in err for _, _, err in results) == [False, True]
    assert sorted(path.name for path in folder.iterdir()) == [ENVIRONMENT, f"{ENVIRONMENT}.guard"]

    check = [python, ROOT / "entrypoint.py", "lock", "check", "--deep", "--lock", ROOT / LOCK]
    assert subprocess.run(check, cwd=tmp_path, env={"PATH": os.environ["PATH"]}, check=False).returncode == 0
    script = subprocess.run([python.parent / "pytest", "--version"], capture_output=True, text=True, check=True)
    assert script.stdout.startswith("pytest ")


@pytest.mark.parametrize(
    ("variables", "folder"), [({}, ENVIRONMENT), ({"LOCK": ""}, ENVIRONMENT), ({"LOCK": "vllm-cpu"}, VLLM_ENVIRONMENT)]
)
def test_el_keeps_the_callers_folder_and_words(tmp_path: Path, variables: dict[str, str], folder: str) -> None:
    """`bin/el`, through a link, in another folder, with the environment of these tests in place of the lock's."""
    link = tmp_path / "el"
    link.symlink_to(ROOT / "bin" / "el")
    python = tmp_path / "explicit-learning" / folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    environment = {**os.environ, "EXPLICIT_ENV_CACHE": str(tmp_path), "EXPLICIT_PYTHON": BASE_PYTHON}
    environment |= variables
    done = subprocess.run(
        [link, "lock", "check", "--lock", "no such.lock"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 65
    assert "no such.lock" in done.stderr
