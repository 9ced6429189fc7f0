#!/usr/bin/env bash
# The cluster of the Vagrantfile without public boxes and without k3s: two machines, from a box that box.sh makes and with the
# programs of `cargo xtask cluster`, beside a libvirt of their own in namespaces of this host. Prints how long each part took.
#
#   cargo xtask image --echo-server            # or the image of a release, in target/images
#   deploy/vagrant/offline.sh                  # up, smoke, programs, destroy; ends with 1 if anything is wrong
#   deploy/vagrant/offline.sh up bash          # up, then a shell beside the machines: `vagrant ssh control`
#   deploy/vagrant/offline.sh destroy
#
# Root is needed, and these packages of Debian (apt-get install --no-install-recommends): vagrant vagrant-libvirt
# libvirt-daemon libvirt-daemon-driver-qemu libvirt-clients dnsmasq-base iptables qemu-system-x86 qemu-utils mmdebstrap rsync.
#
#   XDP_INGRESS_DRIVER   kvm or qemu; by default kvm if a kernel really starts with it, because a machine may have /dev/kvm
#                        that runs special kernels only
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
state=$root/target/machines
box=$state/lab.box
cd "$root"

timed() {
    local what=$1 began=$SECONDS
    shift
    echo "== $what"
    "$@" || { echo "== $what FAILED after $((SECONDS - began)) s" >&2; return 1; }
    echo "== $what took $((SECONDS - began)) s"
}

make_box() {
    cargo xtask cluster programs "$state/programs"
    "$here/box.sh" "$box" "$state/programs"
    # Vagrant would use an earlier box of this name.
    rm -rf "$state/programs" "$state/home/boxes"
}

# kvm_starts: whether the kernel of the box starts under KVM, so far that it asks for its root file system.
kvm_starts() {
    [ -w /dev/kvm ] || return 1
    tar --extract --file "$box" --directory "$state" vmlinuz
    timeout 20 qemu-system-x86_64 -accel kvm -m 256 -display none -serial "file:$state/kvm.console" -monitor none -no-reboot \
        -kernel "$state/vmlinuz" -append "console=ttyS0 panic=-1" </dev/null 2>"$state/kvm.log" || true
    grep -q 'Unable to mount root fs' "$state/kvm.console"
}

inside() {
    local action machine status=0
    for action in "$@"; do
        [ "$status" = 0 ] || [ "$action" = destroy ] || continue
        case $action in
            # --no-tty: lines for a log.
            up) timed "vagrant up" vagrant up --provider=libvirt --no-tty || status=1 ;;
            smoke) timed "smoke.sh from this host" env NODE_ADDRESSES="192.168.56.10 192.168.56.11" BPFTOOL= \
                TIMEOUT="$TIMEOUT" "$here/smoke.sh" || status=1 ;;
            programs)
                for machine in control worker-1; do
                    timed "programs.sh on $machine" vagrant ssh "$machine" --no-tty -c \
                        "sudo /vagrant/deploy/vagrant/programs.sh" || status=1
                done
                ;;
            destroy) vagrant destroy --force --no-tty || status=1 ;;
            *) $action || status=1 ;;
        esac
    done
    return "$status"
}

if [ "${1-}" = --inside ]; then
    shift
    inside "$@"
    exit
fi
[ $# -gt 0 ] || set -- up smoke programs destroy
mkdir -p "$state"
for image in xdp-ingress echo-server; do
    [ -e "target/images/$image.tar" ] || { echo "error: no target/images/$image.tar; run \`cargo xtask image --echo-server\`" >&2; exit 1; }
done
[ -e "$box" ] || timed "making the box" make_box
if [ -z "${XDP_INGRESS_DRIVER-}" ]; then
    XDP_INGRESS_DRIVER=qemu
    if kvm_starts; then XDP_INGRESS_DRIVER=kvm; fi
fi
echo "== machines run with ${XDP_INGRESS_DRIVER/qemu/emulation}"
TIMEOUT=180
[ "$XDP_INGRESS_DRIVER" = kvm ] || TIMEOUT=1800
export XDP_INGRESS_DRIVER TIMEOUT XDP_INGRESS_BOX=$box XDP_INGRESS_KUBERNETES=lab XDP_INGRESS_WORKERS=1
export VAGRANT_HOME=$state/home VAGRANT_DOTFILE_PATH=$state/machines VAGRANT_CHECKPOINT_DISABLE=1
export VAGRANT_DEFAULT_PROVIDER=libvirt
exec "$here/namespace.sh" "$here/offline.sh" --inside "$@"
