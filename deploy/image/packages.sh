#!/bin/sh
# Downloads the Python packages of the lock, checked by hash: wheels into /opt/env, sources that must be compiled into
# /opt/sources, and the tools of the build into /opt/tools. No other step of the build downloads Python packages.
#
# usage: packages.sh fetch
set -eu
[ "$1" = fetch ]
umask 022
cd /opt/build
# shellcheck disable=SC2153 # a build argument
case $LOCK in
    full) lock=environment.lock ;;
    cpu) lock=environment.cpu.lock ;;
    *) echo "LOCK is '$LOCK'; expected full or cpu" >&2; exit 64 ;;
esac
if [ -e /run/secrets/ca ]; then
    export PIP_CERT=/run/secrets/ca SSL_CERT_FILE=/run/secrets/ca
fi
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PYTHONDONTWRITEBYTECODE=1 PYTHONNOUSERSITE=1 \
    UV_NO_CACHE=1 UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never

entry() { awk -v name="$1==" 'index($0, name) == 1 { on = 1 } on { print } on && !/\\$/ { exit }' "$lock"; } # NAME

work=$(mktemp -d)
python3 -m venv "$work/bootstrap"
entry uv >"$work/uv.txt"
"$work/bootstrap/bin/python" -m pip install --quiet --require-hashes --only-binary :all: --no-deps -r "$work/uv.txt"
install() { # FOLDER REQUIREMENTS OPTION...
    folder=$1 requirements=$2
    shift 2
    [ -e "$folder" ] || "$work/bootstrap/bin/uv" venv --quiet --no-project --python /usr/bin/python3 "$folder"
    "$work/bootstrap/bin/uv" pip install --quiet --python "$folder/bin/python" --require-hashes --only-binary :all: \
        "$@" -r "$requirements"
}

# Packages without wheels; the lock's head names them.
sources=$(sed -n 's/^# compiled_from_source = \[\(.*\)\]$/\1/p' "$lock" | tr -d '",')
cp "$lock" "$work/wheels.txt"
: >/opt/build/sources.txt
for name in $sources; do
    entry "$name" >>/opt/build/sources.txt
    entry "$name" >"$work/entry.txt"
    awk 'NR == FNR { drop[$0] = 1; next } !($0 in drop)' "$work/entry.txt" "$work/wheels.txt" >"$work/rest.txt"
    mv "$work/rest.txt" "$work/wheels.txt"
done
install /opt/env "$work/wheels.txt" --no-deps
for name in $(/opt/env/bin/python overwritten.py /opt/env/lib/python3.*/site-packages); do
    entry "$name" >"$work/again.txt"
    install /opt/env "$work/again.txt" --no-deps --reinstall
done
install /opt/tools image.lock
mkdir -p /opt/sources
if [ -s /opt/build/sources.txt ]; then
    # pip runs each source's build script for its metadata; the script must not compile yet, nor look for a compiler.
    FLASH_ATTENTION_SKIP_CUDA_BUILD=TRUE CAUSAL_CONV1D_SKIP_CUDA_BUILD=TRUE "$work/bootstrap/bin/python" -m pip --python /opt/env/bin/python download --quiet --require-hashes --no-deps \
        --no-binary :all: --no-build-isolation --dest /opt/sources -r /opt/build/sources.txt
fi
rm -rf "$work"
