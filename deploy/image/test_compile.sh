#!/usr/bin/env bash
# Compiles what the full image compiles, as far as it takes to see whether it compiles: without a GPU or a registry.
#
#   causal-conv1d   whole, into a wheel, which is then imported
#   flash-attn      its interface, and the units for head sizes 64 and 256, bfloat16, forward and backward (8 of 72)
#
# For one architecture (COMPUTE_CAPABILITIES, 9.0), with the compiler of the lock, COMPILE_JOBS (1) at once, up to 7 GB of
# memory each. What was compiled is kept in the cache of the environments, in a folder for each set of compilers, sources
# and settings, and a run that was ended continues there.
#
# With --identity it compiles nothing, and prints a hash of compilers, sources and settings: what it shows holds for these.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."
# shellcheck source=deploy/image/tools.sh
. deploy/image/tools.sh
# shellcheck source=deploy/image/compiler.sh
. deploy/image/compiler.sh
[ "${1:-}" = --identity ] || needs gcc g++
: "${COMPUTE_CAPABILITIES=9.0}" "${COMPILE_JOBS=1}"
check_settings "$COMPUTE_CAPABILITIES" "$COMPILE_JOBS"
umask 022
scripts=$PWD/deploy/image

entries() { awk -v name="^($1)==" '$0 ~ name { on = 1 } on { print } on && !/\\$/ { on = 0 }' "$2"; } # PATTERN LOCK
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
entries 'ninja|wheel|nvidia-(cuda-.*|nvvm)' environment.lock >"$work/compilers.txt"
entries 'causal-conv1d|flash-attn' environment.lock >"$work/sources.txt"
entries torch environment.lock >"$work/torch.txt" # it is in the environment of the CPU lock, in the same version
entries 'nvidia-(nvjitlink|cu(blas|fft|rand|solver|sparse))' environment.lock >"$work/headers.txt" # as torch pins them
echo "$COMPUTE_CAPABILITIES" >"$work/capabilities.txt"
identity() { cat -- "$work"/*.txt "$scripts"/compiler.sh "$scripts"/nvcc.sh "$scripts"/no_network/*.py | sha256sum; }
if [ "${1:-}" = --identity ]; then
    identity | cut -d ' ' -f 1
    exit
fi
main=$(./tools/environment.sh | tail -n 1)
"$main" -c 'import sys; print(sys.version)' >"$work/python.txt"
cache=${main%/*/bin/python}/compiled-$(identity | cut -c 1-12)
mkdir -p -- "$cache"
cd -P -- "$cache" # ninja compiles again what another path was given to
cache=$PWD
exec {guard}>guard
flock "$guard"
# ninja compiles again what was compiled by a script in another place: in another clone.
rm -rf scripts
mkdir scripts
cp -r -- "$scripts/nvcc.sh" "$scripts/no_network" scripts/
scripts=$cache/scripts

"$main" -m venv "$work/bootstrap"
pip() { "$work/bootstrap/bin/python" -m pip --python compilers/bin/python "$@"; }
if [ ! -e ready ]; then
    rm -rf compilers sources flash-attn
    "${main%python}uv" venv --quiet --no-project --python "$main" compilers
    "${main%python}uv" pip install --quiet --python compilers/bin/python --require-hashes --only-binary :all: --no-deps \
        -r "$work/compilers.txt" -r "$work/headers.txt"
    # All else that the setup scripts import.
    "$main" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' >"$(echo compilers/lib/python3.*/site-packages)/run.pth"
    # pip runs each source's setup script for its metadata; the script must not compile yet.
    FLASH_ATTENTION_SKIP_CUDA_BUILD=TRUE CAUSAL_CONV1D_SKIP_CUDA_BUILD=TRUE PATH="$cache/compilers/bin:$PATH" \
        pip download --quiet --require-hashes --no-deps --no-binary :all: --no-build-isolation --dest sources \
        -r "$work/sources.txt"
    mkdir flash-attn
    tar -xzf sources/flash_attn-*.tar.gz -C flash-attn --strip-components 1
    : >ready
fi
make_cuda_home "$cache/cuda" "$(echo "$cache"/compilers/lib/python3.*/site-packages)"
export_compiler "$cache/cuda" "$cache/compilers" "$scripts"
"$CUDA_HOME/bin/nvcc" --version

wheels=wheels-${COMPUTE_CAPABILITIES// /-}
if [ ! -e "$wheels" ]; then
    entries causal-conv1d "$work/sources.txt" >"$work/causal-conv1d.txt"
    pip wheel --no-index --no-deps --no-build-isolation --require-hashes --no-binary :all: --find-links sources \
        --wheel-dir "$work/wheels" -r "$work/causal-conv1d.txt"
    cp -r -- "$work/wheels" "$wheels.part"
    mv -- "$wheels.part" "$wheels"
fi
"$work/bootstrap/bin/python" -m zipfile -e "$wheels"/causal_conv1d-*.whl "$work/causal-conv1d"
PYTHONPATH=$work/causal-conv1d:$PYTHONPATH compilers/bin/python -c 'import torch, causal_conv1d_cuda'

# flash-attn's setup script offers no choice of units. So it ends when it has written what ninja is to do.
mkdir -- "$work/no-ninja"
printf '#!/bin/sh\n[ "$*" = --version ] && exec "%s" --version\nexit 1\n' "$cache/compilers/bin/ninja" >"$work/no-ninja/ninja"
chmod +x "$work/no-ninja/ninja"
cd flash-attn
rm -f build/temp.*/build.ninja
PATH="$work/no-ninja:$PATH" ../compilers/bin/python setup.py build_ext >setup.log 2>&1 || true
if ! cd build/temp.* || ! [ -e build.ninja ]; then
    cat "$cache/flash-attn/setup.log" >&2
    echo "flash-attn's setup script has not told ninja what to do" >&2
    exit 1
fi
mapfile -t units < <(ninja -t targets all | grep -oE '^.*/flash_(api|(fwd|bwd)_hdim(64|256)_bf16(_causal)?_sm80)\.o')
[ ${#units[@]} -eq 9 ] || { printf '%s\n' "flash-attn has other units than expected:" "${units[@]}" >&2; exit 1; }
ninja -v -j "$COMPILE_JOBS" "${units[@]}"
# The setup script passes CPPFLAGS on: without them, features whose kernels are left out would be computed wrongly.
for feature in softcap dropout local alibi; do
    grep -qi "this flash attention build does not support $feature" csrc/flash_attn/flash_api.o || { echo "flash-attn would not refuse $feature" >&2; exit 1; }
done
