//! The report as SARIF 2.1.0 (<https://docs.oasis-open.org/sarif/sarif/v2.1.0/>), which code scanning reads.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::finding::{Finding, Report, Verdict};

const SCHEMA: &str = "https://json.schemastore.org/sarif-2.1.0.json";

/// Returns the report as a log with one run. Each key is a rule.
pub(super) fn sarif(report: &Report) -> Value {
    let keys: BTreeSet<&str> = report.findings.iter().map(|finding| finding.key.as_str()).collect();
    let rules: Vec<_> = keys.iter().map(|key| json!({ "id": key })).collect();
    let results: Vec<_> = report.findings.iter().map(result).collect();
    let driver = json!({ "name": "xdp-ingress check", "version": env!("CARGO_PKG_VERSION"), "rules": rules });
    json!({ "$schema": SCHEMA, "version": "2.1.0", "runs": [{ "tool": { "driver": driver }, "results": results }] })
}

fn result(finding: &Finding) -> Value {
    let Finding { verdict, object, key, what, fix } = finding;
    let level = match verdict {
        Verdict::Note => "note",
        Verdict::Differs => "warning",
        Verdict::Fix | Verdict::Refused => "error",
    };
    let text = if fix.is_empty() { what.clone() } else { format!("{what}; {fix}") };
    let logical = json!([{ "fullyQualifiedName": finding.subject(), "kind": "resource" }]);
    let location = match &object.file {
        Some(file) => json!({
            "physicalLocation": { "artifactLocation": { "uri": uri(file) } }, "logicalLocations": logical,
        }),
        None => json!({ "logicalLocations": logical }),
    };
    json!({
        "ruleId": key,
        "level": level,
        "message": { "text": text },
        "locations": [location],
        "properties": { "verdict": verdict.as_str() },
    })
}

/// Returns a relative path as a reference of a URI (RFC 3986, 4.1).
fn uri(path: &str) -> String {
    let mut uri = String::new();
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            uri.push(char::from(byte));
        } else {
            uri += &format!("%{byte:02X}");
        }
    }
    uri
}
