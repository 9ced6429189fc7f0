//! Regular expressions of paths, each compiled once, and the allowance of one Ingress for them.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use ingress_model::{PathError, PathMatch, PathPattern, PatternError};

/// Maximum memory of the automata of regular expressions, in bytes: for one Ingress, for all Ingresses of a namespace,
/// and for all.
pub(crate) const MAX_OF_INGRESS: usize = 2 << 20;

/// The expressions in use.
#[derive(Default)]
pub(crate) struct Known {
    by_text: HashMap<Arc<str>, Weak<PathPattern>>,
    /// Number of entries at which unused ones are removed.
    sweep_at: usize,
}

/// The remaining allowance of one Ingress.
pub(crate) struct Allowance {
    left: usize,
    pub(crate) is_exhausted: bool,
}

// === impl Known ===

impl Known {
    fn find(&self, text: &str, groups: bool) -> Option<Arc<PathPattern>> {
        let known = self.by_text.get(text)?.upgrade()?;
        (known.alone().is_some() || !groups).then_some(known)
    }

    fn insert(&mut self, pattern: &Arc<PathPattern>) {
        if self.by_text.len() >= self.sweep_at {
            self.by_text.retain(|_, known| known.strong_count() > 0);
            self.sweep_at = (2 * self.by_text.len()).max(64);
        }
        self.by_text.insert(pattern.text(), Arc::downgrade(pattern));
    }
}

// === impl Allowance ===

impl Allowance {
    pub(crate) const fn new() -> Self {
        Self { left: MAX_OF_INGRESS, is_exhausted: false }
    }

    pub(crate) const fn used(&self) -> usize {
        MAX_OF_INGRESS - self.left
    }

    /// Returns the match for the expression `text`, or `None` once the allowance is used up.
    pub(crate) fn read(&mut self, text: &str, groups: bool, known: &mut Known) -> Option<Result<PathMatch, PathError>> {
        if self.is_exhausted {
            return None;
        }
        let pattern = match known.find(text, groups) {
            Some(pattern) => pattern,
            None => {
                let new = PathMatch::pattern_within(text, self.left);
                let new = new.and_then(|new| if groups { Ok(new.with_groups()?) } else { Ok(new) });
                match new {
                    Ok(new) => Arc::new(new),
                    // An expression that is too large by itself is reported as such.
                    Err(PathError::Pattern(PatternError::TooLarge(_))) if self.left < PathPattern::MAX => {
                        self.is_exhausted = true;
                        return None;
                    }
                    Err(error) => return Some(Err(error)),
                }
            }
        };
        let Some(left) = self.left.checked_sub(pattern.size()) else {
            self.is_exhausted = true;
            return None;
        };
        self.left = left;
        known.insert(&pattern);
        Some(Ok(PathMatch::Pattern(pattern)))
    }
}
