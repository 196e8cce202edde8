#!/usr/bin/env bash
# Build the image that `runtime: docker` uses by default.
#
#   BASE=<image>   to build upon (default: python:3.11-slim-bookworm if it is here; otherwise Debian, by debootstrap)
#   IMAGE=<name>   what to call it (default: ina-testbed-worker)
#
# Wheels come through this machine's pip, so that whatever index it knows is used and none is written down. They must fit
# the base's Python: it is the version of .venv, or the build says so.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { printf 'image: %s\n' "$1" >&2; exit 3; }

image=${IMAGE:-ina-testbed-worker}
official=python:3.11-slim-bookworm
docker info >/dev/null 2>&1 || fail "no Docker daemon answers; start it (systemctl start docker), or point DOCKER_HOST at one"

debian_base() {
  local name=ina-testbed-base
  if ! docker image inspect "$name" >/dev/null 2>&1; then
    [ "$(id -u)" -eq 0 ] || fail "debootstrap needs root: sudo make image, or BASE=<an image with Python 3.11>"
    command -v debootstrap >/dev/null || apt-get install -y -qq --no-install-recommends debootstrap >/dev/null \
      || fail "debootstrap is missing: apt-get install debootstrap, or BASE=<an image with Python 3.11>"
    local root
    root=$(mktemp -d /var/tmp/testbed-base.XXXXXX)
    trap 'rm -rf "$root"' RETURN
    printf 'image: making a Debian base with debootstrap (a minute)\n' >&2
    debootstrap --variant=minbase --include=python3,python3-venv bookworm "$root" >"$root.log" 2>&1 \
      || { tail -5 "$root.log" >&2; fail "debootstrap failed (see $root.log); or BASE=<an image with Python 3.11>"; }
    rm -rf "$root.log" "$root"/var/cache/apt/*.bin "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* \
      "$root"/usr/share/{doc,man,info,locale}/*
    tar -C "$root" -c . | docker import --change 'CMD ["python3"]' - "$name" >/dev/null
  fi
  echo "$name"
}

base=${BASE:-}
if [ -z "$base" ]; then
  if docker image inspect "$official" >/dev/null 2>&1; then base=$official; else base=$(debian_base); fi
fi

context=build/image
rm -rf "$context" && mkdir -p "$context"/{wheels,native}
cp docker/Dockerfile.worker docker/requirements-worker.txt constraints.txt "$context"
printf 'image: collecting wheels\n'
.venv/bin/python -m pip download --quiet --disable-pip-version-check --dest "$context/wheels" \
  --constraint constraints.txt --requirement docker/requirements-worker.txt \
  || fail "pip could not fetch the wheels; the lines above say which"
.venv/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$context/wheels" . \
  || fail "pip could not build this package's wheel"
# The C that workers load: for a base whose C library is this machine's, or newer.
.venv/bin/python -m testbed.system.native.libraries | xargs realpath --relative-to=. \
  | xargs cp --parents --target-directory="$context/native" \
  || fail "the C sources that workers load could not be built; the lines above say why"
printf 'image: building %s upon %s\n' "$image" "$base"
docker build --quiet --network none --build-arg "BASE=$base" --tag "$image" --file "$context/Dockerfile.worker" "$context" \
  >/dev/null || fail "docker build failed; the lines above say where (wheels are for the Python of .venv: $(.venv/bin/python -V))"
rm -rf "$context"
docker image inspect --format '{{.Size}}' "$image" | awk -v image="$image" '{ printf "image: %s, %.0f MB\n", image, $1 / 1e6 }'
