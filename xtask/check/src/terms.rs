//! Terms that users of ingress controllers search for. Each must be in a heading of the documentation, because headings
//! are the contents of the site, and weigh most in its search.

use std::path::Path;

use super::pages::{DECISIONS, Pages, SUMMARY, anchor, headings};

/// The terms, as users write them; upper and lower case are alike.
const TERMS: [&str; 84] = [
    "access log",
    "AKS",
    "annotations",
    "Argo Rollouts",
    "authentication",
    "bare metal",
    "basic authentication",
    "benchmarks",
    "block list",
    "Calico",
    "canary",
    "cert-manager",
    "certificate",
    "Cilium",
    "circuit breaking",
    "client certificates",
    "client IP",
    "comparison",
    "compatibility",
    "compression",
    "ConfigMap",
    "CORS",
    "deny list",
    "EKS",
    "error pages",
    "events",
    "external-dns",
    "FAQ",
    "Flagger",
    "Flannel",
    "GKE",
    "Grafana",
    "graceful shutdown",
    "gRPC",
    "health checks",
    "Helm",
    "high availability",
    "hostPort",
    "HTTP/2",
    "HTTP/3",
    "ingress-nginx",
    "install",
    "IP blocking",
    "IPv6",
    "JSON Web Tokens",
    "k3s",
    "kernel",
    "kind",
    "kube-proxy replacement",
    "kube-vip",
    "Let's Encrypt",
    "load balancing",
    "MetalLB",
    "metrics",
    "mirror",
    "monitoring",
    "multi-tenancy",
    "mutual TLS",
    "NetworkPolicy",
    "OAuth",
    "OIDC",
    "OpenTelemetry",
    "out of memory",
    "outlier detection",
    "production checklist",
    "Prometheus",
    "PROXY protocol",
    "quick start",
    "rate limiting",
    "RBAC",
    "redirect",
    "requirements",
    "retries",
    "SELinux",
    "session affinity",
    "sizing",
    "sticky sessions",
    "TCP",
    "timeouts",
    "TLS passthrough",
    "traffic split",
    "troubleshooting",
    "UDP",
    "uninstall",
];
/// Further terms, for faults and codes that users see.
const SYMPTOMS: [&str; 6] = ["404", "503", "upgrade", "WebSocket", "wrong certificate", "X-Forwarded-For"];

/// Returns the terms that are in no heading.
pub(super) fn missing(headings: &[&str]) -> Vec<&'static str> {
    let headings: Vec<_> = headings.iter().map(|heading| heading.to_lowercase()).collect();
    let has = |term: &&str| headings.iter().any(|heading| has_term(heading, &term.to_lowercase()));
    TERMS.into_iter().chain(SYMPTOMS).filter(|term| !has(term)).collect()
}

/// Returns a page with all terms, each with links to its headings, relative to the root of the repository. Decisions
/// and the changelog are left out, because they are not instructions.
pub(super) fn index(pages: &Pages) -> String {
    let mut terms: Vec<_> = TERMS.into_iter().chain(SYMPTOMS).collect();
    terms.sort_unstable_by_key(|term| term.to_lowercase());
    let is_guide =
        |path: &Path| !path.starts_with(DECISIONS) && path != Path::new("CHANGELOG.md") && path != Path::new(SUMMARY);
    let mut index = "# Index of terms\n\n| term | headings |\n|---|---|\n".to_owned();
    for term in terms {
        let mut links = Vec::new();
        for (path, text) in pages.iter().filter(|(path, _)| is_guide(path)) {
            let found =
                headings(text).into_iter().filter(|heading| has_term(&heading.to_lowercase(), &term.to_lowercase()));
            links.extend(found.map(|heading| format!("[{heading}]({}#{})", path.display(), anchor(heading))));
        }
        index.push_str(&format!("| {term} | {} |\n", links.join(" · ")));
    }
    index
}

/// Whether the words of `term` are in `heading`, and not only within other words.
fn has_term(heading: &str, term: &str) -> bool {
    let is_edge = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric());
    heading
        .match_indices(term)
        .any(|(at, _)| is_edge(heading[..at].chars().next_back()) && is_edge(heading[at + term.len()..].chars().next()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_links_each_term_to_its_headings() {
        let pages = [("docs/a.md", "# Sizes\n## Sizing, Redirect\n"), ("docs/adr/1.md", "# Sizing\n")];
        let index = index(&pages.map(|(path, text)| (path.into(), text.to_owned())).into());
        let line = "| sizing | [Sizing, Redirect](docs/a.md#sizing-redirect) |";
        assert!(index.lines().any(|each| each == line), "{index}");
    }

    #[test]
    fn terms_without_a_heading_are_named() {
        let mut headings: Vec<_> = TERMS.into_iter().chain(SYMPTOMS).collect();
        assert_eq!(missing(&headings), [""; 0]);
        headings.retain(|heading| *heading != "kind");
        headings.extend(["Kinds of interfaces", "mankind"]);
        assert_eq!(missing(&headings), ["kind"]);
        headings.push("Quick start on Kind, and others");
        assert_eq!(missing(&headings), [""; 0]);
    }
}
