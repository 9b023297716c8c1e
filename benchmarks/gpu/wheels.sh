#!/usr/bin/env bash
# Downloads wheels of requirements.lock for a GPU machine that has no network.
#   benchmarks/gpu/wheels.sh DIR [NAME...]      default: what bench and DeepSpeed need beside torch and transformers
# There: pip install --no-index --no-deps --target SITE DIR/*.whl, and SITE in PYTHONPATH.
# PYTHON_VERSION (3.12) is that of the machine.
set -euo pipefail
dir=${1:?usage: wheels.sh DIR [NAME...]}
shift
here=$(cd "$(dirname "$0")/../.." && pwd)
[ $# -gt 0 ] || set -- attrs jsonschema jsonschema-specifications referencing rpds-py typing-extensions packaging \
  tabulate rich markdown-it-py mdurl pygments cryptography cffi pycparser bcrypt nvidia-ml-py \
  hjson msgpack ninja psutil py-cpuinfo pydantic pydantic-core annotated-types typing-inspection einops tqdm
pinned=()
for name; do
  version=$(sed -n "s/^$name==\([^ ]*\).*/\1/p" "$here/requirements.lock")
  pinned+=("$name==${version:?$name is not in requirements.lock}")
done
platforms=(--platform manylinux2014_x86_64 --platform manylinux1_x86_64)
for glibc in {39..17}; do platforms+=(--platform "manylinux_2_${glibc}_x86_64"); done
mkdir -p "$dir"
"${PIP:-pip}" download --quiet --no-deps --only-binary=:all: --implementation cp \
  --python-version "${PYTHON_VERSION:-3.12}" "${platforms[@]}" --dest "$dir" "${pinned[@]}"
du -sh "$dir"
