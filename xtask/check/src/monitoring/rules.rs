//! Alerts, their runbooks and their tests.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use serde::Deserialize;

use super::RUNBOOKS;
use super::names::Metrics;
use xtask_tools::published;

/// Prefix of the names of all alerts.
const PREFIX: &str = "XdpIngress";
/// Page that lists the others.
const INDEX: &str = "README";

/// An alert, as far as it matters here.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Alert {
    pub(super) alert: String,
    expr: String,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct RuleFile {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    rules: Vec<Alert>,
}

/// A file of tests for promtool, as far as it matters here.
#[derive(Deserialize)]
struct TestFile {
    tests: Vec<Test>,
}

#[derive(Deserialize)]
struct Test {
    #[serde(default)]
    alert_rule_test: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    alertname: String,
    #[serde(default)]
    exp_alerts: Vec<Expected>,
}

#[derive(Deserialize)]
struct Expected {
    exp_labels: BTreeMap<String, String>,
}

/// Parses a file of rules that are all alerts.
///
/// # Errors
/// Fails if it is something else.
pub(super) fn alerts(text: &str) -> Result<Vec<Alert>> {
    let RuleFile { groups } = serde_saphyr::from_str(text).context("no groups of alerts")?;
    Ok(groups.into_iter().flat_map(|group| group.rules).collect())
}

impl Alert {
    /// Returns the name of its page.
    fn page(&self) -> &str {
        self.alert.strip_prefix(PREFIX).unwrap_or(&self.alert)
    }

    fn severity(&self) -> &str {
        self.labels.get("severity").map_or("", String::as_str)
    }
}

/// Returns the faults of the alerts themselves.
pub(super) fn objections(alerts: &[Alert], metrics: &Metrics) -> Vec<String> {
    let mut objections = Vec::new();
    for alert in alerts {
        let Alert { alert: name, expr, labels: _, annotations } = alert;
        let mut object = |text: String| objections.push(format!("alert `{name}`: {text}"));
        if !name.starts_with(PREFIX) {
            object(format!("its name does not begin with `{PREFIX}`"));
        }
        metrics.objections(expr).into_iter().for_each(&mut object);
        if !["critical", "warning"].contains(&alert.severity()) {
            object(format!("its severity is `{}`, not critical or warning", alert.severity()));
        }
        for key in ["summary", "description"] {
            if annotations.get(key).is_none_or(String::is_empty) {
                object(format!("it has no annotation `{key}`"));
            }
        }
        let url = format!("{}/{RUNBOOKS}/{}.html", published::HOME, alert.page());
        if annotations.get("runbook_url") != Some(&url) {
            object(format!("its annotation `runbook_url` is not `{url}`"));
        }
    }
    objections
}

/// Compares alerts with the pages of the runbooks.
pub(super) fn page_objections(alerts: &[Alert], pages: &BTreeMap<String, String>) -> Vec<String> {
    let mut objections = Vec::new();
    let wanted: BTreeSet<_> = alerts.iter().map(Alert::page).collect();
    let index = pages.get(INDEX).map_or("", String::as_str);
    for name in &wanted {
        match pages.get(*name) {
            None => objections.push(format!("alert `{PREFIX}{name}` has no page `docs/runbooks/{name}.md`")),
            Some(page) if !page.contains(&format!("`{PREFIX}{name}`")) => {
                objections.push(format!("`docs/runbooks/{name}.md` does not name its alert `{PREFIX}{name}`"));
            }
            Some(_) => {}
        }
        if !index.contains(&format!("({name}.md)")) {
            objections.push(format!("`docs/runbooks/{INDEX}.md` has no link to `{name}.md`"));
        }
    }
    let unwanted = pages.keys().filter(|page| *page != INDEX && !wanted.contains(page.as_str()));
    objections.extend(unwanted.map(|page| format!("`docs/runbooks/{page}.md` belongs to no alert")));
    objections
}

