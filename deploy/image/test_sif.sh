#!/usr/bin/env bash
# Converts the CPU image with Apptainer and runs the smoke plan from the SIF: read-only, without network, under another
# uid, with nothing of the host's environment. Phase 1 stops at a checkpoint with 75, phase 2 proves that it went on.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."
deploy/image/sif.sh cpu
work=$(mktemp -d /tmp/el-sif.XXXXXX)
trap 'rm -rf -- "$work"' EXIT
chmod 777 "$work"
sif=$PWD/build/image/el-cpu.sif
digest=config=$(cat build/image/el-cpu.id),manifest=$(cat build/image/el-cpu.manifest),sif=$(cat "$sif.digest")
EXPLICIT_APPTAINER_USER=1234 deploy/image/apptainer.sh run --containall --cleanenv --no-home --net --network none \
    --bind "$work:/out" --pwd /work --env "EXPLICIT_IMAGE_DIGEST=$digest" --env TMPDIR=/tmp \
    "$sif" smoke plan.json --out /out/smoke
grep -q "$(cat "$sif.digest")" "$work/smoke/run-manifest.json"
grep -q '"passed": true' "$work"/smoke/resume-audits/*.json
echo "the smoke plan passed in $sif"
