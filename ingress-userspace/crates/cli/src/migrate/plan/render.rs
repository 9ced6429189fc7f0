//! The plan for a terminal, and as a page of Markdown.

use std::fmt::Write as _;

use super::{Plan, Step, situation::Situation};
use crate::{
    check::{Counts, Finding},
    palette::{Palette, Tone},
    print::one_line,
};

/// Columns of paragraphs on a terminal.
const WIDTH: usize = 96;
/// Findings and Ingresses in a list; `check` shows all.
const MOST: usize = 20;

/// Formats the plan for a terminal. Lines of commands have no mark, so that they can be copied.
pub(super) fn text(plan: &Plan, palette: Palette) -> String {
    let mut text = summary(plan, palette);
    let facts = facts(&plan.situation);
    let width = facts.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    text += "\n";
    for (name, fact) in facts {
        let _written = writeln!(text, "{name:width$}  {}", one_line(&fact));
    }
    for (number, step) in plan.steps.iter().enumerate() {
        let Step { title, text: paragraphs, commands, back } = step;
        let _written = writeln!(text, "\n{}. {title}", number + 1);
        for line in paragraphs.iter().flat_map(|paragraph| wrapped(paragraph)) {
            let _written = writeln!(text, "   {line}");
        }
        text += &indented(commands);
        if !back.is_empty() {
            text += "   Back:\n";
            text += &indented(back);
        }
    }
    text
}

/// Formats the plan as a page.
pub(super) fn markdown(plan: &Plan) -> String {
    let mut text =
        format!("# Plan of the migration\n\n{}\n", summary(plan, Palette::NONE).replace('\n', "  \n").trim_end());
    text += "\n";
    for (name, fact) in facts(&plan.situation) {
        let _written = writeln!(text, "- **{name}**: {}", one_line(&fact).replace('<', "&lt;"));
    }
    for (number, step) in plan.steps.iter().enumerate() {
        let Step { title, text: paragraphs, commands, back } = step;
        let _written = writeln!(text, "\n## {}. {title}\n", number + 1);
        for paragraph in paragraphs {
            // Rows of findings are lists, which end at an empty line.
            let is_row = paragraph.starts_with("- ");
            text += if is_row || text.ends_with("\n\n") { "" } else { "\n" };
            text += &(one_line(paragraph).replace('<', "&lt;") + if is_row { "\n" } else { "\n\n" });
        }
        for (label, commands) in [("", commands), ("Back:\n\n", back)] {
            if !commands.is_empty() {
                text = text.trim_end().to_owned();
                let _written = write!(text, "\n\n{label}```sh\n{}\n```\n", commands.join("\n"));
            }
        }
    }
    text
}

/// Returns paragraphs with a row for each finding, as many as fit a list.
pub(super) fn findings(findings: &[Finding]) -> Vec<String> {
    let row = |finding: &Finding| {
        let Finding { verdict, object: _, key, what, fix } = finding;
        let fix = if fix.is_empty() { String::new() } else { format!("; {fix}") };
        one_line(&format!("- {} {} `{key}`: {what}{fix}", verdict.as_str(), finding.subject()))
    };
    let mut rows: Vec<_> = findings.iter().take(MOST).map(row).collect();
    if let Some(more) = findings.len().checked_sub(MOST).filter(|more| *more > 0) {
        rows.push(format!("- … and {more} more"));
    }
    rows
}

fn summary(plan: &Plan, palette: Palette) -> String {
    let Plan { counts: Counts { ready, differs, needs_fix, refused }, controller, ingresses, .. } = plan;
    let version = controller.as_ref().map(|version| format!(" · controller {}", one_line(version)));
    let version = version.unwrap_or_default();
    let all = ready + differs + needs_fix + refused;
    let mut text = format!("{all} {}{version}\n", if all == 1 { "Ingress" } else { "Ingresses" });
    for (word, names, tone) in [
        ("READY", &ingresses.ready, Tone::Plain),
        ("DIFFERS", &ingresses.differs, Tone::Warning),
        ("NEEDS FIX", &ingresses.needs_fix, Tone::Warning),
        ("REFUSED", &ingresses.refused, Tone::Error),
    ] {
        let shown = names.iter().take(MOST).map(|name| one_line(name)).collect::<Vec<_>>().join(" ");
        let more = names.len().checked_sub(MOST).filter(|more| *more > 0);
        let more = more.map(|more| format!(" … {more} more")).unwrap_or_default();
        let tone = if names.is_empty() { Tone::Plain } else { tone };
        let word = palette.paint(tone, &format!("{word:9} {:>4}", names.len()));
        text += format!("{word}  {shown}{more}").trim_end();
        text += "\n";
    }
    text
}

/// Returns what the plan is made for, by name.
fn facts(situation: &Situation) -> Vec<(&'static str, String)> {
    let Situation { is_known, kind, workload, host_network, host_ports, services, classes, webhooks, settings, .. } =
        situation;
    let release = match (&situation.release, &situation.other_release) {
        (Some(release), _) => format!(", release `{}` of Helm", release.name),
        (None, Some(release)) => format!(", release `{}` of Helm with another chart", release.name),
        (None, None) => String::new(),
    };
    let installed = match is_known {
        true => format!("{kind} {workload}{release}"),
        false => format!("not found; the commands have the names of its chart: {kind} {workload}"),
    };
    let mut clients = Vec::new();
    if *host_network {
        clients.push("ports of the nodes, by the host's network".to_owned());
    }
    if !host_ports.is_empty() {
        let ports = host_ports.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        clients.push(format!("`hostPort` {ports} of the nodes"));
    }
    clients.extend(services.iter().map(|service| format!("Service {} ({})", service.name, service.kind)));
    if clients.is_empty() {
        clients.push("unknown; no hostPort and no Service was found".to_owned());
    }
    let class = |class: &super::situation::Class| {
        let goes = if class.goes_with_release { ", which goes with the release of Helm" } else { "" };
        format!("{} ({}){goes}", class.name, class.controller)
    };
    let some = |list: Vec<String>, none: &str| if list.is_empty() { none.to_owned() } else { list.join("; ") };
    vec![
        ("ingress-nginx", installed),
        ("clients", clients.join("; ")),
        ("class", some(classes.iter().map(class).collect(), "no IngressClass was found")),
        ("webhook", some(webhooks.clone(), "none")),
        ("settings", settings.as_ref().map_or_else(|| "no ConfigMap".to_owned(), |name| format!("ConfigMap {name}"))),
    ]
}

fn indented(commands: &[String]) -> String {
    let lines = commands.iter().flat_map(|command| command.lines());
    // A here-document ends at a line without blanks, and is not indented.
    let mut is_document = false;
    let line = |line: &str| {
        let text = if is_document { format!("{line}\n") } else { format!("     {line}\n") };
        is_document = (is_document || line.ends_with("<<'END'")) && line != "END";
        text
    };
    lines.map(line).collect()
}

/// Returns the lines of a paragraph.
fn wrapped(paragraph: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in one_line(paragraph).split(' ') {
        let Some(line) = lines.last_mut() else { break };
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > WIDTH {
            lines.push(if paragraph.starts_with("- ") { format!("  {word}") } else { word.to_owned() });
        } else {
            *line += if line.is_empty() { "" } else { " " };
            *line += word;
        }
    }
    lines
}
