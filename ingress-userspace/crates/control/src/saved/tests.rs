//! Tests of files that are written and read again, and of files made by other users.

use std::os::unix::fs::{PermissionsExt, symlink};

use serde_json::{Value, json};

use super::*;
use crate::outcome::{Outcome, Reason};

/// Returns a grant by which Ingresses of `n` may use Services of `namespace`.
fn grant(namespace: &str) -> Value {
    json!({"apiVersion": "gateway.networking.k8s.io/v1beta1", "kind": "ReferenceGrant",
        "metadata": {"name": "n-may", "namespace": namespace},
        "spec": {"from": [{"group": "networking.k8s.io", "kind": "Ingress", "namespace": "n"}],
            "to": [{"group": "", "kind": "Service"}]}})
}

fn cluster() -> Cluster {
    let objects = [
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "IngressClass", "metadata": {"name": "xdp"},
            "spec": {"controller": "xdp-ingress.io/controller"}}),
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": "a", "namespace": "n",
            "annotations": {"nginx.ingress.kubernetes.io/auth-secret": "users",
                "nginx.ingress.kubernetes.io/proxy-ssl-secret": "pods",
                "nginx.ingress.kubernetes.io/auth-url": "http://sso.auth.svc.cluster.local/"}},
            "spec": {"ingressClassName": "xdp", "tls": [{"hosts": ["a.test"], "secretName": "a"}],
                "rules": [{"host": "a.test", "http": {"paths": [{"path": "/", "pathType": "Prefix",
                    "backend": {"service": {"name": "a", "port": {"number": 80}}}}]}}]}}),
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": "plain", "namespace": "n"},
            "spec": {"ingressClassName": "xdp", "defaultBackend": {"service": {"name": "a", "port": {"number": 80}}}}}),
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": "other", "namespace": "n"},
            "spec": {"ingressClassName": "other", "tls": [{"secretName": "other"}]}}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a", "namespace": "n"},
            "spec": {"ports": [{"port": 80}]}}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "unused", "namespace": "n"}}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "victim", "namespace": "other"},
            "spec": {"clusterIP": "10.96.7.7", "ports": [{"port": 80}]}}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "sso", "namespace": "auth"},
            "spec": {"ports": [{"port": 80}]}}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "all", "namespace": "auth"},
            "spec": {"ports": [{"port": 80}]}}),
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": "a-1", "namespace": "n", "labels": {"kubernetes.io/service-name": "a"}},
            "endpoints": [{"addresses": ["192.0.2.1"]}, {"addresses": ["10.96.7.7"]}], "ports": [{"port": 8080}]}),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a", "namespace": "n"},
            "data": {"tls.crt": "Y2VydA==", "tls.key": "aHVudGVyMg=="}}),
        // `ann:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=`.
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "users", "namespace": "n"},
            "data": {"auth": "YW5uOntTSEF9NWVuNkc2TWV6UnJvVDNYS3FrZFBPbVkvQmZRPQ=="}}),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "pods", "namespace": "n"},
            "data": {"ca.crt": "YXV0aG9yaXR5", "tls.key": "aHVudGVyMg==", "tickets.key": "dGlja2V0cw=="}}),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "other", "namespace": "n"},
            "data": {"tls.crt": "Y2VydA=="}}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings", "namespace": "n"},
            "data": {"global-auth-url": "http://all.auth.svc.cluster.local/"}}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "udp", "namespace": "n"},
            "data": {"53": "dns/coredns:53", "54": "bad"}}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "coredns", "namespace": "dns"},
            "spec": {"ports": [{"port": 53, "protocol": "UDP"}]}}),
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1"}}),
        grant("auth"),
        grant("unused"),
    ];
    let mut cluster = Cluster::default();
    for object in objects {
        let object = read_object(&object.to_string()).expect("an object").expect("a known kind");
        cluster.apply(Change::Apply { object, origin: Origin::Api });
    }
    cluster.resolved.insert("db.test".into(), vec![IpAddr::from([192, 0, 2, 9])]);
    cluster.resolved.insert("of-no-interest.test".into(), vec![IpAddr::from([192, 0, 2, 8])]);
    cluster
}

