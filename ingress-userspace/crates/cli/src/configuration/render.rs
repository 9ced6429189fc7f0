//! Documents as text for people.

use std::fmt::Write as _;

use ingress_inspect::{
    ActionDocument, BackendDocument, CertificateDocument, Explanation, ProblemDocument, RouteDocument,
};

use crate::{
    palette::Tone,
    print::Style,
    table::{Cell, TableColumn, coloured, table},
};

/// Number of endpoints or names that a narrow table shows.
const SHORT: usize = 2;
/// Days before its end from which a certificate is a warning: twice the week that an automatic renewal may fail unseen.
const SOON: i64 = 14;

pub(super) fn routes(routes: &[RouteDocument], style: Style) -> String {
    if routes.is_empty() {
        return "no routes\n".to_owned();
    }
    if style.is_wide() {
        let columns =
            ["HOST", "PATH", "TYPE", "INGRESS", "ACTION", "ENDPOINTS", "FILTERS", "SETTINGS"].map(TableColumn::Words);
        let row = |route: &RouteDocument| {
            let [host, path, kind, ingress, action, endpoints] = cells(route, usize::MAX);
            let (filters, settings) = (or_dash(route.filters.join(" ")), or_dash(route.settings.clone()));
            [host, path, kind, ingress, action, endpoints, filters.into(), settings.into()]
        };
        return coloured(columns, &routes.iter().map(row).collect::<Vec<_>>(), style.palette);
    }
    let columns = ["HOST", "PATH", "TYPE", "INGRESS", "ACTION", "ENDPOINTS"].map(TableColumn::Words);
    coloured(columns, &routes.iter().map(|route| cells(route, SHORT)).collect::<Vec<_>>(), style.palette)
}

/// Returns the host as counters name it.
fn host(route: &RouteDocument) -> String {
    match &route.listener {
        Some(listener) => format!("{}@{listener}", route.host),
        None => route.host.clone(),
    }
}

/// Returns the path and further conditions.
fn path(route: &RouteDocument) -> String {
    let path = route.path.as_deref().unwrap_or("(other paths)");
    match &route.conditions {
        Some(conditions) => format!("{path} if {conditions}"),
        None => path.to_owned(),
    }
}

/// Returns the cells of a narrow table, with up to `most` endpoints.
fn cells(route: &RouteDocument, most: usize) -> [Cell; 6] {
    let tone = match &route.action {
        ActionDocument::Refuse { .. } => Tone::Error,
        ActionDocument::Forward { .. } | ActionDocument::Redirect { .. } => Tone::Plain,
    };
    [
        host(route).into(),
        path(route).into(),
        route.path_type.as_str().to_owned().into(),
        route.ingress.clone().into(),
        Cell::new(action(&route.action), tone),
        endpoints(&route.action, most).into(),
    ]
}

pub(super) fn problems(problems: &[ProblemDocument], style: Style) -> String {
    if problems.is_empty() {
        return "no problems\n".to_owned();
    }
    let severity = |problem: &ProblemDocument| {
        let tone = if problem.severity == "warning" { Tone::Warning } else { Tone::Plain };
        Cell::new(problem.severity.clone(), tone)
    };
    if style.is_wide() {
        let columns = ["SEVERITY", "REASON", "OBJECT", "SINCE", "MESSAGE"].map(TableColumn::Words);
        let row = |problem: &ProblemDocument| {
            let since = problem.since.clone().unwrap_or_else(|| "-".to_owned());
            let ProblemDocument { reason, object, message, .. } = problem;
            let object = object.to_string().into();
            [severity(problem), reason.clone().into(), object, since.into(), message.clone().into()]
        };
        return coloured(columns, &problems.iter().map(row).collect::<Vec<_>>(), style.palette);
    }
    let columns = ["SEVERITY", "REASON", "OBJECT", "MESSAGE"].map(TableColumn::Words);
    let row = |problem: &ProblemDocument| {
        let ProblemDocument { reason, object, message, .. } = problem;
        [severity(problem), reason.clone().into(), object.to_string().into(), message.clone().into()]
    };
    coloured(columns, &problems.iter().map(row).collect::<Vec<_>>(), style.palette)
}

pub(super) fn certificates(certificates: &[CertificateDocument], style: Style) -> String {
    if certificates.is_empty() {
        return "no certificates\n".to_owned();
    }
    let secret = |certificate: &CertificateDocument| match (&certificate.secret, certificate.is_fallback) {
        (Some(secret), false) => Cell::from(secret.clone()),
        (Some(secret), true) => format!("{secret} (fallback)").into(),
        (None, _) => Cell::new("(missing)", Tone::Error),
    };
    let leaf = |certificate: &CertificateDocument| match &certificate.leaf {
        Some(leaf) => {
            let tone = match leaf.days_left {
                ..0 => Tone::Error,
                0..SOON => Tone::Warning,
                SOON.. => Tone::Plain,
            };
            (Cell::new(leaf.days_left.to_string(), tone), leaf.not_after.clone().into())
        }
        None => ("-".to_owned().into(), "-".to_owned().into()),
    };
    let [secrets, days, not_after, server_names] = [
        TableColumn::Words("SECRET"),
        TableColumn::Numbers("DAYS", 4),
        TableColumn::Words("NOT AFTER"),
        TableColumn::Words("SERVER NAMES"),
    ];
    if style.is_wide() {
        let [issuer, dns_names, staple] = ["ISSUER", "DNS NAMES", "STAPLE UNTIL"].map(TableColumn::Words);
        let columns = [secrets, days, not_after, server_names, issuer, dns_names, staple];
        let row = |certificate: &CertificateDocument| {
            let (days, not_after) = leaf(certificate);
            let of_leaf = |part: fn(&ingress_inspect::certificate::LeafDocument) -> String| {
                Cell::from(certificate.leaf.as_ref().map_or_else(|| "-".to_owned(), part))
            };
            [
                secret(certificate),
                days,
                not_after,
                names(&certificate.server_names, usize::MAX).into(),
                of_leaf(|leaf| leaf.issuer.clone()),
                of_leaf(|leaf| names(&leaf.dns_names, usize::MAX)),
                of_leaf(|leaf| leaf.staple_until.clone().unwrap_or_else(|| "-".to_owned())),
            ]
        };
        return coloured(columns, &certificates.iter().map(row).collect::<Vec<_>>(), style.palette);
    }
    let row = |certificate: &CertificateDocument| {
        let (days, not_after) = leaf(certificate);
        [secret(certificate), days, not_after, names(&certificate.server_names, SHORT).into()]
    };
    let columns = [secrets, days, not_after, server_names];
    coloured(columns, &certificates.iter().map(row).collect::<Vec<_>>(), style.palette)
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
            fact(if route.listener.is_some() { "route" } else { "ingress" }, route.ingress.clone());
        }
        if let Some(listener) = &route.listener {
            fact("listener", listener.clone());
        }
        if let Some(conditions) = &route.conditions {
            fact("conditions", conditions.clone());
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
