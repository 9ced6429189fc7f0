//! Findings about flags of ingress-nginx and values of its chart, by their names. `ingress_control::migration` has the
//! verdicts; this module reads no values.

#[cfg(test)]
mod tests;

use ingress_control::migration::{self, Kind, Surface};
use ingress_inspect::ProblemObject;
use serde_json::Value;

use super::{
    finding::{Finding, Verdict},
    objects::Workload,
    values,
};

/// Values whose content is judged elsewhere: settings and flags.
const MAPS: [&str; 4] = ["controller.config", "controller.extraArgs", "tcp", "udp"];

/// Returns the findings about the flags of a workload.
pub(super) fn of_workload<'f>(workload: &Workload, flags: impl Iterator<Item = &'f String>) -> Vec<Finding> {
    let object = ProblemObject {
        kind: workload.kind.clone(),
        namespace: workload.name.namespace.to_string(),
        name: workload.name.name.to_string(),
        file: None,
    };
    flags.filter_map(|flag| of_flag(&object, flag)).collect()
}

/// Returns the findings about values of the chart, and the flags among them.
pub(super) fn of_values(values: &Value) -> Vec<Finding> {
    let mut findings = Vec::new();
    descend(values, "", &mut findings);
    let arguments = values["controller"]["extraArgs"].as_object();
    let object = object_of("controller.extraArgs");
    findings.extend(arguments.into_iter().flatten().filter_map(|(flag, _)| of_flag(&object, flag)));
    findings
}

/// A flag decides how the process runs and not how it serves requests, so its differences are notes.
fn of_flag(object: &ProblemObject, flag: &str) -> Option<Finding> {
    let Some(verdict) = Surface::Flags.verdict(flag) else {
        let what = "is not a flag of ingress-nginx v1.15.1, and the process does not start with it";
        return Some(finding(Verdict::Fix, object, format!("--{flag}"), what.to_owned(), "remove it"));
    };
    let as_finding = match verdict.kind {
        Kind::Full => return None,
        Kind::NoEffect | Kind::Differs => Verdict::Note,
        Kind::Refused => Verdict::Differs,
    };
    Some(of_row(as_finding, object, format!("--{flag}"), verdict))
}

/// Adds a finding for each value that is set, at the place that the verdict is about.
fn descend(value: &Value, path: &str, findings: &mut Vec<Finding>) {
    let below = value.as_object().filter(|map| !map.is_empty());
    if MAPS.contains(&path) || (below.is_none() && is_unset(value)) {
        return;
    }
    let verdict = if path.is_empty() { None } else { Surface::Values.verdict(path) };
    match verdict {
        Some(verdict) if verdict.kind == Kind::Refused && is_off(value) => {}
        Some(verdict) if verdict.kind != Kind::Full => {
            let as_finding = if verdict.kind == Kind::Refused { Verdict::Fix } else { Verdict::Note };
            findings.push(of_row(as_finding, &object_of(path), last_of(path), verdict));
            let below = if verdict.kind == Kind::NoEffect { refused_below(value, path) } else { Vec::new() };
            let finding =
                |(path, verdict): (String, _)| of_row(Verdict::Fix, &object_of(&path), last_of(&path), verdict);
            findings.extend(below.into_iter().map(finding));
        }
        _ => match below {
            Some(map) => {
                for (name, value) in map {
                    let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                    descend(value, &path, findings);
                }
            }
            None if verdict.is_none() && !path.is_empty() => {
                let what = "is not a known value, and the chart of this controller refuses it";
                findings.push(finding(Verdict::Fix, &object_of(path), last_of(path), what.to_owned(), "remove it"));
            }
            None => {}
        },
    }
}

/// Returns the values that the chart refuses below one without effect, and that are on.
pub(crate) fn refused_below(value: &Value, path: &str) -> Vec<(String, migration::Verdict)> {
    let mut found = Vec::new();
    for (key, value) in value.as_object().into_iter().flatten() {
        let name = format!("{path}.{key}");
        match Surface::Values.verdict(&name) {
            Some(verdict) if verdict.kind == Kind::Refused => {
                if !is_off(value) && !is_unset(value) {
                    found.push((name, verdict));
                }
            }
            _ => found.extend(refused_below(value, &name)),
        }
    }
    found
}

/// Returns whether a value turns its name off.
pub(crate) fn is_off(value: &Value) -> bool {
    value == &Value::Bool(false) || value == &Value::String(String::new())
}

/// Returns whether a value is as good as absent.
pub(crate) fn is_unset(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

fn of_row(as_finding: Verdict, object: &ProblemObject, key: String, verdict: migration::Verdict) -> Finding {
    let migration::Verdict { kind, text, instead } = verdict;
    let what = match kind {
        Kind::NoEffect => format!("has no effect: {text}"),
        Kind::Refused => format!("is refused: {text}"),
        Kind::Full | Kind::Differs => text.to_owned(),
    };
    let fix = match (kind, instead) {
        (Kind::NoEffect | Kind::Refused, "") => "remove it",
        (_, instead) => instead,
    };
    finding(as_finding, object, key, what, fix)
}

fn finding(verdict: Verdict, object: &ProblemObject, key: String, what: String, fix: &str) -> Finding {
    Finding { verdict, object: object.clone(), key, what, fix: fix.to_owned() }
}

/// Returns the place of a value, in place of an object.
fn object_of(path: &str) -> ProblemObject {
    ProblemObject { kind: values::KIND.to_owned(), namespace: String::new(), name: path.to_owned(), file: None }
}

fn last_of(path: &str) -> String {
    path.rsplit('.').next().unwrap_or(path).to_owned()
}
