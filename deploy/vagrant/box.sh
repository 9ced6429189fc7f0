#!/usr/bin/env bash
# Makes a box for vagrant-libvirt out of Debian's packages: for hosts that reach a mirror of Debian, but no registry of boxes.
# Root, and mmdebstrap, e2fsprogs and qemu-utils, are needed. It starts no machine.
#
#   box.sh BOX [PROGRAMS]
#
#   BOX        the file to write, such as target/machines/debian.box
#   PROGRAMS   directory of Kubernetes' programs, made by `cargo xtask cluster programs`; the box gets them in /opt/kubernetes
#   SUITE      Debian's release (trixie)
#   MIRROR     URL of a mirror; by default Debian's own
#
# The box holds the kernel beside the disk, and starts it without a boot loader. Its user is `vagrant`, with the insecure key
# of Vagrant: such machines belong into networks of one host.
set -euo pipefail
box=${1:?the file to write}
programs=${2-}
suite=${SUITE:-trixie}
size=8 # GiB of the disk; blocks without content take no space in the file
key=$(find /usr/share/rubygems-integration /opt/vagrant -path '*/keys/vagrant.pub' 2>/dev/null | sed -n 1p || true)
[ -n "$key" ] || { echo "error: no vagrant.pub of Vagrant was found; is Vagrant installed?" >&2; exit 1; }
[ -z "$programs" ] || [ -x "$programs/bin/kubelet" ] || { echo "error: $programs has no bin/kubelet" >&2; exit 1; }

mkdir -p "$(dirname "$box")"
work=$(mktemp --directory --tmpdir="$(dirname "$box")" box.XXXXXX)
trap 'rm -rf --one-file-system "$work"' EXIT
root=$work/root

packages=systemd-sysv,udev,dbus,passwd,initramfs-tools,zstd,kmod,linux-image-cloud-$(dpkg --print-architecture)
packages+=,openssh-server,sudo,rsync,ca-certificates,curl,openssl,iproute2,iputils-ping,ethtool,procps,mount,netbase
packages+=,nftables,conntrack,libseccomp2,jq,bpftool
mmdebstrap --mode=root --variant=minbase --include="$packages" --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' "$suite" "$root" ${MIRROR:+"$MIRROR"}

chroot "$root" useradd --create-home --shell /bin/bash vagrant
install -d -m 700 "$root/home/vagrant/.ssh"
install -m 600 "$key" "$root/home/vagrant/.ssh/authorized_keys"
chroot "$root" chown -R vagrant:vagrant /home/vagrant/.ssh
echo 'vagrant ALL=(ALL) NOPASSWD: ALL' >"$root/etc/sudoers.d/vagrant"
chmod 440 "$root/etc/sudoers.d/vagrant"

echo debian >"$root/etc/hostname"
printf '127.0.0.1 localhost\n::1 localhost ip6-localhost\n127.0.1.1 debian\n' >"$root/etc/hosts"
echo '/dev/vda / ext4 defaults,noatime 0 0' >"$root/etc/fstab"
# Each machine gets a number of its own.
: >"$root/etc/machine-id"
printf '[Match]\nName=eth0\n\n[Network]\nDHCP=ipv4\n\n[DHCPv4]\nClientIdentifier=mac\nUseDNS=yes\n' \
    >"$root/etc/systemd/network/10-eth0.network"
printf '[Network]\nManageForeignRoutes=no\nManageForeignRoutingPolicyRules=no\n' >"$work/networkd.conf"
install -D -m 644 "$work/networkd.conf" "$root/etc/systemd/networkd.conf.d/kubernetes.conf"
chroot "$root" systemctl enable systemd-networkd.service ssh.service
# What runs by the clock would only disturb a machine that lives for an hour.
chroot "$root" systemctl mask apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer \
    e2scrub_reap.service fstrim.timer systemd-networkd-wait-online.service
printf 'overlay\nbr_netfilter\n' >"$root/etc/modules-load.d/kubernetes.conf"
printf 'net.ipv4.ip_forward = 1\nnet.ipv6.conf.all.forwarding = 1\n' >"$root/etc/sysctl.d/90-kubernetes.conf"

if [ -n "$programs" ]; then
    mkdir -p "$root/opt/kubernetes"
    cp -rL "$programs/." "$root/opt/kubernetes/"
    ln -s -t "$root/usr/local/bin" /opt/kubernetes/bin/kubectl /opt/kubernetes/bin/ctr
fi

cp -L "$root"/boot/vmlinuz-* "$work/vmlinuz"
cp -L "$root"/boot/initrd.img-* "$work/initrd.img"
rm -rf "$root"/boot/* "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/*
truncate --size="${size}G" "$work/disk.raw"
mke2fs -q -t ext4 -L root -E lazy_itable_init=1,lazy_journal_init=1 -d "$root" "$work/disk.raw"
qemu-img convert -O qcow2 "$work/disk.raw" "$work/box.img"
printf '{"provider": "libvirt", "format": "qcow2", "virtual_size": %s}\n' "$size" >"$work/metadata.json"
cat >"$work/Vagrantfile" <<'END'
Vagrant.configure("2") do |config|
  config.ssh.insert_key = false
  config.vm.provider "libvirt" do |libvirt|
    libvirt.kernel = File.expand_path("vmlinuz", __dir__)
    libvirt.initrd = File.expand_path("initrd.img", __dir__)
    # Names like eth0, as the public boxes have them. Mitigations cost much where each jump is emulated.
    libvirt.cmd_line = "root=/dev/vda rw console=ttyS0 loglevel=4 net.ifnames=0 mitigations=off"
    libvirt.disk_bus = "virtio"
    # A machine that is lost with its host is made again.
    libvirt.disk_driver cache: "unsafe"
    libvirt.graphics_type = "none"
    libvirt.random model: "random"
  end
end
END
tar --create --sparse --file "$box" --directory "$work" metadata.json Vagrantfile vmlinuz initrd.img box.img
echo "made $box: $(du --apparent-size --block-size=M "$box" | cut -f1), kernel $(basename "$root"/lib/modules/*)"
