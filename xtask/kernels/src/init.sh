#!/bin/busybox sh
# The first and only script of a machine of `cargo xtask kernels`: drivers, addresses, the product. It tells by lines
# that begin with `guest:` how far it has come; src/kernels/console.rs reads them.

/bin/busybox mkdir -p /proc /sys /dev /run
/bin/busybox --install -s /bin
export PATH=/usr/bin:/bin NO_COLOR=1
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t bpf bpf /sys/fs/bpf

while read -r module; do
    insmod "/modules/$module" || echo "guest: failed: cannot load $module"
done </modules/order

sysctl -q -p /sysctls || echo "guest: failed: cannot set sysctls"
ip link set lo up
# DRIVER SUBNET in each line.
while read -r driver subnet; do
    for device in /sys/class/net/*; do
        [ "$(basename "$(readlink "$device/device/driver")")" = "$driver" ] || continue
        ip link set "${device##*/}" name "$driver"
        ip address add "10.0.$subnet.15/24" dev "$driver"
        ip link set "$driver" up
        until [ "$(cat "/sys/class/net/$driver/carrier")" = 1 ]; do sleep 0.1; done
        interfaces="$interfaces --interface $driver"
    done
done </nics

# Starts the product with further arguments, and waits until it is ready or has ended.
serve() {
    rm -f /run/ended
    (
        xdp-ingress run --manifests /manifests --workers 2 --probe-socket /run/probe.sock --admin-addr 0.0.0.0:9110 "$@"
        : >/run/ended
    ) &
    until xdp-ingress probe ready --socket /run/probe.sock 2>/dev/null; do
        [ ! -e /run/ended ] || return 1
        sleep 0.2
    done
}

# shellcheck disable=SC2046,SC2086 # each word is an argument
if serve $interfaces $(cat /arguments); then
    echo "guest: serves by programs"
elif serve --steer bind --xdp-mode off; then
    echo "guest: serves by listeners"
else
    echo "guest: failed: the product ends, with and without the programs"
fi
# The host ends the machine.
while :; do sleep 3600; done
