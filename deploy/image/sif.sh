#!/usr/bin/env bash
# Converts the image into a SIF for Apptainer and prints its digests: sif.sh full|cpu
#
# Reads build/image/el-LOCK.oci.tar. The build of the CPU image writes that file; otherwise it is made here from the image
# in docker's or podman's store. The SIF's bytes differ from one conversion to the next, because it holds times; the
# manifest digest, which is printed beside its own, identifies what it was made of.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."
# shellcheck source=deploy/image/tools.sh
. deploy/image/tools.sh
kind=${1:-}
case $kind in
    full | cpu) ;;
    *) echo "'$kind' is neither full nor cpu" >&2; exit 64 ;;
esac
out=${EXPLICIT_IMAGE_OUT:-build/image}
archive=$out/el-$kind.oci.tar sif=$out/el-$kind.sif
[ -s "$out/el-$kind.id" ] || { echo "$out/el-$kind.id: no such file; build the image first: make image, or make image-cpu" >&2; exit 66; }
id=$(cat -- "$out/el-$kind.id")
if [ ! -e "$archive" ]; then
    needs skopeo
    if docker image inspect "$id" >/dev/null 2>&1; then
        store=docker-daemon:$id
    else
        store=containers-storage:$id
    fi
    skopeo copy --quiet --digestfile "$out/el-$kind.manifest" "$store" "oci-archive:$archive.part"
    mv -- "$archive.part" "$archive"
fi
export APPTAINER_TMPDIR=${APPTAINER_TMPDIR:-${TMPDIR:-/tmp}} APPTAINER_CACHEDIR=${APPTAINER_CACHEDIR:-$out/apptainer-cache}
# A new SIF must not stand beside the digests of an old one.
rm -f -- "$sif.digest" "$sif.source"
# The default compression takes several times as long, and makes the file only a tenth smaller.
deploy/image/apptainer.sh build --force --mksquashfs-args "-comp zstd -Xcompression-level 3" "$sif" "oci-archive:$archive"
sha256sum "$sif" | cut -d ' ' -f 1 | sed 's/^/sha256:/' >"$sif.digest"
printf "config=%s,manifest=%s" "$id" "$(cat "$out/el-$kind.manifest")" >"$sif.source"
echo "config   $id"
echo "manifest $(cat "$out/el-$kind.manifest")"
echo "sif      $(cat "$sif.digest")  $sif"
