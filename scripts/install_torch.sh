#!/usr/bin/env bash
# Installs torch with the pip of the given Python: the CPU build where there is no GPU.
# PyPI's Linux build carries CUDA (several GB), so without a GPU these are tried first: a torch that is
# there already, a CPU wheel that pip finds on this machine, PyTorch's own CPU index.
set -euo pipefail

python=${1:?usage: install_torch.sh PYTHON}
version=2.13.0
pip=("$python" -m pip --disable-pip-version-check --quiet)

say() { echo "install_torch: $*" >&2; }

if "$python" -c 'import torch' 2>/dev/null; then
    say "torch is installed already"
    exit
fi

if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then
    say "a GPU is here: installing torch from the package index"
    "${pip[@]}" install torch
    exit
fi

wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
if "${pip[@]}" download --no-deps --no-index --dest "$wheels" "torch==$version" >/dev/null 2>&1 &&
    # The CUDA build has the same version; only the CPU build is this small.
    [ "$(du -sm "$wheels" | cut -f1)" -lt 500 ]; then
    say "installing torch $version from a wheel on this machine"
    "${pip[@]}" install "$wheels"/torch-*.whl
    exit
fi

cpu_index=https://download.pytorch.org/whl/cpu
say "installing torch $version from PyTorch's CPU index"
if "${pip[@]}" download --timeout 10 --retries 0 --no-deps --index-url "$cpu_index" --dest "$wheels" \
    "torch==$version" >/dev/null 2>&1; then
    "${pip[@]}" install "$wheels"/torch-*.whl
    exit
fi

say "PyTorch's CPU index cannot be reached: installing torch from the package index (a large download)"
"${pip[@]}" install "torch==$version"