fn options() -> translate::Options {
    translate::Options { udp_services: Some(ObjectName::new("n", "udp")), ..translate::Options::default() }
}

fn content(keys: PrivateKeys) -> SavedContent {
    let (cluster, options) = (cluster(), options());
    let mut translation = translate::translate(&cluster, &options);
    translation.external_names.insert("db.test".into(), ());
    SavedContent { cluster, translation, options, keys }
}

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds)
}

fn file(root: &tempfile::TempDir, private_keys: PrivateKeys) -> File {
    File { path: root.path().join("saved.json"), private_keys }
}

#[test]
fn a_saved_configuration_is_restored() {
    let root = tempfile::TempDir::new().expect("a directory");
    let file = file(&root, PrivateKeys::Keep);
    assert!(file.read(at(0)).expect("no error").is_none(), "there is no file yet");
    file.write(&content(PrivateKeys::Keep), at(0)).expect("written");
    let Restored { cluster: restored, age } = file.read(at(90)).expect("readable").expect("a file");
    assert_eq!(age, Duration::from_secs(90));
    let (original, options) = (cluster(), options());
    let translation = translate::translate(&restored, &options);
    assert_eq!(translation, translate::translate(&original, &options));
    let refused = |outcome: &Arc<Outcome>| outcome.reason == Reason::RefNotPermitted;
    assert!(!translation.outcomes.keys().any(refused), "what was granted is granted still");
    let refused = |outcome: &&Arc<Outcome>| outcome.reason == Reason::EndpointRefused;
    assert_eq!(translation.outcomes.keys().filter(refused).count(), 1, "what was refused is refused still");
    assert_eq!(restored.resolved.keys().map(|name| &**name).collect::<Vec<_>>(), ["db.test"], "no other name is used");
    assert_eq!((restored.nodes.len(), restored.config_maps.len(), restored.classes.len()), (1, 2, 1));
    let names = |names: Vec<&ObjectName>| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
    assert_eq!(
        names(restored.services.keys().collect()),
        ["auth/all", "auth/sso", "dns/coredns", "n/a", "other/victim"],
        "what is neither used nor led to is not saved"
    );
    assert_eq!(
        names(restored.secrets.keys().collect()),
        ["n/a", "n/pods", "n/users"],
        "Secrets of others are not saved"
    );
    assert_eq!(names(restored.ingresses.keys().collect()), ["n/a", "n/plain"]);
    assert_eq!(names(restored.grants.keys().collect()), ["auth/n-may"], "nothing of the other namespace is asked");
}

fn of_gateway_api(kind: &str, name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": kind, "spec": spec,
        "metadata": {"name": name, "namespace": "n", "uid": name, "generation": 2, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "status": {"addresses": [{"type": "IPAddress", "value": "192.0.2.7"}], "parents": [], "conditions":
            [{"type": "Accepted", "status": "True"}]}})
}

