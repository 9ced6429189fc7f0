#!/usr/bin/env bash
# Makes this machine a node of the cluster that server.sh made. Environment: NODE_IP, this machine's address in the cluster
# network; SERVER_IP, the control plane's; K3S_TOKEN; K3S_CHANNEL (stable).
set -euo pipefail
: "${NODE_IP:?the address of this machine in the cluster network}" "${SERVER_IP:?the address of the control plane}"
: "${K3S_TOKEN:?the secret that nodes join with}"

interface=$(ip -oneline -4 address show | awk -v ip="$NODE_IP" '{ split($4, a, "/"); if (a[1] == ip) print $2 }')
[ -n "$interface" ] || { echo "error: no interface has the address $NODE_IP" >&2; exit 1; }

curl -fsSL https://get.k3s.io | INSTALL_K3S_CHANNEL=${K3S_CHANNEL:-stable} K3S_TOKEN=$K3S_TOKEN \
    K3S_URL=https://$SERVER_IP:6443 sh -s - agent --node-ip="$NODE_IP" --flannel-iface="$interface"
