//! The texts of configuration files, from the plan and the paths. It writes none of them.

use std::path::Path;

use serde_json::{Value, json};

use super::pki::{self, Pki};
use super::plan::{NodePlan, PODS, Places, Plan, REGISTRY};
use crate::programs::{Binaries, PAUSE};

/// Interval at which a kubelet reports its status. The controller manager waits several times as long before it
/// declares a node lost.
pub(super) const REPORT_SECONDS: u32 = 2;
/// Directory of a node with a directory for each registry.
pub(super) const REGISTRIES: &str = "registries";

/// Returns a client configuration with the identity of the certificate `user`.
pub(super) fn kubeconfig(server: &str, pki: &Pki, user: &str) -> String {
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": {"server": server, "certificate-authority": pki.certificate("ca")}}],
        "users": [{"name": user, "user": {"client-certificate": pki.certificate(user), "client-key": pki.key(user)}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
        "current-context": "test",
    });
    pretty(&config)
}

/// Returns containerd's own configuration, in version 3 of its format.
pub(super) fn containerd(places: &Places, node: NodePlan, binaries: &Binaries) -> String {
    let dir = places.node(node);
    let quote = |path: &Path| Value::from(path.to_string_lossy()).to_string();
    // Setting the score and AppArmor profiles needs rights that a machine lacks if it is itself a container.
    format!(
        r#"version = 3
root = {root}
state = "/run/containerd"
oom_score = 0
disabled_plugins = ["io.containerd.nri.v1.nri"]

[grpc]
  address = {socket}

[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
  [plugins.'io.containerd.cri.v1.images'.registry]
    config_path = {registries}
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = "{PAUSE}"

[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  disable_apparmor = true
  netns_mounts_under_state_dir = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = [{cni}]
    conf_dir = {cni_config}
  [plugins.'io.containerd.cri.v1.runtime'.containerd]
    default_runtime_name = "runc"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
        BinaryName = {runc}
        SystemdCgroup = false
"#,
        root = quote(&dir.join("containerd")),
        socket = quote(&places.containerd(node)),
        cni = quote(&binaries.cni),
        cni_config = quote(&dir.join("cni")),
        runc = quote(&binaries.runc),
        registries = quote(&dir.join(REGISTRIES)),
    )
}

/// Returns the file by which containerd pulls from the cluster's registry: by plain HTTP.
pub(super) fn registry_hosts() -> String {
    let server = Value::from(format!("http://{REGISTRY}")).to_string();
    format!("server = {server}\n\n[host.{server}]\n  capabilities = [\"pull\", \"resolve\"]\n")
}

/// Returns the configuration of the registry itself.
pub(super) fn registry(storage: &Path) -> String {
    pretty(&json!({
        "version": "0.1",
        "log": {"level": "warn"},
        "storage": {"filesystem": {"rootdirectory": storage}},
        "http": {"addr": REGISTRY},
    }))
}

/// Returns the network configuration of pods: a bridge on the node, addresses from the node's own ranges.
pub(super) fn cni(places: &Places, node: NodePlan) -> String {
    let bridge = json!({
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": true,
        "ipMasq": false,
        "hairpinMode": true,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": node.pods_v4()}], [{"subnet": node.pods_v6()}]],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
            "dataDir": places.node(node).join("ipam"),
        },
    });
    pretty(&json!({"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]}))
}

/// Returns the kubelet's own configuration.
pub(super) fn kubelet(places: &Places, pki: &Pki, node: NodePlan, open_files: u64) -> String {
    let socket = format!("unix://{}", places.containerd(node).display());
    let server = pki::kubelet_server(node);
    pretty(&json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": "0.0.0.0",
        "failCgroupV1": false,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": node.cgroup(),
        "cgroupsPerQOS": true,
        "enforceNodeAllocatable": ["pods"],
        "failSwapOn": false,
        // Both would need rights that a machine lacks if it is itself a container.
        "oomScoreAdj": 0,
        "maxOpenFiles": open_files,
        "makeIPTablesUtilChains": false,
        // There is no DNS server in the cluster.
        "resolvConf": "",
        "clusterDomain": "cluster.local",
        "allowedUnsafeSysctls": ["net.*"],
        "containerRuntimeEndpoint": socket,
        "imageServiceEndpoint": socket,
        // Images are imported, not pulled: an image removed by garbage collection could not be fetched again.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "imagefs.available": "0%",
            "nodefs.available": "0%",
            "nodefs.inodesFree": "0%",
            "imagefs.inodesFree": "0%",
            "memory.available": "100Mi",
        },
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": pki.certificate("ca")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": pki.certificate(&server),
        "tlsPrivateKeyFile": pki.key(&server),
        "nodeStatusUpdateFrequency": format!("{REPORT_SECONDS}s"),
        "nodeLeaseDurationSeconds": 4 * REPORT_SECONDS,
        "syncFrequency": "10s",
    }))
}

/// Returns kube-proxy's own configuration.
pub(super) fn proxy(kubeconfig: &Path, node: NodePlan) -> String {
    pretty(&json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": {"kubeconfig": kubeconfig},
        "hostnameOverride": node.name(),
        "clusterCIDR": PODS,
        "bindAddress": node.v4(),
        // The limit applies to the whole machine; zero leaves it unchanged.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }))
}

/// Returns the nodes as objects. They are created before their kubelets register, so that each has the pod ranges that
/// its CNI plugin uses.
pub(super) fn nodes(plan: Plan) -> String {
    let node = |node: NodePlan| {
        json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": node.name(),
                "labels": {
                    "kubernetes.io/hostname": node.name(),
                    "topology.kubernetes.io/region": "test",
                    "topology.kubernetes.io/zone": node.zone(),
                },
            },
            "spec": {"podCIDR": node.pods_v4(), "podCIDRs": [node.pods_v4(), node.pods_v6()]},
        })
    };
    let items: Vec<Value> = plan.nodes().into_iter().map(node).collect();
    pretty(&json!({"apiVersion": "v1", "kind": "List", "items": items}))
}

