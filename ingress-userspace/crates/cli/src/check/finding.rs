//! The report of `check`: findings with their verdicts, and the counts over all Ingresses. It judges nothing.

use clap::ValueEnum;
use ingress_inspect::ProblemObject;
use serde::Serialize;

/// How an object would behave here, compared with ingress-nginx; ordered by seriousness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Requests are served alike; something can be removed.
    Note,
    /// Requests are served, but something is different.
    Differs,
    /// A known change of the object makes it work; without it, something is missing.
    Fix,
    /// There is no replacement, and rules of the object answer 503.
    Refused,
}

/// A remark about a key of an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub verdict: Verdict,
    pub object: ProblemObject,
    /// Annotation without its prefix, setting, flag or field; or the name of the reason.
    pub key: String,
    /// Change in behaviour if the object is served here.
    pub what: String,
    /// The remedy; empty if there is none.
    pub fix: String,
}

/// Everything that `check` has found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Ingresses of the checked classes, and those of other controllers, which are not checked.
    pub ingresses: usize,
    pub others: usize,
    pub classes: usize,
    /// Version of the installed ingress-nginx: the tag of its image.
    pub controller: Option<String>,
    pub settings: usize,
    pub flags: usize,
    pub counts: Counts,
    /// Extent of the comparison by `--diff`; `None` without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compared: Option<Compared>,
    /// The most serious first, then by object and key.
    pub findings: Vec<Finding>,
}

/// Numbers of hosts and requests that were compared with a model of ingress-nginx.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Compared {
    pub hosts: usize,
    pub requests: usize,
}

/// Ingresses by their most serious finding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// No finding, or only notes.
    pub ready: usize,
    pub differs: usize,
    pub needs_fix: usize,
    pub refused: usize,
}

// === impl Verdict ===

impl Verdict {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Differs => "differs",
            Self::Fix => "fix",
            Self::Refused => "refused",
        }
    }
}

// === impl Finding ===

impl Finding {
    /// Returns the name of the object, without the kind where that is an Ingress.
    #[must_use]
    pub fn subject(&self) -> String {
        let ProblemObject { kind, namespace, name, file } = &self.object;
        let name = match (namespace.as_str(), name.as_str()) {
            ("", "") => file.clone().unwrap_or_default(),
            ("", name) => name.to_owned(),
            (namespace, name) => format!("{namespace}/{name}"),
        };
        if kind == "Ingress" { name } else { format!("{kind} {name}") }
    }
}

// === impl Report ===

impl Report {
    /// Returns whether a finding is at least as serious as `verdict`.
    #[must_use]
    pub fn has(&self, verdict: Verdict) -> bool {
        self.findings.iter().any(|finding| finding.verdict >= verdict)
    }
}
