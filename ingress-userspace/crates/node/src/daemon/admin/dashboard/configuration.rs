//! Problems of objects, and the last changes of the configuration with the time that each took.

use std::{borrow::Cow, path::Path, sync::Arc};

use ingress_control::Outcome;
use ingress_inspect::{ProblemObject, timestamp};
use maud::{Markup, html};

use super::{
    PREFIX, Page, PageError,
    format::{count, host_path, marked, milliseconds, time},
    table::{self, Rows, number, table, text},
};
use crate::daemon::{
    admin::{AdminSource, query::Query, selection::ProblemSelection},
    change_log::{ChangeRecord, ChangedNames},
};

/// Number of changed names in a cell.
const NAMES: usize = 3;

pub(super) fn page(source: &dyn AdminSource, query: &Query) -> Result<Page, PageError> {
    let selection = ProblemSelection::of(query)?;
    let rows = Rows::of(query)?;
    let problems = source.problems();
    let total = problems.iter().filter(|(outcome, _)| selection.takes(outcome)).count();
    let shown: Vec<_> = rows.cut(problems.iter().filter(|(outcome, _)| selection.takes(outcome))).collect();
    let parameter = |name: &'static str| (name, Cow::from(query.text(name).unwrap_or_default()));
    let parameters = ["namespace", "reason", "severity"].map(parameter);
    let main = html! {
        h1 { "Configuration" }
        section {
            h2 { "Problems" }
            (filter(query))
            (problem_table("Problems of objects, with their remedies", &shown))
            (rows.pager(total, "configuration", &parameters))
        }
        section {
            h2 { "Changes" }
            (change_table(&source.changes()))
            p.note {
                "The time runs from the receipt of the first event of a change until the changed configuration is "
                "served. The last 100 changes are kept."
            }
        }
    };
    Ok(Page::new("Configuration", main))
}

fn filter(query: &Query) -> Markup {
    let severity = query.text("severity").unwrap_or_default();
    html! {
        form.filter action={ (PREFIX) "/configuration" } method="get" role="search" {
            @for (name, label) in [("namespace", "Namespace"), ("reason", "Reason")] {
                label for=(name) { (label) }
                input id=(name) name=(name) type="text" value=(query.text(name).unwrap_or_default())
                    autocomplete="off" spellcheck="false";
            }
            label for="severity" { "Severity" }
            select #severity name="severity" {
                @for (value, label) in [("", "all"), ("warning", "warning"), ("note", "note")] {
                    option value=(value) selected[severity == value] { (label) }
                }
            }
            button { "Filter" }
        }
    }
}

/// Returns the table of problems.
pub(super) fn problem_table(caption: &str, problems: &[(&Arc<Outcome>, &i64)]) -> Markup {
    let columns = [text("Object"), text("Severity"), text("Reason"), text("Problem and remedy"), text("Since")];
    let rows = html! {
        @for (outcome, since) in problems {
            @let object = ProblemObject::from(&outcome.object);
            tr data-key={ (object) " " (outcome.reason.as_str()) " " (outcome.message) } {
                th scope="row" { (object_name(&object)) }
                td { @let severity = outcome.severity().to_string(); span class={ "severity " (severity) } { (severity) } }
                td { code.word { (outcome.reason.as_str()) } }
                td { (problem_text(&outcome.message)) }
                td { (time(&timestamp(**since))) }
            }
        }
        @if problems.is_empty() { (table::empty(&columns, "No problem is known.")) }
    };
    table("problems", caption, &columns, &rows)
}

/// Returns kind and name of an object; the file that defines it, if any, is shown by its name, with its path as a title.
fn object_name(ProblemObject { kind, namespace, name, file }: &ProblemObject) -> Markup {
    let file_name = |file: &String| Path::new(file).file_name().map(|name| name.to_string_lossy().into_owned());
    html! {
        (kind)
        @if !name.is_empty() { " " @if !namespace.is_empty() { (namespace) "/" } (name) }
        @if let Some(file) = file { " " small.note title=(file) { (file_name(file).unwrap_or_default()) } }
    }
}

/// Returns the problem and its remedy, which follows the first semicolon, as sentences.
fn problem_text(message: &str) -> Markup {
    match message.split_once("; ") {
        Some((problem, remedy)) => html! { p { (marked(problem)) } p.remedy { (marked(remedy)) } },
        None => html! { p { (marked(message)) } },
    }
}

fn change_table(changes: &[ChangeRecord]) -> Markup {
    let columns = [
        number("Generation"),
        text("Time"),
        number("Milliseconds"),
        text("Hosts"),
        text("Upstreams"),
        text("Certificates"),
        number("New problems"),
        number("Resolved problems"),
    ];
    let rows = html! {
        @for change in changes {
            @let ChangeRecord { generation, at, took, hosts, upstreams, certificates, new_problems, resolved_problems } = change;
            tr data-key=(generation) {
                th.n scope="row" { (count(*generation)) }
                td { (time(&timestamp(*at))) }
                td.n { (milliseconds(*took)) }
                td { (names(hosts, true)) }
                td { (names(upstreams, false)) }
                td { (names(certificates, false)) }
                td.n { (count(*new_problems as u64)) }
                td.n { (count(*resolved_problems as u64)) }
            }
        }
        @if changes.is_empty() { (table::empty(&columns, "No configuration has been read yet.")) }
    };
    table("changes", "Changes of the configuration, newest first", &columns, &rows)
}

/// Returns the first changed names, and the number of further ones.
fn names(ChangedNames { count: number, names }: &ChangedNames, are_hosts: bool) -> Markup {
    let shown = names.len().min(NAMES);
    html! {
        @for (index, name) in names.iter().take(NAMES).enumerate() {
            @if index > 0 { ", " }
            @if are_hosts { a href=(host_path(name)) { (name) } } @else { (name) }
        }
        @if *number > shown { " and " (count((number - shown) as u64)) " more" }
    }
}
