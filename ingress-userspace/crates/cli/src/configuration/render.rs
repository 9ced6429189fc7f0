//! Documents as text for people.

use std::fmt::Write as _;

use ingress_inspect::{
    ActionDocument, BackendDocument, CertificateDocument, Explanation, ProblemDocument, RouteDocument,
};

use crate::print::{TableColumn, table};

/// Number of endpoints or names that a narrow table shows.
const SHORT: usize = 2;

pub(super) fn routes(routes: &[RouteDocument], is_wide: bool) -> String {
    if routes.is_empty() {
        return "no routes\n".to_owned();
    }
    if is_wide {
        let columns =
            ["HOST", "PATH", "TYPE", "INGRESS", "ACTION", "ENDPOINTS", "FILTERS", "SETTINGS"].map(TableColumn::Words);
        let row = |route: &RouteDocument| {
            let [host, path, kind, ingress, action, endpoints] = cells(route, usize::MAX);
            let (filters, settings) = (or_dash(route.filters.join(" ")), or_dash(route.settings.clone()));
            [host, path, kind, ingress, action, endpoints, filters, settings]
        };
        return table(columns, &routes.iter().map(row).collect::<Vec<_>>());
    }
    let columns = ["HOST", "PATH", "TYPE", "INGRESS", "ACTION", "ENDPOINTS"].map(TableColumn::Words);
    table(columns, &routes.iter().map(|route| cells(route, SHORT)).collect::<Vec<_>>())
}

/// Returns the cells of a narrow table, with up to `most` endpoints.
fn cells(route: &RouteDocument, most: usize) -> [String; 6] {
    [
        route.host.clone(),
        route.path.clone().unwrap_or_else(|| "(other paths)".to_owned()),
        route.path_type.as_str().to_owned(),
        route.ingress.clone(),
        action(&route.action),
        endpoints(&route.action, most),
    ]
}

pub(super) fn problems(problems: &[ProblemDocument], is_wide: bool) -> String {
    if problems.is_empty() {
        return "no problems\n".to_owned();
    }
    if is_wide {
        let columns = ["SEVERITY", "REASON", "OBJECT", "SINCE", "MESSAGE"].map(TableColumn::Words);
        let row = |problem: &ProblemDocument| {
            let since = problem.since.clone().unwrap_or_else(|| "-".to_owned());
            let ProblemDocument { severity, reason, object, message, .. } = problem;
            [severity.clone(), reason.clone(), object.to_string(), since, message.clone()]
        };
        return table(columns, &problems.iter().map(row).collect::<Vec<_>>());
    }
    let columns = ["SEVERITY", "REASON", "OBJECT", "MESSAGE"].map(TableColumn::Words);
    let row = |problem: &ProblemDocument| {
        let ProblemDocument { severity, reason, object, message, .. } = problem;
        [severity.clone(), reason.clone(), object.to_string(), message.clone()]
    };
    table(columns, &problems.iter().map(row).collect::<Vec<_>>())
}

pub(super) fn certificates(certificates: &[CertificateDocument], is_wide: bool) -> String {
    if certificates.is_empty() {
        return "no certificates\n".to_owned();
    }
    let secret = |certificate: &CertificateDocument| match (&certificate.secret, certificate.is_fallback) {
        (Some(secret), false) => secret.clone(),
        (Some(secret), true) => format!("{secret} (fallback)"),
        (None, _) => "(missing)".to_owned(),
    };
    let leaf = |certificate: &CertificateDocument| match &certificate.leaf {
        Some(leaf) => (leaf.days_left.to_string(), leaf.not_after.clone()),
        None => ("-".to_owned(), "-".to_owned()),
    };
    if is_wide {
        let columns = [
            TableColumn::Words("SECRET"),
            TableColumn::Numbers("DAYS", 4),
            TableColumn::Words("NOT AFTER"),
            TableColumn::Words("SERVER NAMES"),
            TableColumn::Words("ISSUER"),
            TableColumn::Words("DNS NAMES"),
            TableColumn::Words("STAPLE UNTIL"),
        ];
        let row = |certificate: &CertificateDocument| {
            let (days, not_after) = leaf(certificate);
            let of_leaf = |part: fn(&ingress_inspect::certificate::LeafDocument) -> String| {
                certificate.leaf.as_ref().map_or_else(|| "-".to_owned(), part)
            };
            [
                secret(certificate),
                days,
                not_after,
                names(&certificate.server_names, usize::MAX),
                of_leaf(|leaf| leaf.issuer.clone()),
                of_leaf(|leaf| names(&leaf.dns_names, usize::MAX)),
                of_leaf(|leaf| leaf.staple_until.clone().unwrap_or_else(|| "-".to_owned())),
            ]
        };
        return table(columns, &certificates.iter().map(row).collect::<Vec<_>>());
    }
    let columns = [
        TableColumn::Words("SECRET"),
        TableColumn::Numbers("DAYS", 4),
        TableColumn::Words("NOT AFTER"),
        TableColumn::Words("SERVER NAMES"),
    ];
    let row = |certificate: &CertificateDocument| {
        let (days, not_after) = leaf(certificate);
        [secret(certificate), days, not_after, names(&certificate.server_names, SHORT)]
    };
    table(columns, &certificates.iter().map(row).collect::<Vec<_>>())
}

