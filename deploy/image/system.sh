#!/bin/sh
# Installs the packages of the system: Python, tini, compilers. Those that the base image has are not downloaded.
#
# usage: system.sh build|runtime
#
# Their versions are those of the distribution's archive on the day of the build; the bill of materials names them.
# The full image keeps a C compiler and Python's headers at run time, because Triton uses them to compile the launcher of
# each kernel (flash-linear-attention's among them). The CPU image compiles nothing.
set -eu
stage=$1
umask 022

wanted=
need() { # PROBE PACKAGE...
    probe=$1
    shift
    sh -c "$probe" >/dev/null 2>&1 || wanted="$wanted $*"
}
need 'python3 -c "import sys; assert sys.version_info[:2] in ((3, 11), (3, 12))"' python3
if [ "$stage" = build ]; then
    need 'python3 -c "import ensurepip, venv"' python3-venv
    need 'test -e /etc/ssl/certs/ca-certificates.crt' ca-certificates
else
    need 'test -x /usr/bin/tini' tini
fi
if [ "$LOCK" = full ]; then
    need 'command -v gcc' gcc libc6-dev
    # shellcheck disable=SC2016 # for the inner shell
    need 'test -e "$(python3 -c "import sysconfig; print(sysconfig.get_paths()[\"include\"])")/Python.h"' python3-dev
    [ "$stage" = runtime ] || need 'command -v g++' g++
fi

if [ -n "$wanted" ]; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q
    # shellcheck disable=SC2086 # a list of packages
    apt-get install -qy --no-install-recommends $wanted
    apt-get clean
fi
# Files that differ from one build to the next, and that nothing reads.
rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/ldconfig/aux-cache /var/cache/debconf/*-old \
    /var/log/apt /var/log/dpkg.log /var/log/alternatives.log /var/log/bootstrap.log
