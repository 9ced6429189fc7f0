//! The report as a table for people, and as Markdown.

use std::fmt::Write as _;

use super::finding::{Compared, Counts, Finding, Report, Verdict};
use crate::{
    palette::{Palette, Tone},
    table::{Cell, TableColumn, coloured},
};

/// Characters of a text in the narrow table.
const SHORT: usize = 56;
const TITLES: [&str; 5] = ["VERDICT", "OBJECT", "KEY", "WHAT CHANGES", "FIX"];

/// Formats the report as a table. A narrow one shortens texts.
pub(super) fn table(report: &Report, is_wide: bool, palette: Palette) -> String {
    let mut text = summary(report, palette);
    if report.findings.is_empty() {
        return text;
    }
    let shown = |text: &str| if is_wide { one_line(text) } else { shorten(&one_line(text)) };
    let rows: Vec<_> = report
        .findings
        .iter()
        .map(|finding| {
            let Finding { verdict, object: _, key, what, fix } = finding;
            let verdict = Cell::new(verdict.as_str(), tone(*verdict));
            [verdict, finding.subject().into(), shown(key).into(), shown(what).into(), shown(fix).into()]
        })
        .collect();
    text += "\n";
    text += &coloured(TITLES.map(TableColumn::Words), &rows, palette);
    text
}

/// Formats the report as Markdown.
pub(super) fn markdown(report: &Report) -> String {
    let Report { counts: Counts { ready, differs, needs_fix, refused }, .. } = report;
    let mut text = format!("# Migration check\n\n{}\n\n", subject(report));
    text += "| ready | differs | needs fix | refused |\n|--:|--:|--:|--:|\n";
    let _written = writeln!(text, "| {ready} | {differs} | {needs_fix} | {refused} |");
    if !report.findings.is_empty() {
        text += "\n| verdict | object | key | what changes | fix |\n|---|---|---|---|---|\n";
    }
    for finding in &report.findings {
        let cells = [finding.verdict.as_str(), &finding.subject(), &finding.key, &finding.what, &finding.fix];
        let cells = cells.map(|cell| one_line(cell).replace('|', "\\|").replace('<', "&lt;"));
        let _written = writeln!(text, "| {} |", cells.join(" | "));
    }
    text
}

fn summary(report: &Report, palette: Palette) -> String {
    let Report { counts: Counts { ready, differs, needs_fix, refused }, .. } = report;
    let coloured = |count: usize, text: String, tone| if count == 0 { text } else { palette.paint(tone, &text) };
    format!(
        "{}\nREADY {ready}   {}   {}   {}\n",
        subject(report),
        coloured(*differs, format!("DIFFERS {differs}"), Tone::Warning),
        coloured(*needs_fix, format!("NEEDS FIX {needs_fix}"), Tone::Warning),
        coloured(*refused, format!("REFUSED {refused}"), Tone::Error),
    )
}

/// Returns the line about what has been checked.
fn subject(report: &Report) -> String {
    let Report { ingresses, others, classes, controller, settings, flags, compared, .. } = report;
    let count = |count: usize, one: &str, several: &str| format!("{count} {}", if count == 1 { one } else { several });
    let mut parts =
        vec![format!("{}, {}", count(*ingresses, "Ingress", "Ingresses"), count(*classes, "class", "classes"))];
    if *others > 0 {
        parts.push(format!("{} of other controllers", count(*others, "Ingress", "Ingresses")));
    }
    parts.extend(controller.as_ref().map(|version| format!("controller {version}")));
    parts.push(count(*settings, "setting", "settings"));
    parts.push(count(*flags, "flag", "flags"));
    parts.extend(compared.map(|Compared { hosts, requests }| {
        format!("{} compared on {}", count(requests, "request", "requests"), count(hosts, "host", "hosts"))
    }));
    parts.join(" · ")
}

fn tone(verdict: Verdict) -> Tone {
    match verdict {
        Verdict::Note => Tone::Plain,
        Verdict::Differs | Verdict::Fix => Tone::Warning,
        Verdict::Refused => Tone::Error,
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().map(|word| word.replace(char::is_control, "")).collect::<Vec<_>>().join(" ")
}

fn shorten(text: &str) -> String {
    match text.char_indices().nth(SHORT) {
        Some((end, _)) => format!("{}…", text[..end].trim_end()),
        None => text.to_owned(),
    }
}
