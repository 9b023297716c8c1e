# The image of every variant. `bench image build VARIANT` copies the base, the locked wheels and the source of bench
# into the build's context, and normalises the result so that its bytes are always the same; see docs/images.md.
# Each stage is one layer. The largest and least often changed layers come first, bench's own code comes last. No
# step has a network.

FROM scratch AS base
ADD base.tar /
ENV PATH=/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8 PYTHONHASHSEED=0

FROM base AS libraries
RUN --mount=type=bind,target=/build python3 -B /build/install.py libraries

FROM libraries AS torch
RUN --mount=type=bind,target=/build python3 -B /build/install.py torch

FROM torch AS rest
RUN --mount=type=bind,target=/build python3 -B /build/install.py rest

# Compiles the wheels that no index offers, for `bench image kernels`, which makes a layer of them.
FROM rest AS builder
ARG ARCH=9.0
ARG JOBS=2
ENV PATH=/usr/local/lib/python3.11/dist-packages/nvidia/cu13/bin:/usr/local/bin:/usr/bin:/bin
RUN --mount=type=bind,target=/build python3 -B /build/install.py builder
RUN --mount=type=bind,target=/build \
    python3 -B /build/kernels.py wheel --sources /build/sources --objects /objects --out /made --arch "$ARCH" --jobs "$JOBS"

FROM rest AS image
RUN --mount=type=bind,target=/build python3 -B /build/install.py bench \
 && mkdir -p /usr/share/bench /out && mkdir -m 1777 /cache \
 && cp /build/image.json /build/packages.json /usr/share/bench/ \
 && python3 -B -m bench.images.sbom > /usr/share/bench/sbom.cdx.json
# Files written at run time go below /cache, the only folder that is both writable and executable.
ENV PATH=/usr/local/bin:/usr/bin:/bin \
    LANG=C.UTF-8 \
    HOME=/tmp \
    XDG_CACHE_HOME=/cache \
    PYTHONPYCACHEPREFIX=/cache/python \
    TORCHINDUCTOR_CACHE_DIR=/cache/inductor \
    TRITON_CACHE_DIR=/cache/triton \
    TRITON_HOME=/cache \
    TORCH_EXTENSIONS_DIR=/cache/extensions \
    CUDA_CACHE_PATH=/cache/cuda \
    HF_HOME=/cache/huggingface \
    HF_HUB_OFFLINE=1 \
    NVIDIA_VISIBLE_DEVICES=void \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 65534:65534
WORKDIR /out
ENTRYPOINT ["bench"]
CMD ["--help"]
