//! Objects that are too large are refused, without affecting others.

use crate::case::{Translated, translated};

#[test]
fn an_oversized_ingress_is_refused_alone() {
    let ingress = |name: &str, annotation: usize, paths: usize| {
        let paths: String = (0..paths)
            .map(|n| {
                format!("{{path: /{n}, pathType: Prefix, backend: {{service: {{name: s, port: {{number: 80}}}}}}}}, ")
            })
            .collect();
        format!(
            "---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{name: {name}, annotations: {{a/b: \"{}\"}}}}\n\
             spec:\n  ingressClassName: xdp\n  rules:\n  - host: {name}.test\n    http: {{paths: [{paths}]}}\n",
            "x".repeat(annotation)
        )
    };
    let text = ingress("ok", 10, 1) + &ingress("annotated", 1 << 20, 1) + &ingress("many", 10, 10_001);
    let Translated { table, outcomes, .. } = translated("in.yaml", &text);
    assert!(table.contains("host ok.test") && !table.contains("annotated.test"), "{table}");
    assert!(table.ends_with("without effect default/annotated\nwithout effect default/many\n"), "{table}");
    for expect in
        ["TooLarge Ingress default/annotated (in.yaml): annotations contain 10", "TooLarge Ingress default/many"]
    {
        assert!(outcomes.contains(expect), "{outcomes}");
    }
    assert!(outcomes.len() < 1000, "outcomes do not quote what is too large");
}

#[test]
fn a_route_with_too_many_rules_is_refused_alone() {
    let listeners: String =
        (0..60).map(|at| format!("{{name: l{at}, port: {}, protocol: HTTP}}, ", 8_000 + at)).collect();
    let gateway = format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {{name: xdp}}\n\
         spec: {{controllerName: xdp-ingress.io/gateway-controller}}\n---\n\
         apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {{name: g}}\n\
         spec: {{gatewayClassName: xdp, listeners: [{listeners}]}}\n"
    );
    let route = |name: &str, hostnames: usize, matches: usize| {
        let hostnames: String = (0..hostnames).map(|at| format!("h{at}.{name}.test, ")).collect();
        let matches: String = (0..matches).map(|at| format!("{{path: {{value: /{at}}}}}, ")).collect();
        format!(
            "---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {{name: {name}}}\nspec:\n  \
             parentRefs: [{{name: g}}, {{name: g, sectionName: l0}}]\n  hostnames: [{hostnames}]\n  rules: [{{matches: [{matches}]}}]\n"
        )
    };
    // Sixty listeners: 9,600 and 11,520 rules.
    let text = gateway + &route("ok", 16, 10) + &route("many", 16, 12);
    let Translated { table, statuses, .. } = translated("in.yaml", &text);
    assert_eq!(table.matches("# default/ok\n").count(), 9_600);
    assert!(!table.contains("default/many"), "it is attached nowhere");
    let refusal =
        "Accepted=False UnsupportedValue: there are 11520 rules, one for each match and each hostname of each listener";
    assert_eq!(statuses.matches(refusal).count(), 2, "for each parent");
}

#[test]
fn inherited_routes_are_limited_for_each_namespace() {
    let path = |n: usize| {
        format!("{{path: /p{n}, pathType: Prefix, backend: {{service: {{name: s, port: {{number: 80}}}}}}}}, ")
    };
    let lender = |namespace: &str| {
        format!(
            "---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{name: lender, namespace: {namespace}}}\nspec:\n  ingressClassName: xdp\n  rules:\n  - host: '*.{namespace}.test'\n    http: {{paths: [{}]}}\n",
            (0..1_000).map(path).collect::<String>(),
        )
    };
    let challenge = "paths: [{path: /.well-known/acme-challenge/t, pathType: Exact, backend: {service: {name: s, port: {number: 80}}}}]";
    let solver = |namespace: &str, first: char, hosts: usize| {
        let rules = (0..hosts).map(|n| format!("  - host: {first}{n}.{namespace}.test\n    http: {{{challenge}}}\n"));
        format!(
            "---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{name: solver, namespace: {namespace}, labels: {{acme.cert-manager.io/http01-solver: \"true\"}}}}\nspec:\n  ingressClassName: xdp\n  rules:\n{}",
            rules.collect::<String>()
        )
    };
    let greedy = lender("greedy") + &solver("greedy", 'h', 200);
    let Translated { table, outcomes, .. } = translated("in.yaml", &greedy);
    let rules = table.lines().filter(|line| line.trim_start().starts_with("/p")).count();
    assert_eq!(rules, 1_000 + 100_000, "the lender's own, and what is lent");
    assert_eq!(
        outcomes.matches("TooLarge Ingress greedy/solver").count(),
        100,
        "{}",
        &outcomes[..2000.min(outcomes.len())]
    );

    // Another namespace, with the host that comes last, has a share of its own.
    let Translated { table, outcomes, .. } =
        translated("in.yaml", &(greedy + &lender("team") + &solver("team", 'z', 1)));
    let of_last = table.lines().skip_while(|line| *line != "host z0.team.test").skip(1);
    let lent = of_last.take_while(|line| line.starts_with(' ')).filter(|line| line.trim_start().starts_with("/p"));
    assert_eq!(lent.count(), 1_000);
    assert!(!outcomes.contains("TooLarge Ingress team/solver"));
}

#[test]
fn excess_canaries_of_a_rule_receive_no_traffic() {
    const MAX: usize = 16;
    let service = "---\napiVersion: v1\nkind: Service\nmetadata: {name: s}\nspec: {ports: [{port: 80}]}\n\
                   ---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4\n\
                   metadata: {name: s, labels: {kubernetes.io/service-name: s}}\n\
                   ports: [{port: 8080}]\nendpoints: [{addresses: [10.1.0.1]}]\n";
    let ingress = |name: &str, annotations: &str| {
        format!(
            "---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{name: {name}, annotations: {{{annotations}}}}}\n\
             spec:\n  ingressClassName: xdp\n  rules:\n  - host: a.test\n    http: {{paths: [{{path: /, pathType: Prefix, \
             backend: {{service: {{name: s, port: {{number: 80}}}}}}}}]}}\n"
        )
    };
    let canary = "xdp-ingress.io/canary: 'true', xdp-ingress.io/canary-by-header: x-to, xdp-ingress.io/canary-by-header-pattern: a";
    let canaries: String = (0..=MAX).map(|number| ingress(&format!("canary-{number:02}"), canary)).collect();
    let Translated { table, outcomes, .. } =
        translated("in.yaml", &(service.to_owned() + &ingress("main", "") + &canaries));
    assert_eq!(table.matches("x-to~a").count(), MAX, "{table}");
    let expect = "TooLarge Ingress default/canary-16 (in.yaml): path `/` of host `a.test` has 16 canaries already";
    assert!(outcomes.contains(expect), "{outcomes}");
    assert_eq!(outcomes.matches("TooLarge").count(), 1, "{outcomes}");
}
