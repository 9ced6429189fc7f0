//! `migrate plan`: the steps from ingress-nginx to this controller, for one cluster or folder. It runs none of them.

mod leave;
mod render;
mod service;
mod shell;
mod situation;
mod steps;
mod target;
#[cfg(test)]
mod tests;

use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;

use super::arguments::{PlanArgs, PlanFormat};
use crate::{
    FINDINGS,
    check::{Counts, Finding, Installation, Report, Verdict},
    palette::Palette,
    print,
};
use situation::{Ingresses, Situation};
use target::Target;

/// Steps in their order, and what they are made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Plan {
    counts: Counts,
    /// Version of ingress-nginx: the tag of its image.
    controller: Option<String>,
    ingresses: Ingresses,
    situation: Situation,
    /// Findings of `check`, the most serious first, without notes.
    findings: Vec<Finding>,
    steps: Vec<Step>,
}

/// One step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
struct Step {
    title: String,
    /// Paragraphs.
    text: Vec<String>,
    /// Commands for a shell; each may have several lines.
    commands: Vec<String>,
    /// Commands that undo the step; none if it changes nothing.
    back: Vec<String>,
}

/// Runs `migrate plan`.
///
/// # Errors
/// Fails if the objects cannot be read, or standard output cannot be written.
pub fn plan(args: &PlanArgs) -> Result<ExitCode> {
    let PlanArgs { installation, controller_namespace: _, chart: _, output, fail_on, no_color } = args;
    let read = Installation::read(installation)?;
    let report = read.judge(installation.namespace.namespace.as_deref());
    let has_findings = report.has(*fail_on);
    let plan = Plan::of(&read, report, args)?;
    print::text(&shown(&plan, *output, Palette::of_stdout(*no_color))?)?;
    Ok(if has_findings { FINDINGS.into() } else { ExitCode::SUCCESS })
}

fn shown(plan: &Plan, output: PlanFormat, palette: Palette) -> Result<String> {
    Ok(match output {
        PlanFormat::Text => render::text(plan, palette),
        PlanFormat::Markdown => render::markdown(plan),
        PlanFormat::Json => format!("{:#}\n", serde_json::to_value(plan)?),
        PlanFormat::Yaml => serde_saphyr::to_string(plan)?,
    })
}

// === impl Plan ===

impl Plan {
    /// Makes the plan for an installation that `check` has judged.
    ///
    /// # Errors
    /// Fails if the values of this controller have no form in YAML.
    fn of(installation: &Installation, report: Report, args: &PlanArgs) -> Result<Self> {
        let situation = Situation::of(installation);
        let ingresses = Ingresses::of(installation, &report, args.installation.namespace.namespace.as_deref());
        let Report { controller, counts, mut findings, .. } = report;
        findings.retain(|finding| finding.verdict > Verdict::Note);
        let target = Target::of(args);
        let steps = steps::steps(installation, &situation, &findings, &target)?;
        Ok(Self { counts, controller, ingresses, situation, findings, steps })
    }
}