/// Returns the verdict and the facts behind it; with `is_wide`, also every rule that was not chosen.
pub(super) fn explanation(explanation: &Explanation, is_wide: bool) -> String {
    let Explanation {
        scheme,
        host,
        path,
        verdict: _,
        summary,
        route,
        hosts,
        considered,
        considered_left_out,
        certificate,
        notes,
    } = explanation;
    let mut lines = vec![summary.clone(), String::new()];
    let mut fact = |name: &str, value: String| lines.push(format!("{name:<13} {value}"));
    fact("request", format!("GET {scheme}://{host}{path}"));
    fact("hosts", if hosts.is_empty() { "none matches".to_owned() } else { hosts.join(", ") });
    if let Some(route) = route {
        let path = route.path.clone().unwrap_or_else(|| "(other paths)".to_owned());
        fact("rule", format!("{} {path} ({})", route.host, route.path_type.as_str()));
        if !route.ingress.is_empty() {
            fact("ingress", route.ingress.clone());
        }
        for (at, filter) in route.filters.iter().enumerate() {
            fact(if at == 0 { "filters" } else { "" }, filter.clone());
        }
        fact("action", action(&route.action));
        fact("endpoints", endpoints(&route.action, usize::MAX));
        if !route.settings.is_empty() {
            fact("settings", route.settings.clone());
        }
    }
    if let Some(certificate) = certificate {
        let secret = certificate.secret.clone().unwrap_or_else(|| "self-signed by the process".to_owned());
        fact("certificate", if certificate.is_fallback { format!("{secret} (fallback)") } else { secret });
    }
    for (at, note) in notes.iter().enumerate() {
        fact(if at == 0 { "notes" } else { "" }, note.clone());
    }
    // A terminal has room for the rules next to the chosen one only.
    let shown = if is_wide { considered.len() } else { considered.len().min(10) };
    let mut text = lines.join("\n") + "\n";
    if shown > 0 {
        text += "\nNot chosen:\n";
        let rows: Vec<_> = considered
            .iter()
            .take(shown)
            .map(|other| {
                let path = other.path.clone().unwrap_or_else(|| "(other paths)".to_owned());
                [path, other.path_type.as_str().to_owned(), other.ingress.clone(), other.reason.clone()]
            })
            .collect();
        text += &table(["PATH", "TYPE", "INGRESS", "REASON"].map(TableColumn::Words), &rows);
    }
    let left_out = considered.len() - shown + considered_left_out;
    if left_out > 0 {
        let hint = if is_wide { "" } else { "; `-o wide` shows more" };
        // Writing to a string cannot fail.
        let _infallible = writeln!(text, "and {left_out} more rules of the host{hint}");
    }
    text
}

fn action(action: &ActionDocument) -> String {
    let backend = |BackendDocument { upstream, condition, .. }: &BackendDocument| match condition {
        Some(condition) => format!("{upstream} if {condition}"),
        None => upstream.clone(),
    };
    match action {
        ActionDocument::Forward { backends } => backends.iter().map(backend).collect::<Vec<_>>().join(", else "),
        ActionDocument::Refuse { status, reason } => format!("{status}: {reason}"),
        ActionDocument::Redirect { status, location } => format!("{status} to {location}"),
    }
}

/// Returns up to `most` addresses of the backends, and how many more there are.
fn endpoints(action: &ActionDocument, most: usize) -> String {
    let ActionDocument::Forward { backends } = action else { return "-".to_owned() };
    let addresses: Vec<_> = backends.iter().flat_map(|backend| &backend.endpoints).map(ToString::to_string).collect();
    if addresses.is_empty() { "none".to_owned() } else { names(&addresses, most) }
}

fn names(names: &[String], most: usize) -> String {
    let shown = names.iter().take(most).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(most) {
        0 => or_dash(shown),
        more => format!("{shown}, +{more}"),
    }
}

fn or_dash(text: String) -> String {
    if text.is_empty() { "-".to_owned() } else { text }
}
