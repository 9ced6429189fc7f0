//! Findings about requests that ingress-nginx serves by another rule. `ingress_inspect` compares.

use ingress_control::change::{Kind, ObjectName};
use ingress_inspect::{Comparison, ProblemObject, UnknownHost, Witness};

use super::{
    finding::{Finding, Verdict},
    objects::Objects,
};

/// Key of these findings.
const KEY: &str = "request";

/// Returns a finding for each difference, and for each host that could not be compared.
pub(super) fn findings(comparison: &Comparison, objects: &Objects) -> Vec<Finding> {
    let Comparison { hosts: _, requests: _, witnesses, unknown } = comparison;
    let of_witness = |witness: &Witness| {
        let Witness { url, ingress, nginx, here, further } = witness;
        let further = match further {
            0 => String::new(),
            further => format!(" ({further} more alike)"),
        };
        Finding {
            verdict: Verdict::Differs,
            object: ingress.as_deref().and_then(|name| ingress_of(name, objects)).unwrap_or_else(|| host_of(url)),
            key: KEY.to_owned(),
            what: format!("{url}: ingress-nginx: {nginx}; here: {here}{further}"),
            fix: String::new(),
        }
    };
    let of_host = |UnknownHost { host, reason }: &UnknownHost| Finding {
        verdict: Verdict::Note,
        object: host_of(host),
        key: KEY.to_owned(),
        what: format!("requests are not compared: {reason}"),
        fix: String::new(),
    };
    witnesses.iter().map(of_witness).chain(unknown.iter().map(of_host)).collect()
}

fn ingress_of(name: &str, objects: &Objects) -> Option<ProblemObject> {
    let (namespace, name) = name.split_once('/')?;
    let name = ObjectName::new(namespace, name);
    let stored = objects.cluster.ingresses.get(&name)?;
    Some(ProblemObject::from(&name.refer(Kind::Ingress, &stored.origin)))
}

/// Returns the host of a URL, in place of an object.
fn host_of(url: &str) -> ProblemObject {
    let host = url.trim_start_matches("https://").split('/').next().unwrap_or_default().to_owned();
    ProblemObject { kind: "Host".to_owned(), namespace: String::new(), name: host, file: None }
}
