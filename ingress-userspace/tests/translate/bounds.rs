//! What is too large is refused, by itself.

use crate::case::translated;

#[test]
fn what_is_too_large_is_refused_alone() {
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
    let (table, outcomes) = translated("in.yaml", &text);
    assert!(table.contains("host ok.test") && !table.contains("annotated") && !table.contains("many"), "{table}");
    for expect in ["TooLarge Ingress default/annotated (in.yaml): annotations hold 10", "TooLarge Ingress default/many"]
    {
        assert!(outcomes.contains(expect), "{outcomes}");
    }
    assert!(outcomes.len() < 1000, "outcomes do not quote what is too large");
}

#[test]
fn what_is_lent_to_solvers_is_bounded() {
    let path = |n: usize| {
        format!("{{path: /p{n}, pathType: Prefix, backend: {{service: {{name: s, port: {{number: 80}}}}}}}}, ")
    };
    let solver = |n: usize| {
        format!(
            "  - host: h{n}.test\n    http: {{paths: [{{path: /.well-known/acme-challenge/t, pathType: Exact, backend: {{service: {{name: s, port: {{number: 80}}}}}}}}]}}\n"
        )
    };
    let text = format!(
        "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{name: lender}}\nspec:\n  ingressClassName: xdp\n  rules:\n  - host: '*.test'\n    http: {{paths: [{}]}}\n\
         ---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{name: solver, labels: {{acme.cert-manager.io/http01-solver: \"true\"}}}}\nspec:\n  ingressClassName: xdp\n  rules:\n{}",
        (0..1_000).map(path).collect::<String>(),
        (0..200).map(solver).collect::<String>(),
    );
    let (table, outcomes) = translated("in.yaml", &text);
    let rules = table.lines().filter(|line| line.trim_start().starts_with("/p")).count();
    assert_eq!(rules, 1_000 + 100_000, "the lender's own, and what is lent");
    assert_eq!(
        outcomes.matches("TooLarge Ingress default/solver").count(),
        100,
        "{}",
        &outcomes[..2000.min(outcomes.len())]
    );
}
