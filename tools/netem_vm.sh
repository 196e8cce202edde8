#!/usr/bin/env bash
# Runs tests/netem_vm in a virtual machine with Debian's stock kernel, which has netem: for machines whose kernel has
# not. No KVM is needed (nor used); a few minutes. The guest sees this machine's file system, so the checkout must not
# lie under a directory that the guest mounts afresh (the temporary directories, /run, /var).
set -euo pipefail
cd "$(dirname "$0")/.."
fail() { printf 'netem-vm: %s\n' "$1" >&2; exit 3; }
[ "$(id -u)" -eq 0 ] || fail "needs root"
case "$PWD/" in /tmp/*|/run/*|/var/*) fail "$PWD is hidden in the guest; clone somewhere else, such as /root or /home" ;; esac

work=$PWD/.netem-vm
mkdir -p "$work"
if ! command -v qemu-system-x86_64 >/dev/null || ! command -v depmod >/dev/null || ! command -v busybox >/dev/null; then
  apt-get install -y -qq --no-install-recommends qemu-system-x86 kmod busybox-static >"$work/apt.log" 2>&1 \
    || fail "apt-get could not install qemu-system-x86 kmod busybox-static (see $work/apt.log)"
fi
if [ ! -d "$work/kernel/boot" ]; then
  package=$(apt-cache depends linux-image-amd64 | grep -oE 'linux-image-[0-9][^ ]+' | head -1)
  [ -n "$package" ] || fail "apt knows no linux-image-amd64; run apt-get update"
  (cd "$work" && apt-get download -qq "$package" 2>/dev/null && dpkg -x linux-image-*.deb kernel) \
    || fail "cannot download $package"
fi
if [ ! -x "$work/venv/bin/virtme-ng" ]; then
  .venv/bin/python -m venv "$work/venv" && "$work/venv/bin/pip" install -q --disable-pip-version-check virtme-ng \
    || fail "cannot install virtme-ng"
fi
version=$(ls "$work/kernel/lib/modules")
modules=/lib/modules/$version
if [ ! -e "$modules" ]; then
  # The guest looks for its modules here; ours to make, ours to remove.
  mkdir -p /lib/modules
  ln -s "$work/kernel/lib/modules/$version" "$modules"
  trap 'rm -f "$modules"' EXIT
  depmod "$version"
fi

cat > "$work/guest.sh" <<GUEST
#!/bin/bash
exec > "$work/guest.log" 2>&1
export HOME=/root PATH=$PWD/.venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
uname -r
modprobe -a sch_netem ifb act_mirred cls_u32 sch_htb sch_ingress veth tcp_diag inet_diag
cd "$PWD"
python -m pytest -q -p no:cacheprovider --timeout 600 tests/netem_vm
echo "guest: exit \$?"
GUEST
chmod +x "$work/guest.sh"
rm -f "$work/guest.log"
# script(1) gives it the terminal that it insists on.
PATH=$work/venv/bin:$PATH script -qec "virtme-ng --verbose --disable-kvm --rw -r $work/kernel/boot/vmlinuz-$version \
  --memory 3G --cpus 2 --exec $work/guest.sh" "$work/console.log" >/dev/null </dev/null || true
cat "$work/guest.log" 2>/dev/null || fail "the guest did not start; see $work/console.log"
grep -q '^guest: exit 0$' "$work/guest.log"
