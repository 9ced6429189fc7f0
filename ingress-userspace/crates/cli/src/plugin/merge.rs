//! Merges answers of several nodes. Pure.

use std::collections::{BTreeMap, BTreeSet};

use ingress_inspect::{CertificateDocument, Explanation, ProblemDocument, RouteDocument};

/// A merged answer, and what differs between nodes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Merged<T> {
    pub(super) value: T,
    /// Describes the first difference; `None` if all nodes say the same.
    pub(super) difference: Option<String>,
}

/// Returns each rule once, in the order of the first node. A rule of other nodes alone comes last. Where nodes differ in
/// more than addresses of pods, which topology may choose by node, the first node's rule is shown.
pub(super) fn routes(answers: Vec<(String, Vec<RouteDocument>)>) -> Merged<Vec<RouteDocument>> {
    let mut value = Vec::<RouteDocument>::new();
    let mut places = BTreeMap::new();
    let mut counts = Vec::<usize>::new();
    let mut difference = None;
    let nodes = answers.len();
    for (node, routes) in answers {
        for route in routes {
            let RouteDocument { listener, host, path, path_type, conditions, ingress, .. } = &route;
            let rule = (path.clone(), path_type.as_str(), conditions.clone());
            let key = (listener.clone(), host.clone(), rule, ingress.clone());
            let place = *places.entry(key).or_insert_with(|| {
                value.push(route.clone());
                counts.push(0);
                value.len() - 1
            });
            counts[place] += 1;
            let known = &value[place];
            if difference.is_none() && without_endpoints(known) != without_endpoints(&route) {
                difference = Some(format!("node `{node}` treats {} otherwise", name(&route)));
            }
        }
    }
    let missing = counts.iter().position(|count| *count < nodes);
    let difference = difference.or_else(|| Some(format!("not every node has {}", name(&value[missing?]))));
    Merged { value, difference }
}

fn name(route: &RouteDocument) -> String {
    format!("`{}{}` of Ingress `{}`", route.host, route.path.as_deref().unwrap_or("/…"), route.ingress)
}

fn without_endpoints(route: &RouteDocument) -> RouteDocument {
    let mut route = route.clone();
    if let ingress_inspect::ActionDocument::Forward { backends } = &mut route.action {
        for backend in backends {
            backend.endpoints.clear();
        }
    }
    route
}

/// Returns each problem once, with the earliest time, in the order of the first node that has it.
pub(super) fn problems(answers: Vec<Vec<ProblemDocument>>) -> Vec<ProblemDocument> {
    let mut merged = Vec::<ProblemDocument>::new();
    let mut places = BTreeMap::new();
    for problem in answers.into_iter().flatten() {
        let ProblemDocument { severity, reason, object, message, since } = &problem;
        let key = (object.clone(), reason.clone(), severity.clone(), message.clone());
        match places.get(&key) {
            None => {
                places.insert(key, merged.len());
                merged.push(problem);
            }
            Some(&place) => {
                let known: &mut ProblemDocument = &mut merged[place];
                // RFC 3339 in UTC is ordered as text.
                known.since = [known.since.take(), since.clone()].into_iter().flatten().min();
            }
        }
    }
    merged
}

/// Returns each certificate once, the first to expire first.
pub(super) fn certificates(answers: Vec<Vec<CertificateDocument>>) -> Vec<CertificateDocument> {
    let mut seen = BTreeSet::new();
    let mut merged: Vec<_> = answers.into_iter().flatten().collect();
    merged.retain(|certificate| {
        let CertificateDocument { secret, server_names, is_fallback, leaf } = certificate;
        // Without the days left, of which nodes may be asked before and after midnight.
        let leaf = leaf.as_ref().map(|leaf| (leaf.issuer.clone(), leaf.not_before.clone(), leaf.not_after.clone()));
        seen.insert((secret.clone(), server_names.clone(), *is_fallback, leaf))
    });
    merged.sort_by_key(|document| document.leaf.as_ref().map_or(i64::MAX, |leaf| leaf.not_after_seconds));
    merged
}

