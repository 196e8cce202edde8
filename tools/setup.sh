#!/usr/bin/env bash
# Everything a fresh Debian 12 (or Ubuntu) machine needs: system packages, .venv, the package itself.
# Idempotent: a stamp over the files that decide the installation makes the second call return at once.
#
#   tools/setup.sh          what every command needs
#   tools/setup.sh tests    and what tests need beside: Docker, whose service is not started, and Chromium
#
#   TORCH_INDEX=<url>   an extra package index for torch's CPU wheels (optional)
#   PYTHON=<python>     the interpreter for .venv (default: the first python3.11 or newer on PATH)
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { printf 'setup: %s\n' "$1" >&2; exit 3; }

stamp=.venv/.setup-stamp
wanted=$(cat tools/setup.sh pyproject.toml constraints.txt | sha256sum | cut -d' ' -f1)
programs=(mnexec ethtool tc ip nsenter sysctl ifconfig brctl iptables-restore cc dumpcap clang tshark prometheus promtool iperf3)
packages=(mininet iproute2 ethtool net-tools bridge-utils procps util-linux iptables gcc libc6-dev wireshark-common tshark
          clang libbpf-dev prometheus iperf3)
if [ "${1:-}" = tests ]; then
  programs+=(docker dockerd containerd runc chromium)
  packages+=(docker.io chromium)
fi
missing=()
for program in "${programs[@]}"; do
  command -v "$program" >/dev/null || missing+=("$program")
done
if [ "${#missing[@]}" -eq 0 ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then exit 0; fi

if [ "${#missing[@]}" -gt 0 ]; then
  [ "$(id -u)" -eq 0 ] || fail "missing ${missing[*]}; as root run: apt-get install --no-install-recommends ${packages[*]}"
  command -v apt-get >/dev/null || fail "missing ${missing[*]} and no apt-get; install your system's packages of ${packages[*]}"
  printf 'setup: installing system packages: %s\n' "${packages[*]}"
  export DEBIAN_FRONTEND=noninteractive
  # A run starts a Prometheus of its own, tests a Docker daemon: the packages' system services must not start, now or at
  # the next boot (systemctl unmask docker.service docker.socket containerd.service, to use that Docker otherwise).
  services=()
  command -v prometheus >/dev/null || services+=(prometheus.service)
  command -v dockerd >/dev/null || services+=(docker.service docker.socket containerd.service)
  for service in "${services[@]}"; do
    [ -e "/etc/systemd/system/$service" ] || { mkdir -p /etc/systemd/system && ln -s /dev/null "/etc/systemd/system/$service"; }
  done
  if [ "${#services[@]}" -gt 0 ] && [ ! -d /run/systemd/system ] && [ ! -e /usr/sbin/policy-rc.d ]; then
    printf '#!/bin/sh\ncase $1 in prometheus|docker|containerd) exit 101 ;; esac\n' >/usr/sbin/policy-rc.d
    chmod +x /usr/sbin/policy-rc.d
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
  fi
  { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${packages[@]}"; } >.setup-apt.log 2>&1 \
    || fail "apt-get could not install ${packages[*]} (see .setup-apt.log); check the network and /etc/apt/sources.list"
  rm -f .setup-apt.log
fi

find_python() {
  for candidate in ${PYTHON:-} python3 python3.13 python3.12 python3.11; do
    if "$candidate" -c 'import sys; raise SystemExit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$candidate"; return
    fi
  done
  fail "Python 3.11 or newer is needed; install it or name one with PYTHON=..."
}
python=$(find_python)
if [ ! -x .venv/bin/pip ]; then
  if ! "$python" -m venv .venv >/dev/null 2>&1; then
    [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null \
      || fail "$python cannot make a virtual environment; as root run: apt-get install python3-venv"
    apt-get install -y -qq --no-install-recommends python3-venv >/dev/null 2>&1 \
      || fail "$python cannot make a virtual environment and python3-venv could not be installed"
    "$python" -m venv .venv >/dev/null || fail "$python -m venv .venv failed"
  fi
fi
printf 'setup: installing Python packages into .venv (a minute the first time)\n'
index=()
[ -z "${TORCH_INDEX:-}" ] || index=(--extra-index-url "$TORCH_INDEX")
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile "${index[@]}" -c constraints.txt -e '.[all,dev]' \
  || fail "pip could not install the packages of pyproject.toml; the lines above say which (TORCH_INDEX=<url> names an index for torch)"
for folder in switch_agg testbed.system; do
  .venv/bin/python -m "$folder.native.build" || fail "the C sources of $folder could not be built"
done
.venv/bin/python -m testbed.system.native.libraries >/dev/null || fail "the C sources of the transports could not be built"
# pip would compile all 12,000 modules on one core. What our own modules import is compiled here, whatever the environment
# says of bytecode; the rest when it is imported.
PYTHONDONTWRITEBYTECODE= .venv/bin/python - <<'END' || fail "what was installed cannot be imported; the lines above say what"
import importlib
import pkgutil

import torch._dynamo  # which DistributedDataParallel imports

for package in ("switch_agg", "transports", "testbed"):
    for module in pkgutil.walk_packages([package], f"{package}."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
END
printf '%s' "$wanted" > "$stamp"
