#!/usr/bin/env bash
# Builds the images on this machine (Debian 13 or later, as root) and hands them to the others over the cluster network.
# Environment: NODE_IP, this machine's address there; SOURCE, the work tree (/vagrant).
set -euo pipefail
: "${NODE_IP:?the address of this machine in the cluster network}"
images=/var/lib/xdp-ingress-images

export DEBIAN_FRONTEND=noninteractive
apt-get update
apt-get install --yes --no-install-recommends build-essential ca-certificates curl git python3 rustup
cd "${SOURCE:-/vagrant}"
rustup toolchain install
export CARGO_TARGET_DIR=/var/cache/xdp-ingress-target
cargo xtask image --echo-server --output "$images"

systemctl stop xdp-ingress-images.service 2>/dev/null || true
systemd-run --unit=xdp-ingress-images --collect \
    python3 -m http.server --bind "$NODE_IP" --directory "$images" 8000
