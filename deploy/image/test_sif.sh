#!/usr/bin/env bash
# Converts the CPU image with Apptainer and runs the smoke plan from the SIF: read-only, without network, under another
# uid, and without the host's environment. Phase 1 stops at a checkpoint with 75, phase 2 proves that it resumed from it,
# phase 3 that an uninterrupted run computes the same.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."
deploy/image/sif.sh cpu
work=$(mktemp -d /tmp/el-sif.XXXXXX)
trap 'rm -rf -- "$work"' EXIT
chmod 777 "$work"
sif=$PWD/build/image/el-cpu.sif
# Not with --env, which would split the value at its commas.
APPTAINERENV_EXPLICIT_IMAGE_DIGEST=config=$(cat build/image/el-cpu.id),manifest=$(cat build/image/el-cpu.manifest),sif=$(cat "$sif.digest")
export APPTAINERENV_EXPLICIT_IMAGE_DIGEST APPTAINERENV_TMPDIR=/tmp EXPLICIT_APPTAINER_USER=1234
deploy/image/apptainer.sh run --containall --cleanenv --no-home --net --network none --bind "$work:/out" --pwd /work \
    "$sif" smoke plan.json --out /out/smoke
holds() { # TEXT FILE
    grep -qF -- "$1" "$2" || { echo "$2 does not hold $1" >&2; exit 1; }
}
holds "$(cat "$sif.digest")" "$work/smoke/training-complete.json"
holds "$(cat build/image/el-cpu.manifest)" "$work/smoke/training-complete.json"
for audit in "$work"/smoke/resume-audits/*.json; do
    holds '"passed": true' "$audit"
done
holds '"equal": true' "$work/smoke/smoke-output-comparison.json"
echo "the smoke plan passed in $sif"