/// Compares alerts with their tests: each has a case in which it fires, by severity, and one in which it does not.
///
/// # Errors
/// Fails if a file has no tests.
pub(super) fn test_objections(alerts: &[Alert], files: &[String]) -> Result<Vec<String>> {
    let (mut fires, mut silent) = (BTreeSet::new(), BTreeSet::new());
    for file in files {
        let TestFile { tests } = serde_saphyr::from_str(file).context("no tests for promtool")?;
        for Case { alertname, exp_alerts } in tests.into_iter().flat_map(|test| test.alert_rule_test) {
            if exp_alerts.is_empty() {
                silent.insert(alertname.clone());
            }
            for Expected { exp_labels } in exp_alerts {
                let severity = exp_labels.get("severity").cloned().unwrap_or_default();
                fires.insert((alertname.clone(), severity));
            }
        }
    }
    let mut objections = Vec::new();
    for alert in alerts {
        if !fires.contains(&(alert.alert.clone(), alert.severity().to_owned())) {
            objections.push(format!("no test has `{}` fire with severity `{}`", alert.alert, alert.severity()));
        }
        if !silent.contains(&alert.alert) {
            objections.push(format!("no test has `{}` stay silent", alert.alert));
        }
    }
    let known: BTreeSet<_> = alerts.iter().map(|alert| &alert.alert).collect();
    let gone = silent.iter().chain(fires.iter().map(|(name, _)| name)).filter(|name| !known.contains(name));
    objections.extend(gone.map(|name| format!("a test names the alert `{name}`, which does not exist")));
    Ok(objections)
}

#[cfg(test)]
mod tests {
    use super::*;

    const METRICS: &str = "| `xdp_ingress_a` | gauge | `host` | |";

    fn rules(change: (&str, &str)) -> Vec<Alert> {
        let text = "groups:\n- name: g\n  rules:\n  - alert: XdpIngressBad\n    expr: xdp_ingress_a > 1\n    labels:\n      \
                    severity: warning\n    annotations:\n      summary: s\n      description: d\n      runbook_url: \
                    https://xdp-ingress.example.com/docs/runbooks/Bad.html\n";
        assert!(text.contains(change.0));
        alerts(&text.replacen(change.0, change.1, 1)).unwrap()
    }

    fn check(found: &[String], expect: &[&str]) {
        assert_eq!(found.len(), expect.len(), "{found:?}");
        assert!(found.iter().zip(expect).all(|(found, expect)| found.contains(expect)), "{found:?}");
    }

    #[test]
    fn an_alert_has_existing_metrics_a_severity_and_annotations() {
        for (change, expect) in [
            (("", ""), &[][..]),
            (("xdp_ingress_a", "xdp_ingress_b"), &["`xdp_ingress_b` does not exist"]),
            (("severity: warning", "severity: loud"), &["severity is `loud`"]),
            (("summary: s", "summary: ''"), &["no annotation `summary`"]),
            (("runbooks/Bad", "runbooks/Good"), &["`runbook_url` is not"]),
            (("XdpIngressBad", "Bad"), &["does not begin with"]),
        ] {
            check(&objections(&rules(change), &Metrics::of(METRICS)), expect);
        }
        assert!(alerts("groups:\n- name: g\n  rules:\n  - record: x\n    expr: y\n").is_err());
    }

    #[test]
    fn each_alert_has_a_page_and_each_page_an_alert() {
        let alerts = rules(("", ""));
        for (pages, expect) in [
            (&[("README", "[Bad](Bad.md)"), ("Bad", "Alert `XdpIngressBad`.")][..], &[][..]),
            (&[("README", "[Bad](Bad.md)")], &["has no page"]),
            (&[("README", ""), ("Bad", "Alert `XdpIngressBad`.")], &["no link to `Bad.md`"]),
            (&[("README", "(Bad.md)"), ("Bad", "Alert.")], &["does not name its alert"]),
            (&[("README", "(Bad.md)"), ("Bad", "`XdpIngressBad`"), ("Old", "")], &["belongs to no alert"]),
        ] {
            let pages = pages.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
            check(&page_objections(&alerts, &pages), expect);
        }
    }

    #[test]
    fn each_alert_fires_in_one_case_and_is_silent_in_another() {
        let alerts = rules(("", ""));
        let fires = |name: &str, severity: &str| {
            format!(
                "  - alert_rule_test:\n    - alertname: {name}\n      exp_alerts:\n      - exp_labels: {{severity: {severity}}}\n"
            )
        };
        let silent = "  - alert_rule_test:\n    - alertname: XdpIngressBad\n      exp_alerts: []\n";
        for (cases, expect) in [
            ([&*fires("XdpIngressBad", "warning"), silent], &[][..]),
            ([&*fires("XdpIngressBad", "warning"), ""], &["stay silent"]),
            ([&*fires("XdpIngressBad", "critical"), silent], &["fire with severity `warning`"]),
            ([&*(fires("XdpIngressBad", "warning") + &fires("Old", "warning")), silent], &["`Old`, which"]),
        ] {
            check(&test_objections(&alerts, &[format!("tests:\n{}", cases.concat())]).unwrap(), expect);
        }
    }
}