/// Returns the first node's explanation, and which node explains otherwise, apart from addresses of pods.
pub(super) fn explanations(answers: Vec<(String, Explanation)>) -> Option<Merged<Explanation>> {
    let mut answers = answers.into_iter();
    let (first, value) = answers.next()?;
    let essence = |explanation: &Explanation| {
        let route = explanation.route.as_ref().map(without_endpoints);
        let summary = route.is_none().then(|| explanation.summary.clone());
        (explanation.verdict, route, summary)
    };
    let other = answers.find(|(_, other)| essence(other) != essence(&value));
    let difference = other
        .map(|(node, other)| format!("this is the answer of node `{first}`; node `{node}` says: {}", other.summary));
    Some(Merged { value, difference })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn route(path: &str, status: u16) -> RouteDocument {
        let action = json!({ "type": "refuse", "status": status, "reason": "why" });
        serde_json::from_value(json!({
            "host": "shop.test", "path": path, "path_type": "prefix", "ingress": "shop/web", "filters": [],
            "action": action, "settings": "",
        }))
        .expect("a route")
    }

    fn forwarding(endpoints: &[&str]) -> RouteDocument {
        let backend = json!({
            "upstream": "shop/web:80", "protocol": "http/1.1", "endpoints": endpoints, "condition": null,
        });
        let mut route = json!(route("/", 503));
        route["action"] = json!({ "type": "forward", "backends": [backend] });
        serde_json::from_value(route).expect("a route")
    }

    #[test]
    fn equal_rules_are_shown_once_and_differences_are_named() {
        let node = |name: &str, routes: &[RouteDocument]| (name.to_owned(), routes.to_vec());
        let both = [route("/cart", 503), route("/", 503)];
        let merged = routes(vec![node("a", &both), node("b", &both)]);
        assert_eq!(merged, Merged { value: both.to_vec(), difference: None });

        let merged = routes(vec![node("a", &both), node("b", &[route("/cart", 403), route("/", 503)])]);
        assert_eq!(merged.value, both);
        assert_eq!(
            merged.difference.as_deref(),
            Some("node `b` treats `shop.test/cart` of Ingress `shop/web` otherwise")
        );

        let merged = routes(vec![node("a", &both[1..]), node("b", &both)]);
        assert_eq!(merged.value, [both[1].clone(), both[0].clone()]);
        assert_eq!(merged.difference.as_deref(), Some("not every node has `shop.test/cart` of Ingress `shop/web`"));

        let (here, there) = (forwarding(&["10.0.0.1:80"]), forwarding(&["10.0.1.1:80"]));
        let merged = routes(vec![node("a", std::slice::from_ref(&here)), node("b", &[there])]);
        assert_eq!(merged, Merged { value: vec![here], difference: None }, "pods by topology");
    }

    #[test]
    fn problems_are_known_since_the_first_node_knew_them() {
        let problem = |name: &str, since: Option<&str>| -> ProblemDocument {
            serde_json::from_value(json!({
                "severity": "warning", "reason": "ServiceNotFound", "message": "there is no Service; create it",
                "object": { "kind": "Ingress", "namespace": "shop", "name": name, "file": null }, "since": since,
            }))
            .expect("a problem")
        };
        let (early, late) = (Some("2026-11-26T10:00:00Z"), Some("2026-11-26T11:00:00Z"));
        let merged = problems(vec![
            vec![problem("one", late), problem("two", None)],
            vec![problem("other", late), problem("one", early), problem("two", late)],
        ]);
        assert_eq!(merged, [problem("one", early), problem("two", late), problem("other", late)]);
    }

    #[test]
    fn certificates_are_shown_once() {
        let certificate = |secret: &str, end: i64, days: i64| -> CertificateDocument {
            serde_json::from_value(json!({
                "secret": secret, "server_names": ["shop.test"], "is_fallback": false,
                "leaf": {
                    "subject": "CN=shop.test", "issuer": "CN=ca", "dns_names": ["shop.test"], "not_before": "x",
                    "not_after": end.to_string(), "not_after_seconds": end, "days_left": days, "staple_until": null,
                },
            }))
            .expect("a certificate")
        };
        let (shop, old, renewed) =
            (certificate("shop/a", 900, 9), certificate("shop/b", 100, 1), certificate("shop/b", 800, 8));
        let merged =
            certificates(vec![vec![old.clone(), shop.clone()], vec![certificate("shop/a", 900, 8), renewed.clone()]]);
        assert_eq!(merged, [old, renewed, shop]);
    }

    #[test]
    fn another_explanation_is_named() {
        let explanation = |summary: &str| -> Explanation {
            serde_json::from_value(json!({
                "scheme": "https", "host": "shop.test", "path": "/", "verdict": "not_found", "summary": summary,
                "route": null, "hosts": [], "considered": [], "considered_left_out": 0, "certificate": null,
                "notes": [],
            }))
            .expect("an explanation")
        };
        let node = |name: &str, summary: &str| (name.to_owned(), explanation(summary));
        let same = explanations(vec![node("a", "no rule"), node("b", "no rule")]).expect("an answer");
        assert_eq!(same, Merged { value: explanation("no rule"), difference: None });
        let other = explanations(vec![node("a", "no rule"), node("b", "a rule")]).expect("an answer");
        assert_eq!(other.difference.as_deref(), Some("this is the answer of node `a`; node `b` says: a rule"));
        assert_eq!(explanations(Vec::new()), None);
    }
}
