#!/usr/bin/env bash
# Reads the kernel part of this node with bpftool. Ends with 1 unless each interface runs an XDP program in the mode that is
# expected, packets to the served ports were counted on one of them, and the host is known.
#
#   INTERFACES   the interfaces (`eth0 eth1`)
#   MODE         bpftool's word for the mode: driver is native (`driver`)
#   HOST         the host whose requests are printed (`shop.example.com`)
#   BPFFS        the directory of pins (/sys/fs/bpf/xdp-ingress)
set -euo pipefail
pins=${BPFFS:-/sys/fs/bpf/xdp-ingress}/v1
host=${HOST:-shop.example.com}
mode=${MODE:-driver}
failed=0
counted=0

# key NUMBER: its four bytes, lowest first.
key() { echo "$(($1 & 255)) $(($1 >> 8 & 255)) $(($1 >> 16 & 255)) $(($1 >> 24 & 255))"; }

attached=$(bpftool net show)
for interface in ${INTERFACES:-eth0 eth1}; do
    index=$(cat "/sys/class/net/$interface/ifindex")
    driver=$(basename "$(readlink -f "/sys/class/net/$interface/device/driver")")
    line=$(awk -v "name=$interface($index)" '/^tc:/ { exit } $1 == name' <<<"$attached")
    # shellcheck disable=SC2046 # the bytes are words
    read -r received sent < <(bpftool map lookup pinned "$pins/maps/nic_net" key $(key "$index") |
        jq -r '[.values[].value] | "\(map(.rx_packets) | add) \(map(.tx_packets) | add)"')
    echo "$interface ($driver): ${line:-no XDP program}; packets received $received, sent $sent"
    counted=$((counted + received))
    [[ $line == *" $mode "* ]] || { echo "error: $interface has no program in mode $mode" >&2; failed=1; }
done
id=$(bpftool map dump pinned "$pins/maps/host_ids" | jq --arg host "$host" '.[] | select(.key.name == $host).value')
if [ -n "$id" ]; then
    # shellcheck disable=SC2046
    bpftool map lookup pinned "$pins/maps/host_l7" key $(key "$id") | jq -c --arg host "$host" '{host: $host} + .value.requests'
else
    echo "error: $host has no number" >&2
    failed=1
fi
[ "$counted" -gt 0 ] || { echo "error: no packets were counted" >&2; failed=1; }
exit "$failed"
