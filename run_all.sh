#!/usr/bin/env bash
# The one entry: sets up .venv, then builds the report or runs the tests. Works from any folder.
set -euo pipefail

usage() {
  cat <<'HELP'
usage: ./run_all.sh [--profile demo|cpu|gpu] [--only 03] [--data DIR] [--force] [--workers N]
       ./run_all.sh test

Without a word: installs what is needed into .venv, builds build/report/index.html, a site of the committed
outputs, then executes every notebook on the stored runs of the real datasets, and replaces page by page.
It needs no dataset. What is up to date is not executed again; after an interruption the same command goes on.

  --profile P   cpu:  the stored runs with the 6-layer MiniLM encoder, and your own (default)
                demo: every grid trained from scratch on the embedded corpus, four minutes on two cores
                gpu:  bert-base-uncased with the papers' own settings; its runs have to be trained first
  --only 03     only this notebook (its number or the start of its name)
  --data DIR    folder with the datasets (see: mtbert data fetch)
  --force       execute again what is up to date
  --workers N   processes that work side by side, of one thread each (default: the cores, at most 4)

  test          ruff, pytest, and the committed notebooks re-executed against their outputs
HELP
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=$root/.venv/bin/python

fail() {
  echo "run_all.sh: $*" >&2
  exit 1
}

supported='import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'

# Prints the first Python 3.11 to 3.13 that can make virtual environments.
find_python() {
  local candidate
  for candidate in python3.11 python3 python python3.12 python3.13; do
    "$candidate" -c "$supported" 2>/dev/null || continue
    "$candidate" -c 'import venv, ensurepip' 2>/dev/null ||
      fail "$candidate cannot make virtual environments; install its venv module (Debian, Ubuntu: python3-venv)"
    echo "$candidate"
    return
  done
  fail "no Python 3.11, 3.12 or 3.13 found; install one and run this again"
}

# What the installed environment depends on; .venv/installed holds a copy once everything is in place.
wanted() {
  echo "$root"
  cat "$root/requirements.lock" "$root/pyproject.toml" "$root/.venv/pyvenv.cfg"
}

pip_install() {
  "$python" -m pip install --no-input --disable-pip-version-check "$@" ||
    fail "'pip install $*' failed (see above); run this again to go on"
}

set_up() {
  if wanted 2>/dev/null | cmp -s - "$root/.venv/installed"; then return; fi
  echo "Setting up .venv (once)"
  rm -f "$root/.venv/installed"
  if ! "$python" -m pip --version >/dev/null 2>&1; then
    local base
    base=$(find_python)
    "$base" -m venv "$root/.venv" || fail "'$base -m venv .venv' failed (see above)"
  fi
  "$python" -c "$supported" ||
    fail ".venv holds another Python than 3.11 to 3.13; move it away and run this again"
  # torch first and with its own dependencies: on Linux they include the CUDA libraries it imports.
  # Everything else comes from the lock, without resolving again.
  pip_install "$(grep '^torch==' "$root/requirements.lock")"
  pip_install --no-deps -r "$root/requirements.lock"
  pip_install --no-deps --no-build-isolation -e "$root"
  wanted >"$root/.venv/installed"
}

failed=()
step() {
  echo
  echo "== $*"
  "$python" -m "$@" || failed+=("'$*'")
}

run_tests() {
  cd "$root"
  export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} # torch's threads wait by spinning, which other work makes slow
  unset PYTHONDONTWRITEBYTECODE # every process would compile the packages again
  local workers=$(($(getconf _NPROCESSORS_ONLN) + 1)) # one more than cores: tests wait for files and processes
  step ruff check .
  step ruff format --check .
  step pytest -n "$workers" --dist worksteal
  export MTBERT_RESULTS=$root/results MTBERT_FIGURES=$root/build/figures # read what is committed, draw elsewhere
  local pages
  pages=$(ls -r notebooks/*.ipynb | grep -v 02_)
  # 02 first, as it takes longest; shellcheck disable=SC2086
  step pytest --nbval notebooks/02_*.ipynb $pages -n "$workers" --dist loadfile --no-loadscope-reorder
  [ ${#failed[@]} -eq 0 ] || fail "failed: ${failed[*]}"
}

for argument in "$@"; do
  case $argument in -h | --help) usage && exit ;; esac
done

case ${1:-} in
test)
  [ $# -eq 1 ] || fail "'test' takes no options; see ./run_all.sh --help"
  set_up
  run_tests
  ;;
"" | --*)
  set_up
  exec "$python" -m mtbert_lab report --out "$root/build" "$@"
  ;;
*) fail "unknown command '$1'; see ./run_all.sh --help" ;;
esac
