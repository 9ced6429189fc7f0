//! Differences of annotations that the translation accepts without an outcome, because they are those of single requests.
//! Texts are those of the annotations' rows; a row that has become full is no finding.

use ingress_control::{
    change::ObjectName,
    migration::{Kind, Surface},
};
use ingress_inspect::ProblemObject;
use k8s_openapi::api::networking::v1::Ingress;

use super::finding::{Finding, Verdict};

/// Whether `value` of an annotation shows the difference of its row. The last argument has the Ingress' other annotations.
type Shows = fn(value: &str, other: &dyn Fn(&str) -> Option<String>) -> bool;

const EFFECTS: &[(&str, Verdict, Shows)] = &[
    ("client-body-buffer-size", Verdict::Note, |_, other| other("proxy-request-buffering").as_deref() != Some("on")),
    ("custom-http-errors", Verdict::Differs, |_, _| true),
    ("enable-cors", Verdict::Differs, |value, _| is_true(value)),
    ("mirror-target", Verdict::Differs, |_, _| true),
    ("proxy-next-upstream", Verdict::Differs, |value, _| value != "off"),
    ("proxy-next-upstream-tries", Verdict::Differs, |value, _| {
        value.parse().is_ok_and(|tries| !(1..=10).contains(&tries))
    }),
];

/// Returns a finding for each annotation of `ingress` with such a difference, unless `is_told` says that it has one.
pub(super) fn of_ingress(
    (name, ingress, object): (&ObjectName, &Ingress, ProblemObject),
    value: impl Fn(&str) -> Option<String>,
    is_told: impl Fn(&ObjectName, &str) -> bool,
) -> Vec<Finding> {
    let has_annotations = ingress.metadata.annotations.as_ref().is_some_and(|annotations| !annotations.is_empty());
    let effects = EFFECTS.iter().filter(|_| has_annotations);
    let finding = |(key, verdict, shows): &(&str, Verdict, Shows)| {
        let text = value(key).filter(|text| !text.is_empty())?;
        let row = Surface::Annotations.verdict(key).filter(|row| row.kind == Kind::Differs)?;
        (shows(&text, &value) && !is_told(name, key)).then(|| Finding {
            verdict: *verdict,
            object: object.clone(),
            key: (*key).to_owned(),
            what: row.text.to_owned(),
            fix: row.instead.to_owned(),
        })
    };
    effects.filter_map(finding).collect()
}

/// Reads a boolean as ingress-nginx does.
fn is_true(value: &str) -> bool {
    matches!(value, "1" | "t" | "T" | "true" | "TRUE" | "True")
}
