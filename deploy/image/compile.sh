#!/bin/sh
# Compiles packages without wheels from the sources that packages.sh downloaded and checked, without network, and then
# all Python files of the environment to bytecode.
#
# The bytecode holds no time and is never compared with its source, because files of an image do not change. So two builds
# are equal, and a container with a read-only root does not compile all of torch at each start.
set -eu
umask 022
cd /opt/build
if [ -s sources.txt ]; then
    # flash-attn's setup ignores other capabilities without an error.
    for capability in $COMPUTE_CAPABILITIES; do
        case $capability in
            8.0 | 9.0 | 10.0 | 12.0) ;;
            *) echo "COMPUTE_CAPABILITIES names '$capability'; flash-attn compiles for 8.0, 9.0, 10.0 and 12.0" >&2; exit 64 ;;
        esac
    done
    export FLASH_ATTENTION_FORCE_BUILD=TRUE CAUSAL_CONV1D_FORCE_BUILD=TRUE
    export TORCH_CUDA_ARCH_LIST="$COMPUTE_CAPABILITIES" MAX_JOBS="$COMPILE_JOBS" NVCC_THREADS=1
    # flash-attn writes 9.0 as 90.
    FLASH_ATTN_CUDA_ARCHS=$(echo "$COMPUTE_CAPABILITIES" | tr -d . | tr ' ' ';')
    export FLASH_ATTN_CUDA_ARCHS
    export PYTHONPATH=/opt/build/no_network PYTHONDONTWRITEBYTECODE=1 PYTHONHASHSEED=0
    # Without any network, where the builder allows it.
    alone=
    if unshare --net true 2>/dev/null; then alone='unshare --net'; fi
    python3 -m venv /opt/build/pip
    $alone /opt/build/pip/bin/python -m pip --python /opt/env/bin/python install --no-index --no-deps \
        --no-build-isolation --require-hashes --no-binary :all: --find-links /opt/sources --no-compile -r sources.txt
    rm -rf /opt/build/pip
fi
# In one process, because bytecode depends on what the process compiled before. All files are compiled again (-f), and
# no other process writes bytecode: the interpreter imports setuptools when it starts, and its bytecode would hold the
# time of the build.
PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1 /opt/env/bin/python -m compileall -q -f -j 1 --invalidation-mode unchecked-hash /opt/env/lib ||
    echo "some files cannot be compiled by this version of Python (templates and examples, as in every environment)"
