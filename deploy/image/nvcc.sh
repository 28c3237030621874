#!/bin/sh
# nvcc, for the architectures in COMPUTE_CAPABILITIES (such as "8.0 9.0") alone.
#
# causal-conv1d's setup script compiles for nine architectures, and nothing that it reads says otherwise. So -gencode
# options for other architectures are left out here.
set -eu
wanted=" $(echo "$COMPUTE_CAPABILITIES" | tr -d .) "
left_out="" kept="" count=$#
while [ "$count" -gt 0 ]; do
    word=$1
    shift
    count=$((count - 1))
    if [ "$word" = -gencode ] && [ "$count" -gt 0 ]; then
        case $wanted in
            *" ${1##*=sm_} "*) set -- "$@" "$word" "$1" && kept=1 ;;
            *) left_out="$left_out ${1##*=}" ;;
        esac
        shift
        count=$((count - 1))
    else
        set -- "$@" "$word"
    fi
done
# Without any, nvcc would compile for the oldest architecture that it knows.
if [ -n "$left_out" ] && [ -z "$kept" ]; then
    echo "nvcc is to compile for${left_out}, none of which is in COMPUTE_CAPABILITIES ($COMPUTE_CAPABILITIES)" >&2
    exit 64
fi
exec "$CUDA_HOME/bin/nvcc" "$@"
