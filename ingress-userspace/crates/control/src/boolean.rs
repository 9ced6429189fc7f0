//! Booleans as ingress-nginx reads them.

/// Reads a boolean in each spelling that ingress-nginx accepts, which are those of Go's `strconv.ParseBool`.
#[must_use]
pub fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "True" | "TRUE" => Some(true),
        "0" | "f" | "F" | "false" | "False" | "FALSE" => Some(false),
        _ => None,
    }
}
