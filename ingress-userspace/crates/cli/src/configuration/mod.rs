//! The commands about a configuration: `routes`, `problems`, `certs` and `explain`. They read the API of a process on
//! this node, a directory of manifests, or a cluster, and change nothing.
//!
//! `arguments` describes their options, `source` reads, `render` makes tables, and `node_client` asks a process.

mod arguments;
mod node_client;
mod render;
mod source;

use std::process::ExitCode;

use ingress_inspect::{CertificateDocument, Explanation, ProblemDocument, RouteDocument};
use serde::Serialize;

pub use arguments::{CertsArgs, ExplainArgs, Format, ProblemsArgs, RoutesArgs};
pub use node_client::NodeClient;
use source::Source;

use crate::{FINDINGS, print};

/// Shows rules in order of precedence.
///
/// # Errors
/// Fails if the configuration cannot be read, or standard output cannot be written.
pub fn routes(args: RoutesArgs) -> anyhow::Result<ExitCode> {
    let RoutesArgs { read, host, namespace, ingress } = args;
    let format = read.output;
    let filter = ingress_inspect::RouteFilter { host, namespace, ingress };
    let routes: Vec<RouteDocument> = Source::of(read)?.routes(&filter)?;
    show(format, &routes, |is_wide| render::routes(&routes, is_wide))?;
    Ok(ExitCode::SUCCESS)
}

/// Shows problems of objects.
///
/// # Errors
/// Fails like [`routes`].
pub fn problems(args: ProblemsArgs) -> anyhow::Result<ExitCode> {
    let ProblemsArgs { read, namespace, warnings, exit_code } = args;
    let format = read.output;
    let mut problems: Vec<ProblemDocument> = Source::of(read)?.problems()?;
    problems.retain(|problem| {
        namespace.as_deref().is_none_or(|namespace| problem.object.namespace == namespace)
            && (!warnings || problem.severity == "warning")
    });
    show(format, &problems, |is_wide| render::problems(&problems, is_wide))?;
    let is_found = problems.iter().any(|problem| problem.severity == "warning");
    Ok(if exit_code && is_found { ExitCode::from(FINDINGS) } else { ExitCode::SUCCESS })
}

/// Shows certificates, the first to expire first.
///
/// # Errors
/// Fails like [`routes`].
pub fn certs(args: CertsArgs) -> anyhow::Result<ExitCode> {
    let CertsArgs { read, expire_within, exit_code } = args;
    let format = read.output;
    let mut certificates: Vec<CertificateDocument> = Source::of(read)?.certificates()?;
    let is_due = |certificate: &CertificateDocument, days: i64| {
        // A server name without a usable certificate is due, too.
        certificate.leaf.as_ref().is_none_or(|leaf| leaf.days_left < days)
    };
    if let Some(days) = expire_within {
        certificates.retain(|certificate| is_due(certificate, days));
    }
    show(format, &certificates, |is_wide| render::certificates(&certificates, is_wide))?;
    let is_found = certificates.iter().any(|certificate| is_due(certificate, expire_within.unwrap_or(0)));
    Ok(if exit_code && is_found { ExitCode::from(FINDINGS) } else { ExitCode::SUCCESS })
}

/// Shows why a URL is served as it is.
///
/// # Errors
/// Fails like [`routes`], and if the URL cannot be read.
pub fn explain(args: ExplainArgs) -> anyhow::Result<ExitCode> {
    let ExplainArgs { url, read } = args;
    let format = read.output;
    let explanation: Explanation = Source::of(read)?.explain(&url)?;
    show(format, &explanation, |is_wide| render::explanation(&explanation, is_wide))?;
    Ok(ExitCode::SUCCESS)
}

/// Prints `document` as JSON or YAML, or the text that `table` makes of it.
fn show(format: Format, document: &impl Serialize, table: impl FnOnce(bool) -> String) -> anyhow::Result<()> {
    match format {
        Format::Table => print::text(&table(false)),
        Format::Wide => print::text(&table(true)),
        Format::Json => print::json(&serde_json::to_value(document)?),
        Format::Yaml => print::text(&serde_saphyr::to_string(document)?),
    }
}
