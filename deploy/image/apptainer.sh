#!/usr/bin/env bash
# Runs Apptainer: the one on PATH, or else Debian's, which is installed into a folder of its own and run from inside it.
#
# Debian has Apptainer in unstable only, so it cannot be installed beside bookworm's packages. The folder (300 MB) is in
# the cache of the environments. Running from inside it needs root. There Apptainer finds this machine's /proc, /sys and
# /dev, the folders /tmp and the working directory, and those in EXPLICIT_APPTAINER_BINDS (separated by colons).
# With EXPLICIT_APPTAINER_USER it runs under that uid.
set -euo pipefail
if command -v apptainer >/dev/null; then
    exec apptainer "$@"
fi
cache=${EXPLICIT_ENV_CACHE:-${XDG_CACHE_HOME:-${HOME:?set HOME or EXPLICIT_ENV_CACHE}/.cache}}/explicit-learning
root=$cache/apptainer
if [ ! -x "$root/usr/bin/apptainer" ]; then
    [ "$(id -u)" = 0 ] || { echo "there is no apptainer on PATH: install it, or run this as root" >&2; exit 69; }
    command -v mmdebstrap >/dev/null || { echo "there is neither apptainer nor mmdebstrap on PATH: apt-get install mmdebstrap" >&2; exit 69; }
    mkdir -p -- "$cache"
    exec {guard}>"$root.guard"
    flock "$guard"
    if [ ! -x "$root/usr/bin/apptainer" ]; then
        rm -rf -- "$root" "$root.making"
        # The release file of a mirror that is frozen in time has expired; its signature is still checked.
        mmdebstrap --mode=root --quiet --variant=minbase --include=apptainer,squashfuse,fuse3,ca-certificates \
            --aptopt='Acquire::Check-Valid-Until "false"' unstable "$root.making" >&2
        echo '127.0.0.1 localhost' >"$root.making/etc/hosts" # Apptainer copies both into what it builds and runs
        : >"$root.making/etc/resolv.conf"
        mv -T -- "$root.making" "$root"
    fi
    exec {guard}>&-
fi
export EXPLICIT_APPTAINER_ROOT=$root EXPLICIT_APPTAINER_CWD=$PWD
# shellcheck disable=SC2016 # expanded inside
exec unshare --mount --propagation private -- bash -euc '
    root=$EXPLICIT_APPTAINER_ROOT
    mount --bind "$root" "$root"
    IFS=:
    for folder in /proc /sys /dev /tmp "$EXPLICIT_APPTAINER_CWD" ${EXPLICIT_APPTAINER_BINDS:-}; do
        mkdir -p -- "$root$folder"
        mount --rbind "$folder" "$root$folder"
    done
    unset IFS
    # Apptainer mounts images through this device, as the user that runs it; the existing one may be for root only.
    [ -e "$root/.fuse" ] || mknod -m 0666 "$root/.fuse" c 10 229
    [ -e "$root/dev/fuse" ] || touch "$root/dev/fuse"
    mount --bind "$root/.fuse" "$root/dev/fuse"
    mkdir -p "$root/.host"
    cd -- "$root"
    pivot_root . .host
    umount -l /.host
    cd -- "$EXPLICIT_APPTAINER_CWD"
    export PATH=/usr/sbin:/usr/bin:/sbin:/bin
    user=${EXPLICIT_APPTAINER_USER:-0}
    grep -q "^[^:]*:[^:]*:$user:" /etc/passwd || echo "user$user:x:$user:$user::/tmp:/bin/sh" >>/etc/passwd
    exec setpriv --reuid "$user" --regid "$user" --clear-groups /usr/bin/apptainer "$@"
' bash "$@"
