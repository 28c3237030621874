#!/usr/bin/env bash
# Builds the wheel (dist/explicit_learning-VERSION-py3-none-any.whl) and prints its SHA-256 and its path.
#
#   tools/wheel.sh [FOLDER]   FOLDER takes the place of dist
#
# With it, `el` reads finished runs where nothing else of this program is: pip install 'FILE[verify]'. The setuptools of
# environment.cpu.lock builds it, from the tracked files as they are now; the same files make the same bytes.
set -euo pipefail
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
out=$(realpath -m -- "${1:-$root/dist}")
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-1700000000}
umask 022
python=$("$root/tools/environment.sh" | tail -n 1)
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
cd -- "$root"
# A copy: setuptools leaves folders behind, whose old files would be part of the next wheel.
git ls-files -z -- explicit_learning schemas pyproject.toml setup.py README.md LICENSE |
    xargs -0 cp --parents -t "$work" --
chmod -R u=rwX,go=rX "$work"
"${python%python}uv" build --quiet --no-config --offline --no-build-isolation --python "$python" --wheel --out-dir "$work/dist" "$work" >&2
mkdir -p -- "$out"
cp -- "$work"/dist/*.whl "$out"
cd -- "$out"
sha256sum "$(basename -- "$work"/dist/*.whl)" | sed "s|  |  $out/|"