/// Returns an idle pod for every node, to check that pods run.
pub(super) fn probes(plan: Plan) -> String {
    let pod = |node: NodePlan| {
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": format!("probe-{}", node.name()), "namespace": "default", "labels": {"xdp-ingress.local/probe": "up"}},
            "spec": {
                "nodeName": node.name(),
                "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "probe", "image": PAUSE, "imagePullPolicy": "Never"}],
            },
        })
    };
    let items: Vec<Value> = plan.nodes().into_iter().map(pod).collect();
    pretty(&json!({"apiVersion": "v1", "kind": "List", "items": items}))
}

/// Formats JSON, which programs that read YAML accept, too.
fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

#[cfg(test)]
mod tests {
    use super::super::plan::Services;
    use super::*;

    fn first_node() -> NodePlan {
        Plan::new(2, Services::Unrouted).unwrap().nodes()[0]
    }

    #[test]
    fn every_node_has_the_pod_ranges_of_its_network_plugin() {
        let nodes: Value = serde_json::from_str(&nodes(Plan::new(2, Services::Unrouted).unwrap())).unwrap();
        let cni: Value = serde_json::from_str(&cni(&Places::default(), first_node())).unwrap();
        let ranges = &cni["plugins"][0]["ipam"]["ranges"];
        for family in 0..2 {
            assert_eq!(nodes["items"][0]["spec"]["podCIDRs"][family], ranges[family][0]["subnet"]);
        }
        assert_eq!(nodes["items"][1]["metadata"]["labels"]["topology.kubernetes.io/zone"], "zone-2");
    }

    #[test]
    fn a_node_reports_several_times_before_its_lease_ends() {
        let pki = Pki::at("/pki".into());
        let config: Value = serde_json::from_str(&kubelet(&Places::default(), &pki, first_node(), 20_000)).unwrap();
        assert_eq!(config["nodeLeaseDurationSeconds"], 8);
        assert_eq!(config["tlsCertFile"], "/pki/n1-server.crt");
        assert_eq!(config["cgroupRoot"], "/xdp-ingress-cluster/n1");
    }

    #[test]
    fn containerds_configuration_is_valid_and_its_paths_are_the_nodes_own() {
        let path = |name: &str| Path::new("/b").join(name);
        let binaries = Binaries {
            etcd: path("etcd"),
            kube_apiserver: path("kube-apiserver"),
            kube_controller_manager: path("kube-controller-manager"),
            kube_scheduler: path("kube-scheduler"),
            kubelet: path("kubelet"),
            kube_proxy: path("kube-proxy"),
            kubectl: path("kubectl"),
            containerd: path("containerd"),
            ctr: path("ctr"),
            runc: path("it's \"runc\""),
            cni: path("cni"),
            pause: path("pause.tar"),
        };
        let text = containerd(&Places::default(), first_node(), &binaries);
        let config: toml::Table = text.parse().unwrap();
        assert_eq!(config["grpc"]["address"].as_str(), Some("/var/cache/xdp-ingress-cluster/n1/containerd.sock"));
        let runtime = &config["plugins"]["io.containerd.cri.v1.runtime"]["containerd"]["runtimes"]["runc"];
        assert_eq!(runtime["options"]["BinaryName"].as_str(), Some("/b/it's \"runc\""));
        let registries = &config["plugins"]["io.containerd.cri.v1.images"]["registry"]["config_path"];
        assert_eq!(registries.as_str(), Some("/var/cache/xdp-ingress-cluster/n1/registries"));
    }

    #[test]
    fn nodes_pull_from_the_registry_by_plain_http() {
        let hosts: toml::Table = registry_hosts().parse().unwrap();
        assert_eq!(hosts["server"].as_str(), Some("http://10.99.0.1:5000"));
        assert!(hosts["host"].get("http://10.99.0.1:5000").is_some(), "{hosts:?}");
        let registry: Value = serde_json::from_str(&registry(Path::new("/data"))).unwrap();
        assert_eq!(registry["http"]["addr"], "10.99.0.1:5000");
        assert_eq!(registry["storage"]["filesystem"]["rootdirectory"], "/data");
    }
}
