use std::sync::Arc;

use ingress_control::{
    Classes, Origin,
    change::{Change, Object},
    cluster::Cluster,
    translate::{Options, Translation, translate},
};
use k8s_openapi::api::networking::v1::Ingress;
use serde_json::{Value, json};

use super::*;

fn translation(ingresses: &[(Value, Value)]) -> Translation {
    let mut cluster = Cluster::default();
    for (number, (annotations, rules)) in ingresses.iter().enumerate() {
        let ingress: Ingress = serde_json::from_value(json!({
            "metadata": {"namespace": "shop", "name": format!("web-{number}"), "annotations": annotations},
            "spec": {"ingressClassName": "nginx", "rules": rules},
        }))
        .expect("an Ingress");
        let object = Object::Ingress(Arc::new(ingress));
        cluster.apply(Change::Apply { object, origin: Origin::Api });
        let service = json!({
            "metadata": {"namespace": "shop", "name": format!("web-{number}")},
            "spec": {"ports": [{"name": "http", "port": 80}]},
        });
        let service: k8s_openapi::api::core::v1::Service = serde_json::from_value(service).expect("a Service");
        cluster.apply(Change::Apply { object: Object::Service(Arc::new(service.into())), origin: Origin::Api });
    }
    let classes = Classes {
        name: "nginx".into(),
        controller: "k8s.io/ingress-nginx".into(),
        by_name: true,
        ..Classes::default()
    };
    translate(&cluster, &Options { classes, ..Options::default() })
}

fn rules(number: usize, host: &str, path: &str) -> Value {
    let backend = json!({"service": {"name": format!("web-{number}"), "port": {"number": 80}}});
    json!([{"host": host, "http": {"paths": [{"path": path, "pathType": "Prefix", "backend": backend}]}}])
}

fn get<'l>(host: &'l str, target: &'l str) -> LoggedRequest<'l> {
    LoggedRequest { host, target, method: "GET", is_secure: true, ..LoggedRequest::default() }
}

#[test]
fn rules_and_filters_answer_as_for_requests() {
    let key = |name: &str, value: &str| json!({format!("nginx.ingress.kubernetes.io/{name}"): value});
    let translation = translation(&[
        (key("ssl-redirect", "true"), rules(0, "a.test", "/")),
        (key("allowlist-source-range", "192.0.2.0/24"), rules(1, "a.test", "/office")),
        (key("permanent-redirect", "https://b.test"), rules(2, "old.test", "/")),
        (json!({"xdp-ingress.io/deny-paths": "/admin"}), rules(3, "*.wild.test", "/")),
        (key("enable-modsecurity", "true"), rules(4, "guarded.test", "/")),
        (key("limit-rps", "5"), rules(5, "slow.test", "/")),
    ]);
    let mut replay = Replay::new(&translation.table);
    let mut answer = |request: LoggedRequest<'_>| match replay.answer(&request).answer {
        ReplayedAnswer::Upstream(keys) => keys.iter().map(|key| key.as_str()).collect::<Vec<_>>().join(" "),
        other => format!("{other:?}"),
    };
    assert_eq!(answer(get("A.test:443", "/x?y=1")), "shop/web-0:80");
    let office = |client: [u8; 4]| LoggedRequest { client: Some(client.into()), ..get("a.test", "/office/1") };
    assert_eq!(answer(office([192, 0, 2, 1])), "shop/web-1:80");
    assert_eq!(answer(office([198, 51, 100, 1])), "Refused(403, \"the client's address is not allowed\")");
    assert_eq!(answer(get("a.test", "/office")), "shop/web-1:80", "without an address, the list is not asked");
    assert_eq!(answer(get("old.test", "/")), "Redirect(301)");
    assert_eq!(answer(get("x.wild.test", "/%61dmin")), "Refused(403, \"`deny-paths` or `redirect-rules` refuse it\")");
    assert_eq!(answer(get("x.wild.test", "/other")), "shop/web-3:80");
    assert_eq!(answer(get("guarded.test", "/")), "Refused(503, \"policy not supported\")");
    for host in ["none.test", "192.0.2.1", "_", ""] {
        assert_eq!(answer(get(host, "/")), "Refused(404, \"no rule matches\")", "{host}");
    }
    assert_eq!(answer(get("a.test", "/../x")), "Refused(400, \"path leads above the root\")");
    assert_eq!(answer(get("a.test", "x")), "Refused(400, \"path does not begin with a slash\")");
}

#[test]
fn undecidable_parts_may_answer() {
    let key = |name: &str, value: &str| json!({format!("nginx.ingress.kubernetes.io/{name}"): value});
    let translation = translation(&[
        (key("limit-rps", "5"), rules(0, "slow.test", "/")),
        (key("proxy-body-size", "1m"), rules(1, "small.test", "/")),
    ]);
    let mut replay = Replay::new(&translation.table);
    let mut may = |host: &str, status| replay.answer(&get(host, "/")).may_answer(status);
    assert!(may("slow.test", 503) && !may("slow.test", 401));
    assert!(may("small.test", 413) && !may("small.test", 503));
    assert!(!may("none.test", 401));
}
