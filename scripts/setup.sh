#!/usr/bin/env bash
# Makes .venv ready. Usage: scripts/setup.sh [runtime|dev]; run again at any time.
#   PYTHON        the Python 3.11 or 3.12 to build on (default: the first that is found)
#   AGENTRL_VENV  where the environment goes (default: .venv)
set -euo pipefail
cd "$(dirname "$0")/.."

readonly WANT="${1:-dev}" TORCH=2.13.0
readonly VENV="${AGENTRL_VENV:-.venv}"
readonly PY="$VENV/bin/python"
readonly OVER=(examples/strands/requirements.txt requirements/trackers.txt)

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 3; }
is_supported() {
  "$1" -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' 2>/dev/null
}
version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])'; }

find_python() {
  local candidate candidates=(python3.11 python3.12 python3 python)
  [ -z "${PYTHON:-}" ] || candidates=("$PYTHON")
  for candidate in "${candidates[@]}"; do
    if command -v "$candidate" >/dev/null && is_supported "$candidate"; then
      command -v "$candidate"
      return
    fi
  done
  die "Python 3.11 or 3.12 is needed (the locked wheels fix the versions) and none was" \
    "found${PYTHON:+; PYTHON=$PYTHON is neither}. Install python3.11 with its venv module, or name" \
    "one: make setup PYTHON=/path/to/python3.12"
}

# What the environment was made from: the stamp of a finished setup holds the same line.
state() {
  cat requirements/runtime.txt pyproject.toml scripts/setup.sh \
    $([ "$1" = dev ] && echo requirements/dev.txt "${OVER[@]}") | sha256sum | cut -d' ' -f1
}

is_done() { [ -x "$PY" ] && [ "$(cat "$VENV/.setup-$1" 2>/dev/null)" = "$(state "$1")" ]; }

# An environment over this one, of what asks other versions of its packages: $VENV/over/NAME.
install_over() {
  local over="$VENV/over/$1"
  "$PY" -m venv --clear --without-pip "$over"
  "$PY" -m pip --python "$over/bin/python" install -qq --disable-pip-version-check \
    --require-hashes --no-deps -r "$2"
  "$PY" -c 'import sys, sysconfig
path = sysconfig.get_path("purelib", vars={"base": sys.argv[1]})
below = sysconfig.get_path("purelib")
open(f"{path}/below.pth", "w").write(f"import site; site.addsitedir({below!r})\n")' "$over"
}

install() { "$PY" -m pip install -qq --disable-pip-version-check "$@"; }

has_torch() {
  "$PY" -c 'import sys; from importlib.metadata import version as v
sys.exit(not v("torch").startswith(sys.argv[1]))' "${TORCH%.*}." 2>/dev/null
}

[ "$WANT" = runtime ] || [ "$WANT" = dev ] || die "unknown set '$WANT'; use runtime or dev"
if [ -n "${PYTHON:-}" ] && [ -x "$PY" ]; then
  python="$(find_python)"
  [ "$(version_of "$PY")" = "$(version_of "$python")" ] ||
    die "$VENV is of Python $(version_of "$PY"), PYTHON=$PYTHON of $(version_of "$python"): remove" \
      "$VENV, or have another beside it (VENV=.venv-$(version_of "$python"))"
fi
if is_done "$WANT" || { [ "$WANT" = runtime ] && is_done dev; }; then
  say "$VENV is up to date"
  exit 0
fi

started=$SECONDS
if [ ! -x "$PY" ]; then
  python="$(find_python)"
  say "making $VENV with $python"
  "$python" -m venv "$VENV" ||
    die "$python has no venv module; on Debian and Ubuntu: apt install" \
      "python$(version_of "$python")-venv"
fi
is_supported "$PY" || die "$VENV is of neither Python 3.11 nor 3.12; remove it and run this again"

# First and outside the lock: which build is right depends on the host. One that is there is kept.
if ! has_torch; then
  say "installing torch $TORCH as this host's pip provides it"
  install "torch==$TORCH"
fi
say "installing $(grep -c '==' requirements/runtime.txt) locked packages (requirements/runtime.txt)"
install --require-hashes --no-deps -r requirements/runtime.txt
if [ "$WANT" = dev ]; then
  say "installing $(grep -c '==' requirements/dev.txt) locked packages (requirements/dev.txt)"
  install --require-hashes --no-deps -r requirements/dev.txt
  for lock in "${OVER[@]}"; do
    name="$([ "${lock##*/}" = requirements.txt ] && basename "${lock%/*}" || basename "$lock" .txt)"
    say "installing $(grep -c '==' "$lock") packages for tests alone in $VENV/over/$name ($lock)"
    install_over "$name" "$lock"
  done
fi
say "installing agentrl itself (editable)"
install --no-deps --no-build-isolation -e .
state "$WANT" >"$VENV/.setup-$WANT"
say "$VENV is ready after $((SECONDS - started)) s"
