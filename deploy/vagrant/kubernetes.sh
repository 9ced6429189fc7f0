#!/usr/bin/env bash
# Makes this machine a node of a small Kubernetes, from the programs that box.sh has put into /opt/kubernetes. It downloads
# nothing. The machine with SERVER_IP is the control plane, too. This is for trying, in a network of one host: nodes and
# administrator present tokens made of K3S_TOKEN, and do not verify the certificate of the API server.
#
#   NODE_IP     this machine's address in the cluster network
#   SERVER_IP   the control plane's
#   NODES       all machines, `NAME=ADDRESS NAME=ADDRESS`; pods of 192.168.56.10 are in 10.244.10.0/24
#   K3S_TOKEN   the secret that nodes join with
#   IMAGES      image files that are imported before pods start; none by default
#   TIMEOUT     seconds to wait for each program (180)
set -euo pipefail
: "${NODE_IP:?the address of this machine in the cluster network}" "${SERVER_IP:?the address of the control plane}"
: "${NODES:?the machines of the cluster}" "${K3S_TOKEN:?the secret that nodes join with}"
read -ra images <<<"${IMAGES-}"
timeout=${TIMEOUT:-180}
bin=/opt/kubernetes/bin
etc=/etc/kubernetes
server=https://$SERVER_IP:6443
name=$(hostname)
mkdir -p -m 700 "$etc"

# wait_for WHAT COMMAND…: repeats the command until it succeeds.
wait_for() {
    local what=$1 said deadline=$((SECONDS + timeout))
    shift
    until said=$("$@" 2>&1); do
        [ "$SECONDS" -lt "$deadline" ] || { printf '%s\nerror: waited %s s in vain: %s\n' "$said" "$timeout" "$what" >&2; exit 1; }
        sleep 1
    done
    echo "$what, ${SECONDS} s after the start"
}

# start NAME COMMAND…: as a service that systemd keeps alive.
start() {
    local unit=$1
    shift
    cat >"/etc/systemd/system/$unit.service" <<END
[Unit]
After=network.target
[Service]
ExecStart=$*
Restart=always
RestartSec=2
LimitNOFILE=1048576
Delegate=yes
KillMode=process
[Install]
WantedBy=multi-user.target
END
    systemctl daemon-reload
    systemctl --quiet enable "$unit"
    systemctl restart "$unit"
}

# kubeconfig USER: a client configuration in $etc/USER.kubeconfig, with the token of the user.
kubeconfig() {
    (umask 077 && cat >"$etc/$1.kubeconfig") <<END
apiVersion: v1
kind: Config
clusters: [{name: lab, cluster: {server: "$server", insecure-skip-tls-verify: true}}]
users: [{name: "$1", user: {token: "$K3S_TOKEN.$1"}}]
contexts: [{name: lab, context: {cluster: lab, user: "$1"}}]
current-context: lab
END
}

# ask PATH: a request to the API server. Where machines are emulated, kubectl itself would take most of the time.
ask() { curl -fsS --insecure --max-time 30 --header "Authorization: Bearer $K3S_TOKEN.admin" "$server$1"; }

# A busy API server may let a connection wait for longer than kubectl does, so calls of kubectl are repeated, too.
offer_kubelet_clients() {
    kubectl create configmap kubelet-client --namespace kube-system --from-file=ca.crt="$etc/kubelet-client.crt" \
        --dry-run=client --output yaml | kubectl apply --request-timeout=30s -f -
}

fetch_kubelet_clients() {
    local certificate=$etc/kubelet-client.crt
    kubectl get configmap kubelet-client --namespace kube-system --request-timeout=30s \
        --output 'jsonpath={.data.ca\.crt}' >"$certificate.new" && mv "$certificate.new" "$certificate"
}

pods() { echo "10.244.${1##*.}.0/24"; }

