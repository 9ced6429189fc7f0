//! Amounts that a budget compares. The budgets are not known here.

use std::ops::{AddAssign, SubAssign};

/// A quantity with a budget.
pub(super) trait Amount: Copy + Default + PartialEq + AddAssign + SubAssign {
    /// Returns `true` if this exceeds `limit` in any component.
    fn exceeds(&self, limit: &Self) -> bool;
}
