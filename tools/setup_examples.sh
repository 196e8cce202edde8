#!/usr/bin/env bash
# A virtual environment beside .venv for examples/with_*.py: everything of .venv, and what is in examples/requirements.txt.
# Nothing of .venv is changed. Idempotent, as tools/setup.sh is, which has to have run.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { printf 'setup: %s\n' "$1" >&2; exit 3; }

venv=.venv-examples
wanted=$(cat tools/setup_examples.sh examples/requirements.txt constraints.txt | sha256sum | cut -d' ' -f1)
if [ "$(cat "$venv/.setup-stamp" 2>/dev/null)" = "$wanted" ]; then exit 0; fi

.venv/bin/python -m venv --clear --without-pip "$venv" || fail "$venv could not be made"
folder() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
printf 'import site; site.addsitedir(%s)\n' "'$(folder .venv)'" > "$(folder "$venv")/beside.pth"
printf 'setup: installing what the examples need into %s (a minute the first time)\n' "$venv"
# DeepSpeed is built from its source, without its extensions, by the setuptools of .venv and beside the torch there.
DS_BUILD_OPS=0 "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps \
  -c constraints.txt -r examples/requirements.txt \
  || fail "pip could not install examples/requirements.txt; the lines above say which"
printf '%s' "$wanted" > "$venv/.setup-stamp"
