//! Backends that share the requests of a rule by weight.

use std::{fmt, num::NonZeroU32};

use super::{Filter, Unavailable, UpstreamKey};

/// Backends of a rule. Each gets a share of the requests in proportion to its weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightedBackends(Box<[WeightedBackend]>);

/// One of several backends of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightedBackend {
    /// Never 0. A backend of weight 0 is left out.
    pub weight: u32,
    /// Upstream, or the reason for which the share of this backend is answered with an error.
    pub target: Result<UpstreamKey, Unavailable>,
    /// Filters of this backend alone, in the order of [`Filter`]'s variants. They apply after those of the rule. Only edits
    /// and mirrors are possible: a request that another filter would answer itself is refused.
    pub filters: Vec<Filter>,
}

// === impl WeightedBackends ===

impl WeightedBackends {
    /// Returns the backends with a weight above 0, or `None` if there are none.
    #[must_use]
    pub fn new(backends: impl IntoIterator<Item = WeightedBackend>) -> Option<Self> {
        let backends: Box<[_]> = backends.into_iter().filter(|backend| backend.weight > 0).collect();
        (!backends.is_empty()).then_some(Self(backends))
    }

    #[must_use]
    pub fn as_slice(&self) -> &[WeightedBackend] {
        &self.0
    }

    /// Returns the sum of all weights.
    #[must_use]
    pub fn total(&self) -> NonZeroU32 {
        let sum = self.0.iter().fold(0_u32, |sum, backend| sum.saturating_add(backend.weight));
        NonZeroU32::new(sum).unwrap_or(NonZeroU32::MIN)
    }
}

/// Formats the backends, such as `9 x default/a:80 | 1 x refuse: no such service`.
impl fmt::Display for WeightedBackends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, WeightedBackend { weight, target, filters }) in self.0.iter().enumerate() {
            let bar = if n == 0 { "" } else { " | " };
            write!(f, "{bar}{weight} x ")?;
            for filter in filters {
                write!(f, "{filter} ")?;
            }
            match target {
                Ok(key) => write!(f, "{key}")?,
                Err(why) => write!(f, "refuse: {why}")?,
            }
        }
        Ok(())
    }
}
