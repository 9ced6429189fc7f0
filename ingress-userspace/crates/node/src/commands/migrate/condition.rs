//! Conditions that end a watched share.

use std::str::FromStr;

use super::latency::LatencyLimit;

/// Conditions that end a shift, at least one: the first that holds ends it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct AbortConditions {
    /// Part of the responses, 0 to 1, of any host or of all, with server errors.
    pub(super) errors: Option<f64>,
    /// 99th percentile of the response times of all hosts.
    pub(super) latency: Option<LatencyLimit>,
}

// === impl AbortConditions ===

impl AbortConditions {
    /// Returns whether the response times of the other controller are needed.
    pub(super) fn compares(&self) -> bool {
        matches!(self.latency, Some(LatencyLimit::Times(_)))
    }
}

impl FromStr for AbortConditions {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |part: &str| {
            format!("`{part}` is no condition of the form `5xx>1%`, `p99>2x` or `p99>500ms`, each at most once")
        };
        let mut conditions = Self { errors: None, latency: None };
        for part in text.split(',').map(str::trim) {
            let is_known = if let Some(percent) = part.strip_prefix("5xx>").and_then(|rest| rest.strip_suffix('%')) {
                let percent = percent.parse::<f64>().ok().filter(|percent| (0.0..100.0).contains(percent));
                let errors = percent.map(|percent| percent / 100.0);
                errors.is_some() && std::mem::replace(&mut conditions.errors, errors).is_none()
            } else if let Some(limit) = part.strip_prefix("p99>") {
                let limit = limit.parse().ok();
                limit.is_some() && std::mem::replace(&mut conditions.latency, limit).is_none()
            } else {
                false
            };
            if !is_known {
                return Err(wrong(part));
            }
        }
        Ok(conditions)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn conditions_are_about_errors_and_response_times() {
        let of = |errors, latency| Some(AbortConditions { errors, latency });
        for (text, expect) in [
            ("5xx>1%", of(Some(0.01), None)),
            ("5xx>0%", of(Some(0.0), None)),
            ("5xx>0.5%", of(Some(0.005), None)),
            ("p99>2x", of(None, Some(LatencyLimit::Times(2.0)))),
            ("p99>500ms", of(None, Some(LatencyLimit::Time(Duration::from_millis(500))))),
            ("5xx>1%, p99>1.5x", of(Some(0.01), Some(LatencyLimit::Times(1.5)))),
            ("p99>2s,5xx>1%", of(Some(0.01), Some(LatencyLimit::Time(Duration::from_secs(2))))),
        ] {
            assert_eq!(text.parse().ok(), expect, "{text}");
        }
        for wrong in [
            "",
            "5xx",
            "5xx>1",
            "5xx>100%",
            "5xx>-1%",
            "4xx>1%",
            "p99>2",
            "p99>0.5x",
            "p99>x",
            "p99>0s",
            "p95>2x",
            "5xx>1%,",
            "5xx>1%,5xx>2%",
            "p99>NaNx",
            "5xx>NaN%",
            "p99>2x,p99>1s",
        ] {
            let error = wrong.parse::<AbortConditions>().expect_err(wrong);
            assert!(error.contains("`5xx>1%`"), "{error}");
        }
    }
}
