//! A namespace that is being deleted, and its successor.

use ingress_lab::{
    client::{Ask, Protocol},
    credentials::Authority,
};

use crate::{
    conformance::served_by,
    objects::{ingress, rule},
    stage::{Scope, https, mended, stage, until},
};

const HOST: &str = "ends.test";

/// Holds the pods of a scope, and so its namespace, back from deletion.
struct Hold<'s>(&'s Scope<'s>);

#[test]
fn a_terminating_namespace_loses_its_hosts() {
    let Some(stage) = stage() else { return };
    // The default backend takes hosts that other tests expect to be unknown.
    let _alone = stage.alone();
    let (before, after) = (stage.scope("ends-before"), stage.scope("ends-after"));
    let serve = |scope: &Scope<'_>, service: &str| {
        let authority = Authority::generate().expect("an authority");
        scope.run(&[(service, 1)]);
        stage.apply(&authority.secret(&scope.name, "tls", &[HOST]).expect("a Secret"));
        let tls = format!("  tls: [{{hosts: [{HOST}], secretName: tls}}]\n");
        scope.apply(&ingress("web", &(tls + &rule(HOST, &[("Prefix", "/", service)]))));
        let trust = authority.trust().expect("a root");
        for node in stage.nodes() {
            until(&format!("{} shows the certificate of {} and leads to `{service}`", node.name(), scope.name), || {
                let ask = Ask::get(HOST, "/");
                let answer = stage.try_ask(https(node), Protocol::Https1, &trust, &ask);
                let answer = answer.map_err(|error| format!("{error:#}"))?;
                let is_right = answer.status == 200 && served_by(answer.pod(), service);
                if is_right { Ok(()) } else { Err(format!("{} from {:?}", answer.status, answer.pod())) }
            });
        }
    };
    serve(&before, "old");
    before.apply(&ingress("all", "  defaultBackend: {service: {name: old, port: {number: 80}}}\n"));
    stage.await_status("nobody.ends.test", "/", 200);
    let hold = Hold::new(&before);
    stage.kubectl(&["delete", "namespace", &before.name, "--wait=false"]);
    serve(&after, "new");
    stage.await_status("nobody.ends.test", "/", 404);
    let namespace = stage.json(&["get", "namespace", &before.name]);
    assert_eq!(namespace["status"]["phase"], "Terminating");
    // The old Ingresses still exist; otherwise the hosts would have been free anyway.
    before.kubectl(&["get", "ingress", "web", "all"]);
    drop(hold);
}

// === impl Hold ===

impl<'s> Hold<'s> {
    fn new(scope: &'s Scope<'s>) -> Self {
        let hold = Self(scope);
        hold.set(r#"["xdp-ingress.test/hold"]"#).unwrap_or_else(|error| panic!("{error:#}"));
        hold
    }

    fn set(&self, finalizers: &str) -> anyhow::Result<()> {
        let Scope { stage, name } = self.0;
        let pods = stage.cluster.kubectl(&["--namespace", name, "get", "pods", "--output=name"])?;
        let patch = format!(r#"{{"metadata":{{"finalizers":{finalizers}}}}}"#);
        let patch = ["--namespace", name, "patch", "--type=merge", "--patch", &patch];
        pods.lines().try_for_each(|pod| stage.cluster.kubectl(&[&patch[..], &[pod]].concat()).map(drop))
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        mended("letting the pods go", self.set("null"));
    }
}
