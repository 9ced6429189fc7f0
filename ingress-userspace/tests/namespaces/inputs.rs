//! Faulty manifests: each is reported alone, with its file, object and reason, and everything else keeps serving.

use ingress_lab::{
    client::Ask,
    load::{Connections, Load},
    topology::Family,
    until,
};

use crate::net::{Net, http, ingress};

/// File, content, and the required content of one log line.
fn cases() -> Vec<(&'static str, String, Vec<&'static str>)> {
    let megabyte = "x".repeat(1024 * 1024);
    let large = ingress("large", "large.test", "web")
        .replace("namespace: default}", &format!("namespace: default, annotations: {{note: {megabyte}}}}}"));
    let with_secret = format!(
        "{}  tls: [{{hosts: [keyless.test], secretName: keyless}}]\n---\napiVersion: v1\nkind: Secret\nmetadata: {{name: keyless, \
         namespace: default}}\ntype: kubernetes.io/tls\nstringData: {{tls.crt: no certificate, tls.key: no key}}\n",
        ingress("keyless", "keyless.test", "web"),
    );
    vec![
        ("broken.yaml", "apiVersion: v1\nkind: [unclosed\n".into(), vec!["broken.yaml", "InvalidObject"]),
        (
            "homeless.yaml",
            ingress("homeless", "homeless.test", "nowhere"),
            vec!["homeless.yaml", "default/homeless", "ServiceNotFound", "nowhere"],
        ),
        ("keyless.yaml", with_secret, vec!["keyless.yaml", "default/keyless", "InvalidCertificate"]),
        (
            // Without creation times the name decides: `web` comes before `younger`.
            "younger.yaml",
            ingress("younger", "web.test", "web"),
            vec!["younger.yaml", "default/younger", "HostPathConflict", "web.test"],
        ),
        ("large.yaml", large, vec!["large.yaml", "default/large", "TooLarge"]),
    ]
}

#[test]
fn bad_inputs_are_reported_alone() {
    let Some((net, proxy)) = Net::serving("inputs") else { return };
    let web = Ask::get("web.test", "/");
    let load = Load::start(&net.topology.client, http(Family::V4), web, 2, Connections::Kept).expect("load starts");
    for (file, content, expect) in cases() {
        net.write(file, &content);
        let reported = until(file, || {
            let log = proxy.process.log();
            log.lines().any(|line| line.contains("WARN") && expect.iter().all(|part| line.contains(part))).then_some(())
        });
        reported.unwrap_or_else(|_| panic!("{file}: no line with {expect:?} in\n{}", proxy.process.log_tail(20)));
    }
    load.pass(100).expect("the good host is served");

    // Manifests written after the faults still take effect.
    net.write("late.yaml", &net.site("late", &[2]));
    let late = || net.ask(&net.topology.client, http(Family::V4), &Ask::get("late.test", "/")).0;
    until("a later manifest", || (late().pod() == Some("pod-c")).then_some(())).expect("good manifests go on to work");
    let report = load.stop().expect("load ends");
    assert_eq!(report.failed, 0, "{:?}", report.reasons);
}
