//! Regular expressions of paths, each compiled once, and the allowance of one Ingress for them.

use std::{
    collections::HashMap,
    ops::{AddAssign, SubAssign},
    sync::{Arc, Weak},
};

use super::amount::Amount;
use ingress_model::{PathError, PathMatch, PathPattern, PatternError};

/// Maximum number and memory of the regular expressions of one Ingress.
pub(crate) const MAX_OF_INGRESS: Cost = Cost { count: 2_000, bytes: 2 << 20 };

/// Cost of regular expressions. Memory alone does not bound the work to build the automaton of a host, because short
/// expressions take little.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    pub(crate) count: usize,
    /// Memory of their automata.
    pub(crate) bytes: usize,
}

/// The expressions in use.
#[derive(Default)]
pub(crate) struct KnownExpressions {
    by_text: HashMap<Arc<str>, Weak<PathPattern>>,
    /// Number of entries at which unused ones are removed.
    evict_at: usize,
    /// Number of compilations, complete or not: the work that the allowances bound.
    #[cfg(test)]
    pub(crate) compilations: usize,
}

/// The remaining allowance of one Ingress. Its callers bound the number of expressions beforehand.
pub(crate) struct Allowance {
    count: usize,
    left: usize,
    pub(crate) is_exhausted: bool,
}

// === impl KnownExpressions ===

impl KnownExpressions {
    fn find(&self, text: &str, groups: bool) -> Option<Arc<PathPattern>> {
        let known = self.by_text.get(text)?.upgrade()?;
        (known.alone().is_some() || !groups).then_some(known)
    }

    /// Compiles an expression, for which at most `budget` bytes are left.
    fn compile(&mut self, text: &str, groups: bool, budget: usize) -> Result<PathPattern, PathError> {
        #[cfg(test)]
        {
            self.compilations += 1;
        }
        let new = PathMatch::pattern_within(text, budget)?;
        if groups { Ok(new.with_groups()?) } else { Ok(new) }
    }

    fn insert(&mut self, pattern: &Arc<PathPattern>) {
        if self.by_text.len() >= self.evict_at {
            self.by_text.retain(|_, known| known.strong_count() > 0);
            self.evict_at = (2 * self.by_text.len()).max(64);
        }
        self.by_text.insert(pattern.text(), Arc::downgrade(pattern));
    }
}

// === impl Allowance ===

impl Allowance {
    pub(crate) const fn new() -> Self {
        Self { count: 0, left: MAX_OF_INGRESS.bytes, is_exhausted: false }
    }

    pub(crate) const fn used(&self) -> Cost {
        Cost { count: self.count, bytes: MAX_OF_INGRESS.bytes - self.left }
    }

    /// Returns the match for the expression `text`, or `None` once the allowance is used up.
    pub(crate) fn read(
        &mut self,
        text: &str,
        groups: bool,
        known: &mut KnownExpressions,
    ) -> Option<Result<PathMatch, PathError>> {
        if self.is_exhausted {
            return None;
        }
        let pattern = match known.find(text, groups) {
            Some(pattern) => pattern,
            None => match known.compile(text, groups, self.left) {
                Ok(new) => Arc::new(new),
                // An expression that is too large by itself is reported as such.
                Err(PathError::Pattern(PatternError::TooLarge(_))) if self.left < PathPattern::MAX => {
                    self.is_exhausted = true;
                    return None;
                }
                Err(error) => return Some(Err(error)),
            },
        };
        let Some(left) = self.left.checked_sub(pattern.size()) else {
            self.is_exhausted = true;
            return None;
        };
        (self.count, self.left) = (self.count + 1, left);
        known.insert(&pattern);
        Some(Ok(PathMatch::Pattern(pattern)))
    }
}

// === impl Cost ===

impl Amount for Cost {
    fn exceeds(&self, limit: &Self) -> bool {
        self.count > limit.count || self.bytes > limit.bytes
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, Self { count, bytes }: Self) {
        self.count += count;
        self.bytes += bytes;
    }
}

impl SubAssign for Cost {
    fn sub_assign(&mut self, Self { count, bytes }: Self) {
        self.count -= count;
        self.bytes -= bytes;
    }
}
