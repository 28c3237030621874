#!/usr/bin/env bash
# Builds the CPU image a second time, from nothing, and compares its digests with those of the first.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."
first=build/image second=build/image-second
[ -e "$first/el-cpu.manifest" ] || deploy/image/build.sh cpu
rm -rf -- "$second"
# Nothing of the first build is reused: neither the base nor a layer nor a package.
EXPLICIT_IMAGE_OUT=$second EXPLICIT_IMAGE_NAME=localhost/el-second deploy/image/build.sh cpu --no-cache
code=0
for name in id manifest sbom.json; do
    if cmp -s -- "$first/el-cpu.$name" "$second/el-cpu.$name"; then
        echo "equal    $name $([ "$name" = sbom.json ] || cat -- "$first/el-cpu.$name")"
    else
        echo "UNEQUAL  $name: $first/el-cpu.$name, $second/el-cpu.$name" >&2
        code=1
    fi
done
if [ "$code" -eq 0 ]; then
    # Both builds are one image with one ID. Only the second build's names are removed; without names as arguments,
    # podman untag would remove the first build's too.
    mapfile -t names < <(podman image inspect --format '{{join .RepoTags "\n"}}' localhost/el-second:lock | grep /el-second:)
    podman untag localhost/el-second:lock "${names[@]}"
    rm -rf -- "$second"
fi
exit "$code"
