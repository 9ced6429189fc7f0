//! Histograms of response times in the text format of Prometheus, and their percentiles. Pure.

use std::collections::BTreeMap;

/// Histogram of xdp-ingress.
pub(super) const OWN: &str = "xdp_ingress_host_request_duration_seconds";
/// Histogram of ingress-nginx.
pub(super) const NGINX: &str = "nginx_ingress_controller_request_duration_seconds";
/// Least number of responses to judge: among fewer, the slowest one is the 99th percentile.
const LEAST: u64 = 100;
/// The part of the responses that are at most as slow.
const PART: f64 = 0.99;

/// Number of responses by the upper bound of their time in seconds, each with those of all smaller bounds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Histogram(Vec<(f64, u64)>);

/// Histograms by their labels other than the bound.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Series(BTreeMap<String, Histogram>);

// === impl Series ===

impl Series {
    /// Parses the histogram `name` of the text format of Prometheus. Returns `None` without it.
    pub(super) fn parse(text: &str, name: &str) -> Option<Self> {
        let mut found = text.lines().any(|line| is_type(line, name)).then(Self::default);
        for line in text.lines() {
            let Some(labels) = line.strip_prefix(name).and_then(|rest| rest.strip_prefix("_bucket{")) else {
                continue;
            };
            let Some(Bucket { labels, bound, count }) = Bucket::parse(labels) else { continue };
            found.get_or_insert_default().0.entry(labels).or_default().add(bound, count);
        }
        found
    }

    pub(super) fn sum(&self) -> Histogram {
        Histogram::sum(self.0.values())
    }

    /// Returns the responses since `then`, of all labels together. Series that are gone count for nothing, and new ones
    /// as a whole.
    pub(super) fn since(&self, then: &Self) -> Histogram {
        let none = Histogram::default();
        let parts: Vec<_> = self.0.iter().map(|(labels, now)| now.since(then.0.get(labels).unwrap_or(&none))).collect();
        Histogram::sum(parts.iter())
    }
}

// === impl Histogram ===

impl Histogram {
    fn add(&mut self, bound: f64, count: u64) {
        match self.0.binary_search_by(|(known, _)| known.total_cmp(&bound)) {
            Ok(at) => self.0[at].1 += count,
            Err(at) => self.0.insert(at, (bound, count)),
        }
    }

    pub(super) fn sum<'h>(parts: impl Iterator<Item = &'h Self>) -> Self {
        let mut sum = Self::default();
        for &(bound, count) in parts.flat_map(|part| &part.0) {
            sum.add(bound, count);
        }
        sum
    }

    fn count(&self) -> u64 {
        self.0.last().map_or(0, |(_, count)| *count)
    }

    /// Returns the responses since `then`; all of them if the process has begun again.
    fn since(&self, then: &Self) -> Self {
        let before = |bound: f64| then.0.iter().find(|(known, _)| *known == bound).map_or(0, |(_, count)| *count);
        if self.0.iter().any(|(bound, count)| *count < before(*bound)) {
            return self.clone();
        }
        Self(self.0.iter().map(|(bound, count)| (*bound, count - before(*bound))).collect())
    }

    /// Returns the 99th percentile in seconds, as Prometheus estimates it, or infinity beyond the last bound; `None` for
    /// too few responses.
    pub(super) fn percentile(&self) -> Option<f64> {
        let all = self.count();
        if all < LEAST {
            return None;
        }
        let rank = PART * all as f64;
        let (mut below, mut start) = (0, 0.0);
        for &(bound, count) in &self.0 {
            if count as f64 >= rank {
                let part = (rank - below as f64) / (count.saturating_sub(below).max(1)) as f64;
                return Some(if bound.is_finite() { start + (bound - start) * part } else { bound });
            }
            (below, start) = (count, bound);
        }
        None
    }
}

/// Returns whether a line declares the histogram: without responses, it has no series.
fn is_type(line: &str, name: &str) -> bool {
    line.strip_prefix("# TYPE ").is_some_and(|rest| rest.split(' ').next() == Some(name))
}

/// A line of a histogram.
struct Bucket {
    /// All but the bound, as text.
    labels: String,
    bound: f64,
    count: u64,
}

// === impl Bucket ===

impl Bucket {
    /// Parses labels and value.
    fn parse(line: &str) -> Option<Self> {
        // The bound is no text of a client, and other labels have their quotation marks escaped.
        let (before, bound) = line.rsplit_once("le=\"")?;
        let (bound, rest) = bound.split_once('"')?;
        let (after, value) = rest.rsplit_once('}')?;
        let value = value.split_whitespace().next()?;
        let count = value.parse::<f64>().ok().filter(|count| count.is_finite() && *count >= 0.0)?;
        let bound: f64 = bound.parse().ok().filter(|bound: &f64| !bound.is_nan())?;
        Some(Self { labels: format!("{before}{after}"), bound, count: count as u64 })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns the metrics with `fast` responses up to 5 ms, and `slow` ones up to 100 ms.
    pub(in super::super) fn metrics(name: &str, fast: u64, slow: u64) -> Series {
        let all = fast + slow;
        let text = format!(
            "# TYPE {name} histogram\n{name}_bucket{{host=\"a le=\\\"1\\\"\",le=\"0.005\"}} {fast}\n\
             {name}_bucket{{host=\"a le=\\\"1\\\"\",le=\"0.1\"}} {all}\n\
             {name}_bucket{{host=\"a le=\\\"1\\\"\",le=\"+Inf\"}} {all}\n\
             {name}_sum{{host=\"a\"}} 1.5\n{name}_bucket{{host=\"b\",le=\"0.005\"}} 0\n{name}_bucket{{torn\n"
        );
        Series::parse(&text, name).expect("a histogram")
    }

    #[test]
    fn a_process_that_began_again_counts_from_its_start() {
        let (now, then) = (metrics(OWN, 10, 5), metrics(OWN, 1_000, 0));
        assert_eq!(now.since(&then), now.sum());
        assert_eq!(metrics(OWN, 1_010, 5).since(&then).count(), 15);
    }

    #[test]
    fn each_series_begins_again_for_itself() {
        let parse = |counts: &[(&str, u64)]| {
            let lines = counts.iter().map(|(host, count)| {
                format!(
                    "{OWN}_bucket{{host=\"{host}\",le=\"0.1\"}} {count}\n\
                     {OWN}_bucket{{host=\"{host}\",le=\"+Inf\"}} {count}\n"
                )
            });
            Series::parse(&lines.collect::<String>(), OWN).expect("a histogram")
        };
        let then = parse(&[("a", 100), ("gone", 5_000), ("again", 300)]);
        let now = parse(&[("a", 110), ("again", 20), ("new", 3)]);
        assert_eq!(now.since(&then).count(), 10 + 20 + 3);
    }

    #[test]
    fn times_beyond_the_largest_bucket_are_infinite() {
        let text = format!("{OWN}_bucket{{le=\"10.0\"}} 5\n{OWN}_bucket{{le=\"+Inf\"}} 1e+03\n");
        let histogram = Series::parse(&text, OWN).expect("a histogram").sum();
        assert_eq!(histogram.percentile(), Some(f64::INFINITY));
        assert_eq!(Series::parse("other_bucket{le=\"1\"} 1\n", OWN), None);
        assert_eq!(Series::parse(&text, NGINX), None, "the histogram of the other side");
        let empty = format!("# TYPE {OWN} histogram\n");
        assert_eq!(Series::parse(&empty, OWN), Some(Series::default()));
    }
}
