#!/usr/bin/env bash
# Makes the base of the CPU image from Debian packages, without a registry, and prints its image ID.
#
# It holds what the program needs of the full image's runtime base: Python, certificates, tini. The same packages make
# the same bytes.
set -euo pipefail
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-1700000000}
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."
# shellcheck source=deploy/image/tools.sh
. deploy/image/tools.sh
needs mmdebstrap podman
needs_root "a base made of Debian packages"
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
umask 022
# Without the hook, the image would hold the builder's name servers and host name.
# shellcheck disable=SC2016 # $1 is mmdebstrap's
mmdebstrap --mode=root --quiet --variant=minbase --include=python3-minimal,python3-venv,ca-certificates,tini \
    --customize-hook='rm -f "$1/etc/resolv.conf" "$1/etc/hostname"' bookworm "$work/base.tar" >&2
touch -d "@$SOURCE_DATE_EPOCH" "$work/base.tar"
# podman reports on standard error, and prints the image's ID.
podman import --quiet -c 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
    "$work/base.tar" localhost/el-base:cpu
