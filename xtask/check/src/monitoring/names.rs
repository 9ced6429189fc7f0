//! Names of metrics and labels: those that the page has, and those that a query uses. It does not parse PromQL; a real
//! Prometheus does that in the lane.

use std::collections::{BTreeMap, BTreeSet};

/// Prefixes of our metrics.
const PREFIXES: [&str; 2] = ["xdp_ingress_", "process_"];
/// Metrics of Prometheus itself.
const FOREIGN: [&str; 1] = ["up"];
/// Labels that Prometheus and Kubernetes add to every metric, and that of a histogram's buckets.
const TARGET_LABELS: [&str; 8] = ["cluster", "container", "instance", "job", "le", "namespace", "node", "pod"];

/// All metrics, each with its labels.
#[derive(Debug, Default)]
pub(super) struct Metrics(BTreeMap<String, BTreeSet<String>>);

impl Metrics {
    /// Reads the tables of the page: names in the first column, the type in the second, labels in the third.
    pub(super) fn of(page: &str) -> Self {
        let mut metrics = BTreeMap::new();
        for line in page.lines() {
            let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
            let [names, kind, labels, ..] = cells[..] else { continue };
            let labels: BTreeSet<_> = quoted(labels).map(str::to_owned).collect();
            for name in quoted(names).filter(|name| is_ours(name)) {
                let suffixes: &[_] = if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
                metrics.extend(suffixes.iter().map(|suffix| (format!("{name}{suffix}"), labels.clone())));
            }
        }
        Self(metrics)
    }

    /// Returns the faults of a query, by name.
    pub(super) fn objections(&self, query: &str) -> Vec<String> {
        let used = used(query);
        let mut objections = Vec::new();
        if used.is_empty() {
            objections.push("it names no metric".to_owned());
        }
        for Use { metric, labels } in used {
            if FOREIGN.contains(&metric) {
                continue;
            }
            let Some(known) = self.0.get(metric) else {
                objections.push(format!("the metric `{metric}` does not exist"));
                continue;
            };
            let unknown = labels.into_iter().filter(|label| !known.contains(*label) && !TARGET_LABELS.contains(label));
            objections.extend(unknown.map(|label| format!("`{metric}` has no label `{label}`")));
        }
        objections
    }
}

fn is_ours(name: &str) -> bool {
    PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// A metric in a query, with the labels of its selector.
#[derive(Debug, PartialEq, Eq)]
struct Use<'q> {
    metric: &'q str,
    labels: Vec<&'q str>,
}

/// Returns the metrics of a query: words with one of our prefixes, and words before a selector or a range.
fn used(query: &str) -> Vec<Use<'_>> {
    let mut uses = Vec::new();
    let mut rest = query;
    while let Some(start) = rest.find(|c: char| c.is_ascii_alphabetic() || matches!(c, '_' | '"')) {
        rest = &rest[start..];
        if let Some(text) = rest.strip_prefix('"') {
            rest = text.find('"').map_or("", |end| &text[end + 1..]);
            continue;
        }
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '_' | ':')).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        rest = after;
        let selector = after.strip_prefix('{').map(selector);
        if is_ours(word) || selector.is_some() || after.starts_with('[') {
            let (labels, length) = selector.unwrap_or_default();
            uses.push(Use { metric: word, labels });
            rest = &rest[length..];
        }
    }
    uses
}

/// Returns the labels of a selector after its `{`, and its length with both braces.
fn selector(text: &str) -> (Vec<&str>, usize) {
    let (mut labels, mut is_value, mut begin) = (Vec::new(), false, 0);
    for (index, c) in text.char_indices() {
        match c {
            '"' => is_value = !is_value,
            _ if is_value => {}
            '=' | '!' if begin < index => {
                labels.extend(Some(text[begin..index].trim()).filter(|label| !label.is_empty()));
                begin = text.len();
            }
            ',' => begin = index + 1,
            '}' => return (labels, index + 2),
            _ => {}
        }
    }
    (labels, text.len() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_may_use_metrics_and_labels_of_the_page() {
        let metrics = Metrics::of(
            "| metric | type | labels | |\n|---|---|---|---|\n| `xdp_ingress_a_total`, `xdp_ingress_b_total` | counter | \
             `host`, `class` (2xx) | text |\n| `xdp_ingress_h_seconds` | histogram | `host` | text |\n| `process_x` | \
             gauge | | text |\n| `nginx` | `xdp_ingress_gone` |\n",
        );
        for (query, expect) in [
            ("rate(xdp_ingress_a_total{class=\"5xx\", host!~\"a,b=\"}[5m]) / xdp_ingress_b_total", &[][..]),
            ("sum by (le, host) (rate(xdp_ingress_h_seconds_bucket[5m]))", &[]),
            ("process_x > 1 and up{job=~\".*\"} == 0", &[]),
            ("xdp_ingress_h_seconds", &["`xdp_ingress_h_seconds` does not exist"]),
            ("xdp_ingress_gone", &["`xdp_ingress_gone` does not exist"]),
            ("xdpingress_a{host=\"x\"}", &["`xdpingress_a` does not exist"]),
            ("rate(other[5m])", &["`other` does not exist"]),
            ("xdp_ingress_a_total{hosts=\"x\",instance=\"y\"}", &["has no label `hosts`"]),
            ("vector(1)", &["names no metric"]),
            ("label_replace(process_x, \"xdp_ingress_z\", \"a\", \"\", \"\")", &[]),
        ] {
            let found = metrics.objections(query);
            assert_eq!(found.len(), expect.len(), "{query}: {found:?}");
            assert!(found.iter().zip(expect).all(|(found, expect)| found.contains(expect)), "{query}: {found:?}");
        }
    }
}
