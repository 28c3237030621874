#!/bin/sh
# Sourced by the scripts that compile flash-attn and causal-conv1d from source: what the compilation needs around it.
#
# The compiler and its headers are those of the lock's hashed packages, whatever CUDA the machine has.

# Makes a folder in the layout that torch's build code expects of CUDA. The packages have neither a lib64 folder nor
# libraries under the names that the linker looks for.
make_cuda_home() { # FOLDER SITE-PACKAGES
    rm -rf -- "$1"
    mkdir -p -- "$1/lib64"
    for part in bin include nvvm; do ln -s -- "$2/nvidia/cu13/$part" "$1/$part"; done
    for library in "$2"/nvidia/cu13/lib/*; do
        name=${library##*/}
        ln -s -- "$library" "$1/lib64/$name"
        case $name in
            *.so.*) [ -e "$1/lib64/${name%%.so.*}.so" ] || ln -s -- "$library" "$1/lib64/${name%%.so.*}.so" ;;
        esac
    done
}

# Refuses capabilities (such as "8.0 9.0") and a number of jobs that cannot be compiled with.
check_settings() { # COMPUTE_CAPABILITIES COMPILE_JOBS
    [ -n "$1" ] || { echo "COMPUTE_CAPABILITIES is empty; expected such as '8.0 9.0'" >&2; exit 64; }
    set -f # words, not names of files
    for capability in $1; do
        # flash-attn's setup ignores other capabilities without an error.
        case $capability in
            8.0 | 9.0 | 10.0 | 12.0) ;;
            *) echo "COMPUTE_CAPABILITIES names '$capability'; flash-attn compiles for 8.0, 9.0, 10.0 and 12.0" >&2; exit 64 ;;
        esac
    done
    set +f
    case $2 in
        '' | *[!0-9]* | 0*) echo "COMPILE_JOBS is '$2'; expected a positive number" >&2; exit 64 ;;
    esac
}

# Exports what the setup scripts read.
export_compiler() { # CUDA-HOME ENVIRONMENT SCRIPTS
    check_settings "$COMPUTE_CAPABILITIES" "$COMPILE_JOBS"
    export COMPUTE_CAPABILITIES TORCH_CUDA_ARCH_LIST="$COMPUTE_CAPABILITIES" MAX_JOBS="$COMPILE_JOBS" NVCC_THREADS=1
    # flash-attn writes 9.0 as 90.
    FLASH_ATTN_CUDA_ARCHS=$(echo "$COMPUTE_CAPABILITIES" | tr -d . | tr ' ' ';')
    export FLASH_ATTN_CUDA_ARCHS
    export FLASH_ATTENTION_FORCE_BUILD=TRUE CAUSAL_CONV1D_FORCE_BUILD=TRUE
    # flash-attn without what Qwen3.5 never asks for: it compiles three times as fast, and refuses a call that asks for it.
    left_out=
    for feature in DROPOUT ALIBI SOFTCAP LOCAL; do left_out="${left_out:+$left_out }-DFLASHATTENTION_DISABLE_$feature"; done
    export NVCC_APPEND_FLAGS="$left_out" CPPFLAGS="$left_out"
    # torch takes ninja and nvcc from there; without ninja on PATH it compiles one file at a time.
    export CUDA_HOME="$1" PYTORCH_NVCC="$3/nvcc.sh" PATH="$2/bin:$1/bin:$PATH"
    # Nothing may be downloaded: the setup scripts look for a prebuilt binary that no hash covers.
    export PYTHONPATH="$3/no_network" PYTHONDONTWRITEBYTECODE=1 PYTHONHASHSEED=0
}
