#!/usr/bin/env bash
# Checks what needs a CUDA device, with random models and no network, in under 8 minutes; see gpu_check.py.
#
#     scripts/gpu_check.sh [PYTHON] [--only PART ...]
set -euo pipefail
cd "$(dirname "$0")/.."
python=python3
if [ $# -gt 0 ] && [ "${1#-}" = "$1" ]; then
    python=$1
    shift
fi
exec "$python" -m scripts.gpu_check "$@"