control_plane() {
    local node
    [ -e "$etc/service-accounts.key" ] || openssl genrsa -out "$etc/service-accounts.key" 2048
    # By this certificate kubelets know the API server, which asks them for logs.
    [ -e "$etc/kubelet-client.crt" ] || openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc -days 3650 \
        -subj /O=system:masters/CN=kube-apiserver -keyout "$etc/kubelet-client.key" -out "$etc/kubelet-client.crt"
    {
        echo "$K3S_TOKEN.admin,admin,admin,system:masters"
        for node in kube-controller-manager kube-scheduler kube-proxy; do echo "$K3S_TOKEN.$node,system:$node,$node"; done
        for node in $NODES; do
            node=${node%%=*}
            echo "$K3S_TOKEN.$node,system:node:$node,$node,system:nodes"
        done
    } >"$etc/tokens.csv"
    chmod 600 "$etc/tokens.csv" "$etc"/*.key
    kubeconfig kube-controller-manager
    kubeconfig kube-scheduler
    # A power cut may lose written data; so may `vagrant destroy`.
    start etcd "$bin/etcd" --data-dir=/var/lib/etcd --unsafe-no-fsync --log-level=warn \
        --listen-client-urls=http://127.0.0.1:2379 --advertise-client-urls=http://127.0.0.1:2379 \
        --listen-peer-urls=http://127.0.0.1:0
    wait_for "etcd answers" curl -fsS http://127.0.0.1:2379/health
    start kube-apiserver "$bin/kube-apiserver" --etcd-servers=http://127.0.0.1:2379 --secure-port=6443 \
        "--advertise-address=$NODE_IP" --service-cluster-ip-range=10.96.0.0/16 --authorization-mode=Node,RBAC \
        --enable-admission-plugins=NodeRestriction --allow-privileged=true "--token-auth-file=$etc/tokens.csv" \
        --kubelet-preferred-address-types=InternalIP --service-account-issuer=https://kubernetes.default.svc \
        "--service-account-key-file=$etc/service-accounts.key" \
        "--service-account-signing-key-file=$etc/service-accounts.key" "--cert-dir=$etc/apiserver" \
        "--kubelet-client-certificate=$etc/kubelet-client.crt" "--kubelet-client-key=$etc/kubelet-client.key"
    wait_for "the API server answers" ask /readyz
    wait_for "nodes find the certificate of the kubelets' clients" offer_kubelet_clients
    # The certificate that the API server has made for itself is its own authority; pods verify it.
    start kube-controller-manager "$bin/kube-controller-manager" "--kubeconfig=$etc/kube-controller-manager.kubeconfig" \
        --bind-address=127.0.0.1 --leader-elect=false --use-service-account-credentials=true --allocate-node-cidrs=false \
        "--root-ca-file=$etc/apiserver/apiserver.crt" "--service-account-private-key-file=$etc/service-accounts.key"
    start kube-scheduler "$bin/kube-scheduler" "--kubeconfig=$etc/kube-scheduler.kubeconfig" \
        --bind-address=127.0.0.1 --leader-elect=false
}

runtime() {
    local image
    mkdir -p /etc/containerd /etc/cni/net.d
    cat >/etc/containerd/config.toml <<END
version = 3
disabled_plugins = ["io.containerd.nri.v1.nri"]
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "$(cat /opt/kubernetes/pause.name)"
[plugins.'io.containerd.cri.v1.runtime']
  disable_apparmor = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["/opt/kubernetes/cni"]
  conf_dir = "/etc/cni/net.d"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
    BinaryName = "$bin/runc"
END
    cat >/etc/cni/net.d/10-pods.conflist <<END
{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "bridge", "bridge": "cni0", "isGateway": true,
  "hairpinMode": true, "ipam": {"type": "host-local", "ranges": [[{"subnet": "$(pods "$NODE_IP")"}]],
  "routes": [{"dst": "0.0.0.0/0"}]}}]}
END
    start containerd "$bin/containerd"
    wait_for "containerd answers" ctr version
    for image in /opt/kubernetes/pause.tar "${images[@]}"; do
        ctr --namespace k8s.io images import "$image" >/dev/null
        echo "imported $image, $SECONDS s after the start"
    done
}

node() {
    local other
    {
        printf '[Unit]\nAfter=network.target\n[Service]\nType=oneshot\nRemainAfterExit=yes\n'
        for other in $NODES; do
            other=${other#*=}
            [ "$other" = "$NODE_IP" ] || echo "ExecStart=/usr/sbin/ip route replace $(pods "$other") via $other"
        done
        printf 'Restart=on-failure\n[Install]\nWantedBy=multi-user.target\n'
    } >/etc/systemd/system/pod-routes.service
    systemctl daemon-reload
    systemctl --quiet enable pod-routes
    systemctl restart pod-routes
    cat >"$etc/kubelet.yaml" <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: cgroupfs
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
resolvConf: ""
failSwapOn: false
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: "$etc/kubelet-client.crt"}}
authorization: {mode: Webhook}
# Images are imported, not pulled: what garbage collection removes could not be fetched again.
imageGCHighThresholdPercent: 100
evictionHard: {imagefs.available: "0%", nodefs.available: "0%", nodefs.inodesFree: "0%", imagefs.inodesFree: "0%", memory.available: 100Mi}
END
    cat >"$etc/kube-proxy.yaml" <<END
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {kubeconfig: "$etc/kube-proxy.kubeconfig"}
hostnameOverride: "$name"
clusterCIDR: 10.244.0.0/16
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
END
    kubeconfig "$name"
    kubeconfig kube-proxy
    start kubelet "$bin/kubelet" "--config=$etc/kubelet.yaml" "--kubeconfig=$etc/$name.kubeconfig" \
        "--hostname-override=$name" "--node-ip=$NODE_IP"
    start kube-proxy "$bin/kube-proxy" "--config=$etc/kube-proxy.yaml"
    wait_for "the node is registered" ask "/api/v1/nodes/$name"
    wait_for "the node is ready" kubectl wait --for=condition=Ready "node/$name" --timeout=60s
}

kubeconfig admin
export KUBECONFIG=$etc/admin.kubeconfig
if [ "$NODE_IP" = "$SERVER_IP" ]; then control_plane; fi
runtime
wait_for "the API server answers" ask /readyz
wait_for "the node has the certificate of the kubelets' clients" fetch_kubelet_clients
node
