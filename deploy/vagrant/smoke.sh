#!/usr/bin/env bash
# Sends the requests of deploy/examples through every node and checks what comes back. Ends with 1 if anything is wrong.
#
#   NODE_ADDRESSES  addresses of the nodes, IPv4 or IPv6
#   CURL            command for requests (`curl`); a prefix chooses the namespace: `ip netns exec client curl`
#   KUBECTL         if set, the status of an Ingress is checked with it
#   BPFTOOL, BPFFS  command and directory for the counters (`bpftool`, /sys/fs/bpf/xdp-ingress), read where both are there
#   TIMEOUT         seconds to wait for the first right answer of each kind (120)
#
#   NODE_ADDRESSES="192.168.56.10 192.168.56.11" deploy/vagrant/smoke.sh
set -euo pipefail
: "${NODE_ADDRESSES:?the addresses of the nodes}"
read -ra curl <<<"${CURL:-curl}"
read -ra kubectl <<<"${KUBECTL-}"
read -ra bpftool <<<"${BPFTOOL-bpftool}"
bpffs=${BPFFS:-/sys/fs/bpf/xdp-ingress}
timeout=${TIMEOUT:-120}
passed=0
failed=0

# check ADDRESS URL STATUS PATTERN: PATTERN is a regular expression for a line of the answer's head.
check() {
    local address=$1 url=$2 status=$3 pattern=$4 host port answer deadline=$((SECONDS + timeout))
    host=${url#*://}
    host=${host%%/*}
    port=80
    [[ $url == https://* ]] && port=443
    [[ $address == *:* ]] && address="[$address]"
    while true; do
        # The certificate of the examples is not in the repository, so it is the self-signed one.
        answer=$("${curl[@]}" --silent --show-error --insecure --max-time 10 --dump-header - --output /dev/null \
            --resolve "$host:$port:$address" "$url" 2>&1 | tr -d '\r') || true
        if grep -Eq "^HTTP/[0-9.]+ $status( |\$)" <<<"$answer" && grep -Eiq "$pattern" <<<"$answer"; then
            passed=$((passed + 1))
            return
        fi
        [ "$SECONDS" -lt "$deadline" ] || break
        sleep 0.5
    done
    failed=$((failed + 1))
    printf 'FAILED  %s by %s: expected %s and /%s/, got:\n%s\n' "$url" "$address" "$status" "$pattern" "$answer" >&2
}

for address in $NODE_ADDRESSES; do
    check "$address" http://shop.example.com/ 200 '^x-pod: web-'
    check "$address" http://shop.example.com/api/orders 200 '^x-pod: api-'
    check "$address" http://shop.example.com/apis 200 '^x-pod: web-'
    check "$address" http://shop.example.com/healthz 200 '^x-pod: web-'
    check "$address" http://shop.example.com/bytes/300000 200 '^content-length: 300000$'
    check "$address" http://docs.example.com/guide/start 200 '^x-pod: guide-'
    check "$address" http://docs.example.com/elsewhere 200 '^x-pod: landing-'
    check "$address" http://media.example.com/files 200 '^x-pod: media-'
    check "$address" http://feature.preview.example.com/ 200 '^x-pod: branches-'
    check "$address" http://main.preview.example.com/ 200 '^x-pod: main-'
    check "$address" http://preview.example.com/ 404 '^server:'
    check "$address" http://nobody.example.com/ 404 '^server:'
    check "$address" http://account.example.com/login 308 '^location: https://account\.example\.com/login'
    check "$address" https://account.example.com/login 200 '^x-pod: account-'
    check "$address" http://troubled.example.com/ 200 '^x-pod: fine-'
    check "$address" http://troubled.example.com/starting 503 '^server:'
    check "$address" http://troubled.example.com/gone 503 '^server:'
    check "$address" http://troubled.example.com/refusing 502 '^server:'
done

if [ ${#kubectl[@]} -gt 0 ]; then
    deadline=$((SECONDS + timeout))
    until addresses=$("${kubectl[@]}" --namespace shop get ingress shop --output jsonpath='{.status.loadBalancer.ingress}') &&
        [ -n "$addresses" ]; do
        if [ "$SECONDS" -ge "$deadline" ]; then break; fi
        sleep 0.5
    done
    if [ -n "$addresses" ]; then
        passed=$((passed + 1))
        echo "status of shop/shop: $addresses"
    else
        failed=$((failed + 1))
        echo "FAILED  the Ingress shop/shop has no address in its status" >&2
    fi
fi

if command -v "${bpftool[0]:-}" >/dev/null && { [ ${#bpftool[@]} -gt 1 ] || [ -e "$bpffs/v1/maps/host_ids" ]; }; then
    if "${bpftool[@]}" map dump pinned "$bpffs/v1/maps/host_ids" | grep -q 'shop\.example\.com'; then
        passed=$((passed + 1))
        echo "the kernel's maps know shop.example.com"
    else
        failed=$((failed + 1))
        echo "FAILED  shop.example.com is not in $bpffs/v1/maps/host_ids" >&2
    fi
else
    echo "SKIPPED the counters: no bpftool, or no maps in $bpffs on this machine"
fi

echo "passed $passed, failed $failed"
[ "$failed" -eq 0 ]
