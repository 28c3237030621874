#!/usr/bin/env bash
# Builds the image and prints its digests: build.sh full|cpu|full-debian [--no-cache]
#
#   full         with docker, or podman if there is no docker; needs a registry for the base images, and hours to compile
#   cpu          with buildah, from a base made of Debian packages; needs no registry, no daemon and no GPU
#   full-debian  the full lock on that base, for one architecture (COMPUTE_CAPABILITIES, 9.0): the nearest thing to the
#                full image without a registry; needs 14 GB of memory (COMPILE_JOBS, 2), over an hour, and 40 GB of disk
#
# Writes into build/image/: el-KIND.id (the image's ID, which is its config digest), el-KIND.sbom.json and, on the base of
# Debian packages, el-KIND.oci.tar with el-KIND.manifest (the manifest digest).
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."
# shellcheck source=deploy/image/tools.sh
. deploy/image/tools.sh
# shellcheck source=deploy/image/compiler.sh
. deploy/image/compiler.sh
kind=${1:-}
debian=1
case $kind in
    full) lock=environment.lock name=el debian= ;;
    cpu) lock=environment.cpu.lock name=${EXPLICIT_IMAGE_NAME:-localhost/el} ;;
    full-debian)
        lock=environment.lock name=localhost/el-full
        COMPUTE_CAPABILITIES=${COMPUTE_CAPABILITIES-9.0} COMPILE_JOBS=${COMPILE_JOBS-2}
        ;;
    *) echo "'$kind' is none of full, cpu and full-debian: build.sh full|cpu|full-debian [--no-cache]" >&2; exit 64 ;;
esac
shift
[ "$kind" = cpu ] || check_settings "${COMPUTE_CAPABILITIES-9.0}" "${COMPILE_JOBS-1}" # before hours of work
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-1700000000}
if [[ ! $SOURCE_DATE_EPOCH =~ ^[0-9]{1,10}$ ]]; then
    echo "SOURCE_DATE_EPOCH is '$SOURCE_DATE_EPOCH'; expected seconds since 1970, as of \`git log -1 --format=%ct\`" >&2
    exit 64
fi
needs git
if [ -n "$debian" ]; then
    needs buildah podman skopeo mmdebstrap
    needs_root "a build without a registry"
elif ! docker info >/dev/null 2>&1; then
    needs podman # docker would do, but its daemon does not answer
fi

# git reads exactly this folder, whoever owns it (`sudo make image-cpu`) and whatever repository a hook points to.
# shellcheck disable=SC2086 # names
unset ${!GIT_@}
checkout() { GIT_CEILING_DIRECTORIES=$(dirname -- "$PWD") git -c "safe.directory=$PWD" "$@"; }
commit=$(checkout rev-parse --verify 'HEAD^{commit}') || {
    echo "$PWD has no commit: build from a git clone, because the image records the commit of its code" >&2
    exit 66
}
changes=$(checkout status --porcelain --untracked-files=normal)
dirty=false
[ -z "$changes" ] || dirty=true

out=${EXPLICIT_IMAGE_OUT:-build/image}
mkdir -p -- "$out"
# Files of an earlier build must not pass for this one's.
rm -f -- "$out/el-$kind".{id,sbom.json,oci.tar,oci.tar.part,manifest}
lock_sha256=$(sha256sum "$lock" | cut -d ' ' -f 1)
tag=lock-${lock_sha256:0:12}
arguments=(--build-arg "LOCK=${kind%%-*}" --build-arg "LOCK_SHA256=$lock_sha256" --build-arg "CODE_COMMIT=$commit"
    --build-arg "CODE_DIRTY=$dirty" --build-arg "SOURCE_DATE_EPOCH=$SOURCE_DATE_EPOCH")
ca=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}
[ ! -e "$ca" ] || arguments+=(--secret "id=ca,src=$ca")
[ -z "${COMPUTE_CAPABILITIES+set}" ] || arguments+=(--build-arg "COMPUTE_CAPABILITIES=$COMPUTE_CAPABILITIES")
if [ -z "$debian" ] && [[ " $* " != *BASE_IMAGE=* ]]; then
    # For the label: the digest of the runtime base in the Dockerfile.
    arguments+=(--build-arg "BASE_DIGEST=$(sed -nE 's/^FROM .*-runtime-.*@(sha256:[0-9a-f]{64})\}$/\1/p' Dockerfile)")
fi
[ -z "${COMPILE_JOBS+set}" ] || arguments+=(--build-arg "COMPILE_JOBS=$COMPILE_JOBS")

if [ -n "$debian" ]; then
    base=$("deploy/image/base.sh")
    base=${base#sha256:}
    buildah build --isolation chroot --network host --timestamp "$SOURCE_DATE_EPOCH" --identity-label=false --layers=false \
        --build-arg BASE_IMAGE=localhost/el-base:cpu --build-arg "BASE_DIGEST=sha256:$base" \
        "${arguments[@]}" "$@" --iidfile "$out/el-$kind.id" -t "$name:lock" -t "$name:$tag" .
    engine=podman
elif docker info >/dev/null 2>&1; then
    # Unlike podman, docker gives the layers' files the time of the build: the digests of two builds differ.
    docker build "${arguments[@]}" "$@" \
        --iidfile "$out/el-$kind.id" -t "$name:lock" -t "$name:$tag" .
    engine=docker
else
    podman build --timestamp "$SOURCE_DATE_EPOCH" --identity-label=false "${arguments[@]}" "$@" \
        --iidfile "$out/el-$kind.id" -t "$name:lock" -t "$name:$tag" .
    engine=podman
fi
id=$(cat "$out/el-$kind.id")
[ "${id#sha256:}" != "$id" ] || { id=sha256:$id; printf '%s' "$id" >"$out/el-$kind.id"; }

container=$("$engine" create "$id")
"$engine" cp "$container:/etc/explicit-learning/sbom.cdx.json" "$out/el-$kind.sbom.json"
"$engine" rm "$container" >/dev/null
echo "image    $name:lock, $name:$tag"
echo "config   $id"
echo "sbom     sha256:$(sha256sum "$out/el-$kind.sbom.json" | cut -d ' ' -f 1)  $out/el-$kind.sbom.json"
if [ -n "$debian" ]; then
    # Uncompressed: compressing 6 GB takes minutes, and readers would have to decompress it again.
    skopeo copy --quiet --dest-oci-accept-uncompressed-layers --digestfile "$out/el-$kind.manifest" \
        "containers-storage:$name:lock" "oci-archive:$out/el-$kind.oci.tar.part:$name:lock"
    mv -- "$out/el-$kind.oci.tar.part" "$out/el-$kind.oci.tar"
    echo "manifest $(cat "$out/el-$kind.manifest")  $out/el-$kind.oci.tar"
fi
