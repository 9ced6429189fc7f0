//! Changes of texts from the work tree: each replaces exactly one place, so that a rewritten source is noticed.

use anyhow::{Result, ensure};

/// Returns `text` with its only `from` replaced by `to`.
///
/// # Errors
/// Fails if `from` does not occur, or occurs more than once.
pub(crate) fn replace_once(text: &str, from: &str, to: &str) -> Result<String> {
    let count = text.matches(from).count();
    ensure!(count == 1, "`{from}` occurs {count} times and not once");
    Ok(text.replacen(from, to, 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_one_place_is_replaced() {
        assert_eq!(replace_once("a b", "a", "c").unwrap(), "c b");
        for text in ["b", "a a"] {
            assert!(replace_once(text, "a", "c").is_err(), "{text}");
        }
    }
}
