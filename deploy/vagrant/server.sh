#!/usr/bin/env bash
# Makes this machine the control plane (and a node) of a k3s cluster whose ports 80 and 443 are free: no Traefik, no
# servicelb. Environment: NODE_IP, this machine's address in the cluster network; K3S_TOKEN, the secret that nodes join with;
# K3S_CHANNEL, the release channel of k3s (stable).
set -euo pipefail
: "${NODE_IP:?the address of this machine in the cluster network}" "${K3S_TOKEN:?the secret that nodes join with}"

interface=$(ip -oneline -4 address show | awk -v ip="$NODE_IP" '{ split($4, a, "/"); if (a[1] == ip) print $2 }')
[ -n "$interface" ] || { echo "error: no interface has the address $NODE_IP" >&2; exit 1; }

curl -fsSL https://get.k3s.io | INSTALL_K3S_CHANNEL=${K3S_CHANNEL:-stable} K3S_TOKEN=$K3S_TOKEN sh -s - server \
    --disable=traefik --disable=servicelb --node-ip="$NODE_IP" --advertise-address="$NODE_IP" --flannel-iface="$interface"
