#!/usr/bin/env bash
# Prints one hash over everything that decides what the image is and how it is converted: the recipe, the locks and
# the deployment scripts. `make image-twice` and `make test-sif` take minutes; continuous integration repeats them when
# this hash is not the one in deploy/image/verified (written by `make image-verified`).
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."
find Dockerfile .dockerignore ./*.lock compose.gpu.yml deploy -type f ! -path deploy/image/verified ! -name '*.pyc' -print0 |
    LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -d ' ' -f 1