#[test]
fn objects_of_gateways_of_this_controller_are_restored() {
    let class = |name: &str, controller: &str| {
        let mut class = of_gateway_api("GatewayClass", name, &json!({"controllerName": controller}));
        class["metadata"].as_object_mut().expect("fields").remove("namespace");
        class
    };
    let gateway = |name: &str, class: &str| {
        let listener =
            json!({"name": "l", "port": 443, "protocol": "HTTPS", "tls": {"certificateRefs": [{"name": name}]}});
        let authority = json!({"group": "", "kind": "ConfigMap", "name": "ca", "namespace": "authorities"});
        let tls = json!({"frontend": {"default": {"validation": {"caCertificateRefs": [authority]}}}});
        of_gateway_api("Gateway", name, &json!({"gatewayClassName": class, "listeners": [listener], "tls": tls}))
    };
    let route = |kind: &str, name: &str, parent: &Value, service: &str| {
        let rules = json!([{"backendRefs": [{"name": service, "port": 80}]}]);
        of_gateway_api(kind, name, &json!({"parentRefs": [parent], "rules": rules}))
    };
    let secret =
        |name: &str| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "n"}});
    let service =
        |name: &str| json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "n"}});
    let policy = |name: &str, service: &str| {
        let target = json!({"group": "", "kind": "Service", "name": service});
        of_gateway_api("BackendTLSPolicy", name, &json!({"targetRefs": [target], "validation": {"hostname": "a.test"}}))
    };
    let set = |name: &str, gateway: &str| {
        of_gateway_api(
            "ListenerSet",
            name,
            &json!({"parentRef": {"name": gateway}, "listeners": [{"name": "l", "port": 81}]}),
        )
    };
    let objects = [
        class("xdp", "xdp-ingress.io/gateway-controller"),
        class("other", "acme.test/controller"),
        gateway("g", "xdp"),
        gateway("foreign", "other"),
        set("set", "g"),
        set("of-foreign", "foreign"),
        route("HTTPRoute", "a", &json!({"name": "g"}), "web"),
        route("TCPRoute", "b", &json!({"kind": "ListenerSet", "name": "set"}), "db"),
        route("HTTPRoute", "c", &json!({"name": "foreign"}), "unused"),
        secret("g"),
        secret("foreign"),
        service("web"),
        service("db"),
        service("unused"),
        policy("p", "web"),
        policy("q", "unused"),
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n", "labels": {"team": "a"}}}),
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "m"}}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "ca", "namespace": "authorities"}}),
        grant("authorities"),
        grant("unused"),
    ];
    let mut cluster = Cluster::default();
    for object in objects {
        let object = read_object(&object.to_string()).expect("an object").expect("a known kind");
        cluster.apply(Change::Apply { object, origin: Origin::Api });
    }
    let (translation, options) = (Translation::default(), options());
    let content = SavedContent { cluster: cluster.clone(), translation, options, keys: PrivateKeys::Leave };
    let root = tempfile::TempDir::new().expect("a directory");
    let file = file(&root, PrivateKeys::Leave);
    file.write(&content, at(0)).expect("written");
    let Restored { cluster: restored, age: _ } = file.read(at(1)).expect("readable").expect("a file");
    let text = fs::read_to_string(&file.path).expect("text");
    assert!(!text.contains("conditions") && !text.contains("foreign"), "{text}");
    let names = |store: Vec<&ObjectName>| store.iter().map(|name| (*name.name).to_owned()).collect::<Vec<_>>();
    assert_eq!(names(restored.gateway_classes().keys().collect()), ["xdp"]);
    assert_eq!(names(restored.listener_sets().keys().collect()), ["set"]);
    assert_eq!(names(restored.http_routes().keys().collect()), ["a"]);
    assert_eq!(names(restored.tcp_routes().keys().collect()), ["b"]);
    assert_eq!(names(restored.backend_tls_policies().keys().collect()), ["p"]);
    assert_eq!(names(restored.services.keys().collect()), ["db", "web"]);
    assert_eq!(names(restored.secrets.keys().collect()), ["g"]);
    let grants: Vec<_> = restored.grants.keys().map(ToString::to_string).collect();
    assert_eq!(grants, ["authorities/n-may"], "Gateways use a ConfigMap there");
    assert_eq!((restored.namespace_labels("n"), restored.namespace_labels("m")), (cluster.namespace_labels("n"), None));
    let name = ObjectName::new("n", "g");
    let (kept, before) = (restored.gateway(&name).expect("a Gateway"), cluster.gateway(&name).expect("a Gateway"));
    assert_eq!((&kept.object.metadata, &kept.object.spec), (&before.object.metadata, &before.object.spec));
    assert_eq!(kept.object.status.addresses, before.object.status.addresses, "they are input");
}

