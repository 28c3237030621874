# The image that runs a frozen plan: docker run --rm --gpus all -v $PWD:/work el:lock plan.json
#
# Built by `make image` (docker or podman) and, on a machine with neither a registry nor a GPU, by `make image-cpu`.
# The lock (packages, base image digests) and the commit decide its content. Build arguments:
#   LOCK                 full (environment.lock) or cpu (environment.cpu.lock)
#   CODE_COMMIT          the commit of this checkout, 40 hexadecimal digits; required
#   LOCK_SHA256          the lock's hash, for the label
#   CODE_DIRTY           whether tracked files differ from that commit: true or false
#   BASE_IMAGE           another base for both stages; BASE_DIGEST then records its digest
#   BUILD_IMAGE          another base for the build stage alone
#   COMPUTE_CAPABILITIES what flash-attn and causal-conv1d are compiled for (full only): of 8.0, 9.0, 10.0 and 12.0
#   COMPILE_JOBS         compilers at once; each takes up to 9 GiB of memory for flash-attn
#   SOURCE_DATE_EPOCH    modification time of the files and of the image, in seconds since 1970-01-01 UTC
# The optional secret `ca` is a bundle of certificates, for a network whose proxy uses its own.

ARG COMPUTE_CAPABILITIES="8.0 9.0 10.0"
ARG BASE_IMAGE
# podman needs the registry in the name. The digests are those in environment.lock's head; a test compares them.
ARG BUILD_IMAGE=${BASE_IMAGE:-docker.io/nvidia/cuda:13.0.2-devel-ubuntu24.04@sha256:0eee3094c71518ad31d011a594ae6ed6de72959ee07e318cb31cffe71690e90c}

FROM ${BUILD_IMAGE} AS build
ARG SOURCE_DATE_EPOCH=1700000000
ARG LOCK=full
COPY deploy/image/system.sh /opt/build/
RUN /opt/build/system.sh build
COPY environment.lock environment.cpu.lock image.lock deploy/image/overwritten.py deploy/image/packages.sh /opt/build/
RUN --mount=type=secret,id=ca,required=false /opt/build/packages.sh fetch
# Nothing may be downloaded from here on: flash-attn's own setup would download a binary without a hash.
ARG COMPUTE_CAPABILITIES
ARG COMPILE_JOBS=4
COPY deploy/image/compile.sh deploy/image/compiler.sh deploy/image/nvcc.sh /opt/build/
COPY deploy/image/no_network /opt/build/no_network
RUN /opt/build/compile.sh

FROM ${BASE_IMAGE:-docker.io/nvidia/cuda:13.0.2-runtime-ubuntu24.04@sha256:6a0e31b59e70890446f2c17356d6efc0d54260090a8c63d6ca7c2ad049db95d2}
ARG SOURCE_DATE_EPOCH=1700000000
ARG LOCK=full
COPY deploy/image/system.sh /opt/build/
RUN /opt/build/system.sh runtime
COPY --from=build /opt/env /opt/env

# One writable folder for all caches, and one for runs where no folder is mounted at /work; both work for any user.
ENV PATH=/opt/env/bin:$PATH \
    HOME=/cache TMPDIR=/cache XDG_CACHE_HOME=/cache USER=explicit LOGNAME=explicit \
    HF_HOME=/cache/huggingface TORCHINDUCTOR_CACHE_DIR=/cache/inductor TORCH_EXTENSIONS_DIR=/cache/torch-extensions \
    TORCH_HOME=/cache/torch PYTORCH_KERNEL_CACHE_PATH=/cache/torch-kernels \
    TRITON_CACHE_DIR=/cache/triton TRITON_HOME=/cache/triton-home TILELANG_CACHE_DIR=/cache/tilelang \
    TVM_FFI_CACHE_DIR=/cache/tvm-ffi NUMBA_CACHE_DIR=/cache/numba CUDA_CACHE_PATH=/cache/cuda \
    CUDA_TILE_CACHE_DIR=/cache/cuda-tile CUTE_DSL_CACHE_DIR=/cache/cute-dsl QUACK_CACHE_DIR=/cache/quack \
    HUMMING_CACHE_DIR=/cache/humming HUMMING_TMP_DIR=/cache/humming-temporary \
    VLLM_CACHE_ROOT=/cache/vllm VLLM_CONFIG_ROOT=/cache/vllm-config FLASHINFER_WORKSPACE_BASE=/cache/flashinfer \
    MINFER_FMHA_CACHE_DIR=/cache/minfer MM_SPARSE_ATTN_AOT_CACHE=/cache/minfer-attention \
    MPLCONFIGDIR=/cache/matplotlib \
    FLA_TILELANG=0 \
    HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 HF_DATASETS_OFFLINE=1 \
    PYTHONNOUSERSITE=1 PYTHONDONTWRITEBYTECODE=1 PYTHONUTF8=1 \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility

COPY . /opt/explicit-learning
ARG CODE_COMMIT
ARG CODE_DIRTY=false
ARG LOCK_SHA256
ARG BASE_IMAGE
ARG BASE_DIGEST
ARG COMPUTE_CAPABILITIES
RUN --mount=type=bind,from=build,source=/opt/tools,target=/opt/tools /opt/explicit-learning/deploy/image/bake.sh

LABEL org.opencontainers.image.title="Explicit Learning" \
    org.opencontainers.image.description="Takes a frozen plan to a trained adapter that anyone can check" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.revision="${CODE_COMMIT}" \
    org.opencontainers.image.base.digest="${BASE_DIGEST}" \
    explicit-learning.lock="${LOCK}" \
    explicit-learning.lock.sha256="${LOCK_SHA256}"

VOLUME ["/cache", "/out"]
WORKDIR /work
# 1000 is the first user of most machines; any other user works too (--user).
USER 1000:1000
ENTRYPOINT ["/usr/bin/tini", "-s", "--", "/opt/env/bin/python", "/opt/explicit-learning/entrypoint.py"]
CMD ["--help"]
