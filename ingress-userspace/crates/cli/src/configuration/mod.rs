//! The commands about a configuration: `routes`, `problems`, `certs` and `explain`. They change nothing.
//!
//! `arguments` describes their options, `source` reads the API of a process on this node, a directory of manifests or a
//! cluster, `render` makes tables, and `node_client` asks a process. Others can implement [`Configuration`].

mod arguments;
mod node_client;
mod render;
mod source;

use std::process::ExitCode;

use anyhow::Result;
use ingress_inspect::{CertificateDocument, Explanation, ProblemDocument, RouteDocument, RouteFilter};

pub use arguments::{
    CertificateSelection, CertsArgs, ExplainArgs, NamespaceArgs, ProblemSelection, ProblemsArgs, ReadArgs,
    RouteSelection, RoutesArgs, UrlArgs,
};
pub use node_client::NodeClient;
#[cfg(feature = "plugin")]
pub(crate) use node_client::{PAGE, target};
use source::Source;
#[cfg(feature = "plugin")]
pub(crate) use source::parameters;

use crate::{
    FINDINGS,
    print::{self, OutputArgs},
};

/// A configuration that can be asked about.
pub trait Configuration {
    /// Returns the selected rules in order of precedence.
    ///
    /// # Errors
    /// Fails if the configuration cannot be read.
    fn routes(&self, filter: &RouteFilter) -> Result<Vec<RouteDocument>>;
    /// Returns all problems of objects.
    ///
    /// # Errors
    /// Fails if the configuration cannot be read.
    fn problems(&self) -> Result<Vec<ProblemDocument>>;
    /// Returns all certificates, the first to expire first.
    ///
    /// # Errors
    /// Fails if the configuration cannot be read.
    fn certificates(&self) -> Result<Vec<CertificateDocument>>;
    /// Returns why a URL is served as it is.
    ///
    /// # Errors
    /// Fails if the configuration or the URL cannot be read.
    fn explain(&self, url: &str) -> Result<Explanation>;
}

/// Runs `routes`.
///
/// # Errors
/// Fails if the configuration cannot be read, or standard output cannot be written.
pub fn routes(args: RoutesArgs) -> Result<ExitCode> {
    let RoutesArgs { selection, read } = args;
    let output = read.output;
    show_routes(&Source::of(read)?, selection, &output)
}

/// Runs `problems`.
///
/// # Errors
/// Fails like [`routes`].
pub fn problems(args: ProblemsArgs) -> Result<ExitCode> {
    let ProblemsArgs { selection, read } = args;
    let output = read.output;
    show_problems(&Source::of(read)?, &selection, &output)
}

/// Runs `certs`.
///
/// # Errors
/// Fails like [`routes`].
pub fn certs(args: CertsArgs) -> Result<ExitCode> {
    let CertsArgs { selection, read } = args;
    let output = read.output;
    show_certificates(&Source::of(read)?, &selection, &output)
}

/// Runs `explain`.
///
/// # Errors
/// Fails like [`routes`], and if the URL cannot be read.
pub fn explain(args: ExplainArgs) -> Result<ExitCode> {
    let ExplainArgs { url, read } = args;
    let output = read.output;
    show_explanation(&Source::of(read)?, &url, &output)
}

/// Shows rules in order of precedence.
///
/// # Errors
/// Fails if the configuration cannot be read, or standard output cannot be written.
pub fn show_routes(
    configuration: &impl Configuration,
    selection: RouteSelection,
    output: &OutputArgs,
) -> Result<ExitCode> {
    let RouteSelection { host, ingress, namespace } = selection;
    let filter = RouteFilter { host, namespace: namespace.namespace, ingress };
    let read = || configuration.routes(&filter);
    print::show(output, read, |routes, style| style.render(routes, || render::routes(routes, style)))?;
    Ok(ExitCode::SUCCESS)
}

/// Shows problems of objects.
///
/// # Errors
/// Fails like [`show_routes`].
pub fn show_problems(
    configuration: &impl Configuration,
    selection: &ProblemSelection,
    output: &OutputArgs,
) -> Result<ExitCode> {
    let ProblemSelection { warnings, exit_code, namespace: NamespaceArgs { namespace, .. } } = selection;
    let is_warning = |problem: &ProblemDocument| problem.severity == "warning";
    let read = || {
        let mut problems = configuration.problems()?;
        problems.retain(|problem| {
            namespace.as_deref().is_none_or(|namespace| problem.object.namespace == namespace)
                && (!warnings || is_warning(problem))
        });
        Ok(problems)
    };
    let problems =
        print::show(output, read, |problems, style| style.render(problems, || render::problems(problems, style)))?;
    Ok(findings(*exit_code && problems.iter().any(is_warning)))
}

/// Shows certificates, the first to expire first.
///
/// # Errors
/// Fails like [`show_routes`].
pub fn show_certificates(
    configuration: &impl Configuration,
    selection: &CertificateSelection,
    output: &OutputArgs,
) -> Result<ExitCode> {
    let CertificateSelection { expire_within, exit_code } = selection;
    let is_due = |certificate: &CertificateDocument, days: i64| {
        // A server name without a usable certificate is due, too.
        certificate.leaf.as_ref().is_none_or(|leaf| leaf.days_left < days)
    };
    let read = || {
        let mut certificates = configuration.certificates()?;
        if let Some(days) = expire_within {
            certificates.retain(|certificate| is_due(certificate, *days));
        }
        Ok(certificates)
    };
    let certificates = print::show(output, read, |certificates, style| {
        style.render(certificates, || render::certificates(certificates, style))
    })?;
    let is_found = certificates.iter().any(|certificate| is_due(certificate, expire_within.unwrap_or(0)));
    Ok(findings(*exit_code && is_found))
}

/// Shows why a URL is served as it is.
///
/// # Errors
/// Fails like [`show_routes`], and if the URL cannot be read.
pub fn show_explanation(configuration: &impl Configuration, url: &UrlArgs, output: &OutputArgs) -> Result<ExitCode> {
    let read = || configuration.explain(&url.url);
    print::show(output, read, |explanation, style| {
        style.render(explanation, || render::explanation(explanation, style.is_wide()))
    })?;
    Ok(ExitCode::SUCCESS)
}

fn findings(is_found: bool) -> ExitCode {
    if is_found { FINDINGS.into() } else { ExitCode::SUCCESS }
}
