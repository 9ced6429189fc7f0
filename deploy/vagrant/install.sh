#!/usr/bin/env bash
# Installs xdp-ingress and the examples. Everything that differs between clusters is in the environment:
#
#   IMAGES      image files, or URLs of them, to import on this machine; none by default
#   IMPORT      command that imports the image whose file is appended (`k3s ctr images import`)
#   KUBECTL     command that reaches the cluster (`kubectl`); empty: only the images are imported
#   OVERLAY     what is installed (deploy/base)
#   EXAMPLES    the examples (deploy/vagrant/examples)
#   TIMEOUT     seconds to wait for pods (180)
#
#   IMAGES="target/images/xdp-ingress.tar target/images/echo-server.tar" KUBECTL="k3s kubectl" deploy/vagrant/install.sh
set -euo pipefail
deploy=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Commands with arguments are split into words on purpose.
read -ra import <<<"${IMPORT-k3s ctr images import}"
read -ra kubectl <<<"${KUBECTL-kubectl}"
read -ra images <<<"${IMAGES-}"
overlay=${OVERLAY:-$deploy/base}
examples=${EXAMPLES:-$deploy/vagrant/examples}
timeout=${TIMEOUT:-180}

for image in "${images[@]}"; do
    file=$image
    if [[ $image == http://* || $image == https://* ]]; then
        file=$(mktemp --suffix=.tar)
        curl -fsS --retry 20 --retry-connrefused --retry-delay 3 --output "$file" "$image"
    fi
    # containerd may have been started a moment ago.
    for attempt in $(seq 30); do
        if said=$("${import[@]}" "$file" 2>&1); then break; fi
        [ "$attempt" -lt 30 ] || { printf '%s\nerror: cannot import %s\n' "$said" "$image" >&2; exit 1; }
        sleep 1
    done
    echo "imported $image"
    [ "$file" = "$image" ] || rm "$file"
done
[ ${#kubectl[@]} -gt 0 ] || exit 0

# New images under the old name are used by new pods only.
runs=$("${kubectl[@]}" --namespace xdp-ingress get daemonset xdp-ingress --ignore-not-found --output name)
"${kubectl[@]}" apply -k "$overlay"
if [ -n "$runs" ] && [ ${#images[@]} -gt 0 ]; then
    "${kubectl[@]}" --namespace xdp-ingress rollout restart daemonset/xdp-ingress
fi
"${kubectl[@]}" kustomize --load-restrictor=LoadRestrictionsNone "$examples" | "${kubectl[@]}" apply -f -
"${kubectl[@]}" --namespace xdp-ingress rollout status daemonset/xdp-ingress --timeout="${timeout}s"
# troubled/starting never has a ready pod: the example is about that.
for name in shop/web shop/api docs/guide docs/landing media/media preview/branches preview/main account/account \
    troubled/fine troubled/refusing; do
    "${kubectl[@]}" --namespace "${name%/*}" rollout status "deployment/${name#*/}" --timeout="${timeout}s"
done
