//! Validates label selectors with the grammar of kubectl and the API server. A mistake is reported at startup, not by a
//! server that refuses the watch.
//!
//! Syntax: <https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors>.

/// Maximum length of a label name and of a label value.
const LABEL_MAX: usize = 63;
/// Maximum length of the prefix of a label name, which is a DNS subdomain.
const SUBDOMAIN_MAX: usize = 253;

/// Validates a label selector, and returns it in the form for the API server.
///
/// # Errors
/// Names the requirement that cannot be parsed, and the accepted forms.
pub(super) fn label_selector(text: &str) -> Result<String, String> {
    for requirement in split(text)? {
        let requirement = requirement.trim();
        if requirement.contains(['<', '>']) {
            return Err(format!(
                "`{requirement}` compares numbers, as only selectors of nodes do; select namespaces by `=`, `!=`, `in` \
                 and `notin`"
            ));
        }
        check(requirement).ok_or_else(|| {
            format!(
                "`{requirement}` is not a requirement on a label; write `KEY=VALUE`, `KEY!=VALUE`, `KEY in (A,B)`, \
                 `KEY notin (A,B)`, `KEY` or `!KEY`, and separate several by commas"
            )
        })?;
    }
    Ok(text.to_owned())
}

/// Splits a selector into requirements at the commas outside of parentheses.
fn split(text: &str) -> Result<impl Iterator<Item = &str>, String> {
    let mut is_inside = false;
    for character in text.chars() {
        match character {
            '(' if !is_inside => is_inside = true,
            ')' if is_inside => is_inside = false,
            '(' | ')' => return Err("parentheses do not match".to_owned()),
            _ => {}
        }
    }
    if is_inside {
        return Err("a parenthesis is not closed".to_owned());
    }
    Ok(text.split(move |character| {
        match character {
            '(' => is_inside = true,
            ')' => is_inside = false,
            _ => {}
        }
        character == ',' && !is_inside
    }))
}

/// Returns `None` if the text is not a valid requirement.
fn check(requirement: &str) -> Option<()> {
    if let Some(list) = requirement.strip_suffix(')') {
        let (left, values) = list.split_once('(')?;
        let (key, operator) = left.trim_end().rsplit_once(char::is_whitespace)?;
        let is_known = matches!(operator, "in" | "notin") && is_key(key.trim());
        return (is_known && values.split(',').all(|value| is_value(value.trim()))).then_some(());
    }
    let parts = ["!=", "==", "="].into_iter().find_map(|operator| requirement.split_once(operator));
    let is_good = match parts {
        Some((key, value)) => is_key(key.trim()) && is_value(value.trim()),
        None => is_key(requirement.strip_prefix('!').unwrap_or(requirement).trim()),
    };
    is_good.then_some(())
}

/// Returns whether `key` is a label key: a name with an optional prefix, which is a DNS subdomain and `/`.
fn is_key(key: &str) -> bool {
    let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    !name.is_empty() && is_value(name) && prefix.is_none_or(is_subdomain)
}

/// Returns whether `name` is a DNS subdomain in lower case (RFC 1123, 2.1).
fn is_subdomain(name: &str) -> bool {
    let is_lower = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
    name.len() <= SUBDOMAIN_MAX
        && name.chars().all(is_lower)
        && name.split('.').all(|label| !label.is_empty() && has_alphanumeric_ends(label))
}

/// Returns whether `value` is a label value, which may be empty.
fn is_value(value: &str) -> bool {
    value.len() <= LABEL_MAX
        && value.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        && has_alphanumeric_ends(value)
}

fn has_alphanumeric_ends(text: &str) -> bool {
    let is_end = |byte: Option<&u8>| byte.is_none_or(u8::is_ascii_alphanumeric);
    is_end(text.as_bytes().first()) && is_end(text.as_bytes().last())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubectl_selectors_are_parsed() {
        for selector in [
            "team=shop",
            "team==shop",
            "team!=shop,env",
            "!env",
            "env in (prod, test),tier notin (db)",
            "kubernetes.io/metadata.name in (a,b)",
            "empty=",
            " team = shop , env ",
        ] {
            assert_eq!(label_selector(selector), Ok(selector.to_owned()));
        }
    }

    #[test]
    fn selectors_that_the_server_would_reject_are_refused() {
        let long = "x".repeat(64);
        for (selector, wrong) in [
            ("", "``"),
            ("team=shop,", "``"),
            ("=shop", "`=shop`"),
            ("team=a b", "`team=a b`"),
            ("team=-a", "`team=-a`"),
            ("Team.IO/a=b", "`Team.IO/a=b`"),
            ("a/b/c=d", "`a/b/c=d`"),
            ("env of (a)", "`env of (a)`"),
            ("in (a)", "`in (a)`"),
            (".a/b=c", "`.a/b=c`"),
            ("a..b/c", "`a..b/c`"),
            ("-a/b", "`-a/b`"),
            ("a-/b", "`a-/b`"),
            ("/b", "`/b`"),
            ("a>1", "`a>1` compares numbers"),
            ("team=shop, a < 1", "`a < 1` compares numbers"),
            ("a in (<)", "compares numbers"),
            (&long, &long),
            ("env in (a", "not closed"),
            ("env in a)", "do not match"),
            ("env in ((a))", "do not match"),
        ] {
            let error = label_selector(selector).expect_err(selector);
            assert!(error.contains(wrong), "{selector}: {error}");
        }
    }
}
