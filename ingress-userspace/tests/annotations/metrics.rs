//! Metrics of the rules of one Ingress.

use super::Ingress;
use ingress_proxy_testing::{Origin, wait_until};

#[test]
fn requests_are_counted_by_rule_if_configured() {
    let pod = Origin::answering("pod");
    let ingress = Ingress::with(&[("metrics-per-path", "true")]).path("/app", "Exact").path("/", "Prefix");
    let site = ingress.serve(&pod).in_order();
    for path in ["/app", "/app", "/other/1", "/other/2", "/other/3"] {
        assert_eq!(site.get(path).status, 200);
    }
    let counts = || {
        let mut counts: Vec<_> =
            site.proxy.shared.meters().into_iter().map(|view| (view.path, view.requests[0])).collect();
        counts.sort();
        counts
    };
    wait_until("all are counted", || counts().iter().map(|(_, count)| count).sum::<u64>() == 5);
    // Labels are those of rules, however many paths there are.
    assert_eq!(counts(), [("/".to_owned(), 3), ("= /app".to_owned(), 2)]);
    let view = site.proxy.shared.meters().remove(0);
    assert_eq!((view.host.as_str(), &*view.owner), ("a.test", "default/web"));
    // Counts live on with the rule.
    let table = ingress.translated(&[pod.address, Origin::refusing()], &super::Options::for_manifests()).0;
    site.proxy.publish(&table);
    assert_eq!(counts().iter().map(|(_, count)| count).sum::<u64>(), 5);
    let plain = Ingress::with(&[]).serve(&pod).in_order();
    plain.get("/");
    assert!(plain.proxy.shared.meters().is_empty());
}
