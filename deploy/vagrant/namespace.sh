#!/usr/bin/env bash
# Runs a command beside a libvirt of its own, in namespaces: machines, bridges and firewall rules do not touch this host, and
# end with the command. Disks and definitions stay in STATE, so the next command finds the same machines, switched off.
# Root, libvirt-daemon, libvirt-daemon-driver-qemu, libvirt-clients, dnsmasq-base, iptables and QEMU are needed; no systemd.
#
#   namespace.sh COMMAND [ARGUMENT]…
#
#   STATE   directory of libvirt's files (target/machines/libvirt of the work tree)
#
#   deploy/vagrant/namespace.sh virsh list --all
#   deploy/vagrant/namespace.sh bash
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export STATE=${STATE:-$here/../../target/machines/libvirt}

if [ "${XDP_INGRESS_INSIDE-}" != yes ]; then
    [ $# -gt 0 ] || { echo "usage: namespace.sh COMMAND [ARGUMENT]…" >&2; exit 2; }
    [ "$(id -u)" = 0 ] || { echo "error: only root may make namespaces" >&2; exit 1; }
    XDP_INGRESS_INSIDE=yes exec unshare --net --mount --propagation private --pid --fork --kill-child --mount-proc \
        -- "$0" "$@"
fi

mkdir -p "$STATE"/{etc,lib,log,cache}
STATE=$(cd "$STATE" && pwd)
ip link set lo up
mount -t tmpfs -o mode=755 tmpfs /run
# Without control groups libvirt makes none.
umount --recursive --lazy /sys/fs/cgroup 2>/dev/null || true
# The interfaces of this namespace, instead of the host's.
mount -t sysfs sysfs /sys
for pair in etc:/etc/libvirt lib:/var/lib/libvirt log:/var/log/libvirt cache:/var/cache/libvirt; do
    mkdir -p "${pair#*:}"
    mount --bind "$STATE/${pair%%:*}" "${pair#*:}"
done
# libvirt does not start without the user that libvirt-daemon-system would have made; here it is known inside only.
if ! getent passwd libvirt-qemu >/dev/null; then
    (cat /etc/passwd && echo 'libvirt-qemu:x:64055:64055::/var/lib/libvirt:/usr/sbin/nologin') >/run/passwd
    (cat /etc/group && echo 'libvirt-qemu:x:64055:') >/run/group
    mount --bind /run/passwd /etc/passwd
    mount --bind /run/group /etc/group
fi
cat >/etc/libvirt/qemu.conf <<'END'
user = "root"
group = "root"
dynamic_ownership = 0
remember_owner = 0
security_driver = "none"
namespaces = []
cgroup_controllers = []
stdio_handler = "file"
END
cat >/etc/libvirt/libvirtd.conf <<'END'
auth_unix_ro = "none"
auth_unix_rw = "none"
END
libvirtd --config /etc/libvirt/libvirtd.conf >/var/log/libvirt/libvirtd.log 2>&1 &
export LIBVIRT_DEFAULT_URI=qemu:///system
for attempt in $(seq 60); do
    if said=$(virsh --quiet list 2>&1); then break; fi
    [ "$attempt" -lt 60 ] || { printf '%s\nerror: libvirtd does not answer, see %s\n' "$said" "$STATE/log" >&2; exit 1; }
    sleep 0.5
done
set +e
"$@"
status=$?
# Machines that are told to stop do not find a damaged disk next time.
for machine in $(virsh --quiet list --name); do virsh --quiet shutdown "$machine" >/dev/null; done
for _ in $(seq "${SHUTDOWN_SECONDS:-60}"); do
    [ -n "$(virsh --quiet list --name)" ] || break
    sleep 1
done
exit "$status"