#[test]
fn private_keys_are_saved_only_if_enabled() {
    for (keys, is_there) in [(PrivateKeys::Leave, false), (PrivateKeys::Keep, true)] {
        let root = tempfile::TempDir::new().expect("a directory");
        let file = file(&root, keys);
        let size = file.write(&content(keys), at(0)).expect("written");
        let text = fs::read_to_string(&file.path).expect("text");
        assert_eq!(size, text.len() as u64);
        assert_eq!(text.contains("aHVudGVyMg"), is_there);
        assert_eq!(text.contains("YW5uOntTSEF9"), is_there, "a hash of a password is as good as one to guess at");
        assert!(!text.contains("dGlja2V0cw"), "keys for tickets are never written");
        assert!(text.contains("Y2VydA==") && text.contains("YXV0aG9yaXR5"), "what is public is kept");
        let mode = fs::metadata(&file.path).expect("metadata").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let mut left: Vec<_> =
            fs::read_dir(root.path()).expect("a directory").map(|entry| entry.expect("an entry").file_name()).collect();
        left.sort();
        assert_eq!(left, ["saved.json", "saved.json.lock"], "nothing else is left beside the file");
    }
}

#[test]
fn an_unusable_file_is_refused_with_the_reason() {
    let root = tempfile::TempDir::new().expect("a directory");
    let file = file(&root, PrivateKeys::Leave);
    for (text, expect) in [
        ("{\"version\":1,\"written_un", "damaged"),
        ("{\"version\":2,\"anything\":0}", "version"),
        ("[]", "damaged"),
        (
            "{\"version\":1,\"written_unix_seconds\":0,\"resolved\":{},\"objects\":[{\"apiVersion\":\"v1\",\"kind\":\"Service\",\"spec\":7}]}",
            "damaged",
        ),
    ] {
        fs::write(&file.path, text).expect("written");
        fs::set_permissions(&file.path, fs::Permissions::from_mode(0o600)).expect("a mode");
        let error = file.read(at(0)).expect_err("no configuration").to_string();
        assert!(error.contains(expect), "{text}: {error}");
    }
    fs::set_permissions(&file.path, fs::Permissions::from_mode(0o622)).expect("a mode");
    assert!(matches!(file.read(at(0)), Err(SavedError::Foreign { .. })), "others can write it");
}

#[test]
fn symbolic_links_are_not_followed() {
    let root = tempfile::TempDir::new().expect("a directory");
    let target = root.path().join("target");
    fs::write(&target, "{}").expect("written");
    let file = file(&root, PrivateKeys::Leave);
    symlink(&target, &file.path).expect("a link");
    assert!(matches!(file.read(at(0)), Err(SavedError::Read { .. })), "links are not followed");
    // Writing follows neither a link at the temporary name of the new file, nor one at the final name.
    symlink(&target, root.path().join("saved.json.new")).expect("a link");
    file.write(&content(PrivateKeys::Leave), at(0)).expect("written");
    assert_eq!(fs::read_to_string(&target).expect("text"), "{}");
    assert!(file.read(at(0)).expect("readable").is_some());

    let linked = root.path().join("linked");
    symlink(root.path(), &linked).expect("a link");
    let beside = File { path: linked.join("saved.json"), private_keys: PrivateKeys::Leave };
    assert!(matches!(beside.write(&content(PrivateKeys::Leave), at(0)), Err(SavedError::Directory { .. })));
}

#[test]
fn other_users_cannot_hold_the_lock() {
    let root = tempfile::TempDir::new().expect("a directory");
    let file = file(&root, PrivateKeys::Leave);
    // Every user with read permission for the directory can lock it.
    let directory = fs::File::open(root.path()).expect("a directory");
    let _held = Flock::lock(directory, FlockArg::LockExclusiveNonblock).expect("locked");
    file.write(&content(PrivateKeys::Leave), at(0)).expect("written");
    let lock = root.path().join("saved.json.lock");
    assert_eq!(fs::metadata(&lock).expect("a file").mode() & 0o777, 0o600);
    // A lock file that others could open is refused, and a symbolic link is not followed.
    fs::set_permissions(&lock, fs::Permissions::from_mode(0o644)).expect("changed");
    assert!(matches!(file.write(&content(PrivateKeys::Leave), at(0)), Err(SavedError::Foreign { .. })));
    fs::remove_file(&lock).expect("removed");
    symlink(root.path().join("elsewhere"), &lock).expect("linked");
    assert!(matches!(file.write(&content(PrivateKeys::Leave), at(0)), Err(SavedError::Write { .. })));
    assert!(!root.path().join("elsewhere").exists());
}
