//! Checks whether an allow list satisfies a licence expression (SPDX 2.1). Packages are the caller's concern.

use spdx::{Expression, ParseMode};

/// Returns the reason why the expression cannot be satisfied, or `None` if it can.
pub(super) fn objection(expression: &str, allowed: &[String]) -> Option<String> {
    if expression.is_empty() {
        return Some("names no licence".to_owned());
    }
    // Older packages write `MIT/Apache-2.0` for `MIT OR Apache-2.0`.
    match Expression::parse_mode(expression, ParseMode::LAX) {
        Err(error) => Some(format!("has the licence `{expression}`, which is no SPDX expression: {}", error.reason)),
        Ok(parsed) if parsed.evaluate(|licence| allowed.contains(&licence.to_string())) => None,
        Ok(_) => Some(format!("has the licence `{expression}`, of which the allow list covers too little")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_required_licence_must_be_allowed() {
        let allowed: Vec<_> = ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"].map(str::to_owned).into();
        let check = |expression: &str, fine: bool| {
            assert_eq!(objection(expression, &allowed).is_none(), fine, "{expression}");
        };
        check("MIT", true);
        check("MIT OR GPL-2.0-only", true);
        check("MIT AND GPL-2.0-only", false);
        check("MIT/Apache-2.0", true);
        check("Apache-2.0 / MIT", true);
        check("Apache-2.0 WITH LLVM-exception", true);
        check("(MIT OR Apache-2.0) AND ISC", false);
        check("AGPL-3.0-only", false);
        check("no such thing", false);
        check("", false);
    }
}
