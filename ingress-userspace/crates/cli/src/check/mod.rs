//! `check`: judges what ingress-nginx serves, before this controller takes it over. It changes nothing.
//!
//! ```text
//! directory ─┐             ┌─ controller (flags, ConfigMaps) ─┐
//!            ├─> Objects ──┤                                  ├─ judge ─> Report ─> table, Markdown, JSON, SARIF
//! server ────┘             └─ translate ──> outcomes ─────────┘
//! ```
//!
//! With `--diff`, `diff` adds requests that ingress-nginx serves by another rule.
//!
//! An outcome of the translation is a verdict: what a process of this controller would report about an object, `check`
//! tells beforehand.

mod arguments;
#[cfg(test)]
mod charts;
mod controller;
mod diff;
mod directory;
mod effects;
mod facts;
mod finding;
mod fix;
mod judge;
mod names;
mod objects;
mod render;
mod sarif;
mod server;
pub mod snippet;
#[cfg(test)]
mod tests;
mod values;

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use ingress_control::KubernetesConfig;

pub use arguments::{CheckArgs, InstallationArgs, ReportFormat};
pub(crate) use controller::Controller;
pub use finding::{Counts, Finding, Report, Verdict};
use fix::Files;
pub(crate) use names::{is_off, is_unset, refused_below};
pub(crate) use objects::{Entrance, Objects, Release, Workload};
use values::Values;

use crate::{FINDINGS, palette::Palette, print};

/// Help text behind the options.
pub const HELP: &str = "\
The command reads Ingresses, IngressClasses, Services, the arguments of ingress-nginx, its ConfigMaps and its webhook, in a
cluster or in a directory. It needs no root, reads no Secret, and changes nothing.

Verdicts:
  note      requests are served alike; a key has no effect
  differs   requests are served, but something is different
  fix       a known change of the object makes it work
  refused   there is no replacement, and rules of the object answer 503

Examples:
  xdp-ingress check -A --deployment ingress-nginx/ingress-nginx-controller
  xdp-ingress check --from-dir ./manifests --values nginx-values.yaml -o wide
  xdp-ingress check --from-dir ./manifests --fail-on refused -o sarif
  xdp-ingress check -A --diff -o wide

Exit codes: 0 clean; 1 failure, with the reason on standard error; 2 wrong usage; 3 findings, see --fail-on.";

/// Runs `check`.
///
/// # Errors
/// Fails if the objects cannot be read, or standard output cannot be written.
pub fn check(args: CheckArgs) -> Result<ExitCode> {
    let (output, fail_on) = (args.output, args.fail_on);
    let palette = Palette::of_stdout(args.no_color);
    let report = report(args)?;
    print::text(&shown(&report, output, palette)?)?;
    Ok(if report.has(fail_on) { FINDINGS.into() } else { ExitCode::SUCCESS })
}

/// An installation of ingress-nginx: the objects that it serves, and its options.
pub(crate) struct Installation {
    pub(crate) objects: Objects,
    pub(crate) controller: Controller,
    pub(crate) is_directory: bool,
    /// Whether objects of other namespaces were not read.
    pub(crate) is_partial: bool,
}

impl Installation {
    /// Reads a directory or a cluster.
    ///
    /// # Errors
    /// Fails if it cannot be read, or has several installations of which none is named.
    pub(crate) fn read(args: &InstallationArgs) -> Result<Self> {
        let InstallationArgs { from_dir, kubeconfig, context, namespace, deployment, configmap, values, timeout } =
            args;
        let values = values.as_deref().map(Values::read).transpose()?;
        let mut objects = match from_dir {
            Some(directory) => directory::read(directory)?,
            None => {
                let (kubeconfig, context) = (kubeconfig.clone(), context.clone());
                let namespace = namespace.namespace.clone();
                let config = KubernetesConfig { kubeconfig, context, namespace, namespace_selector: None };
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                let runtime = runtime.context("cannot start a runtime")?;
                let read = server::read(&config, deployment.as_ref(), configmap.as_ref(), *timeout);
                runtime.block_on(read).context("cannot read the cluster")?
            }
        };
        if let Some(values) = &values {
            values.add_to(&mut objects);
        }
        let controller =
            Controller::of(&objects, deployment.as_ref(), values.as_ref())?.with_settings(configmap.as_ref());
        let is_partial = from_dir.is_none() && namespace.namespace.is_some();
        Ok(Self { objects, controller, is_directory: from_dir.is_some(), is_partial })
    }

    /// Judges the objects of a namespace, or all.
    pub(crate) fn judge(&self, namespace: Option<&str>) -> Report {
        let Self { objects, controller, is_directory, is_partial: _ } = self;
        let (mut conversions, _) = judge::conversions(objects, controller, *is_directory);
        if let Some(namespace) = namespace {
            conversions.retain(|name, _| *name.namespace == *namespace);
        }
        let extent = judge::Extent { is_directory: *is_directory, namespace, with_requests: false };
        judge::judge(objects, controller, &conversions, extent)
    }
}

/// Reads and judges what the options name.
fn report(args: CheckArgs) -> Result<Report> {
    let Installation { objects, controller, is_directory, .. } = Installation::read(&args.installation)?;
    let CheckArgs { installation: InstallationArgs { namespace, .. }, fix, diff, .. } = args;
    let (mut conversions, snippets) = judge::conversions(&objects, &controller, is_directory);
    if let Some(namespace) = &namespace.namespace {
        conversions.retain(|name, _| *name.namespace == **namespace);
    }
    if let Some(directory) = fix {
        Files::of(&conversions, &snippets)?.write(&directory)?;
    }
    let namespace = namespace.namespace.as_deref();
    let extent = judge::Extent { is_directory, namespace, with_requests: diff };
    Ok(judge::judge(&objects, &controller, &conversions, extent))
}

/// Returns the objects in `text`.
#[cfg(test)]
pub(crate) fn read_text(text: &str) -> Objects {
    let mut objects = Objects::default();
    directory::add(&std::path::Path::new("all.yaml").into(), text, &mut objects);
    objects
}

/// Returns the installation in `text`, as that of a directory.
///
/// # Panics
/// Panics if there are several.
#[cfg(test)]
pub(crate) fn installation_of(text: &str) -> Installation {
    let objects = read_text(text);
    let controller = Controller::of(&objects, None, None).expect("one installation");
    Installation { objects, controller, is_directory: true, is_partial: false }
}

fn shown(report: &Report, output: ReportFormat, palette: Palette) -> Result<String> {
    Ok(match output {
        ReportFormat::Table => render::table(report, false, palette),
        ReportFormat::Wide => render::table(report, true, palette),
        ReportFormat::Json => format!("{:#}\n", serde_json::to_value(report)?),
        ReportFormat::Yaml => serde_saphyr::to_string(report)?,
        ReportFormat::Markdown => render::markdown(report),
        ReportFormat::Sarif => format!("{:#}\n", sarif::sarif(report)),
    })
}
