//! Texts of filters and actions without secrets.
//!
//! Operators write credentials into header fields and into queries, so documents name the fields and leave out values
//! and queries. Passwords and keys have no text form in the model at all.

use std::fmt::Write as _;

use ingress_model::{Authentication, Filter, HeaderEdit, HeaderEdits};

/// Returns the text of `filter` without values of header fields and without queries.
pub(crate) fn filter(filter: &Filter) -> String {
    match filter {
        Filter::RequestHeaders(edits) => format!("request-headers({})", names(edits)),
        Filter::ResponseHeaders(edits) => format!("response-headers({})", names(edits)),
        // Conditions may hold credentials.
        Filter::RequestRules(rules) => format!("request-rules({})", rules.iter().count()),
        Filter::Authentication(authentication) => authentication_text(authentication),
        other => without_queries(&other.to_string()),
    }
}

fn authentication_text(authentication: &Authentication) -> String {
    let mut shown = authentication.clone();
    let added = shown.ext_authz.as_mut().map(|service| std::mem::take(&mut service.headers)).unwrap_or_default();
    let mut text = without_queries(&shown.to_string());
    if !added.is_empty() {
        // Writing to a string cannot fail.
        let _infallible = write!(text, " adding {}", names(&added));
    }
    text
}

/// Returns the names of the edited fields; `+` marks an added field and `-` a removed one.
fn names(edits: &HeaderEdits) -> String {
    let name = |edit: &HeaderEdit| match edit {
        HeaderEdit::Set(name, _) => name.to_string(),
        HeaderEdit::Add(name, _) => format!("+{name}"),
        HeaderEdit::Remove(name) => format!("-{name}"),
    };
    edits.iter().map(name).collect::<Vec<_>>().join(", ")
}

/// Replaces each query in `text` by `?…`. A query ends at a blank, a comma, a semicolon or a closing bracket.
#[must_use]
pub fn without_queries(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, query)) = rest.split_once('?') {
        let end = query.find([' ', ',', ';', ')', '`', '"']).unwrap_or(query.len());
        out.push_str(before);
        out.push_str(if end == 0 { "?" } else { "?…" });
        rest = &query[end..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_fields_are_left_out() {
        let edits = HeaderEdits::parse("Authorization: Basic aHVudGVyMg==\n+x-b: hunter2\n-Server").expect("valid");
        assert_eq!(
            filter(&Filter::RequestHeaders(edits.clone().into())),
            "request-headers(authorization, +x-b, -server)"
        );
        assert_eq!(filter(&Filter::ResponseHeaders(edits.into())), "response-headers(authorization, +x-b, -server)");
    }

    #[test]
    fn queries_are_left_out() {
        for (text, expected) in [
            ("-> redirect(302) https://a.test/x?token=hunter2", "-> redirect(302) https://a.test/x?…"),
            ("GET auth/a:80 /v?key=hunter2, sign-in /in?rd=$uri", "GET auth/a:80 /v?…, sign-in /in?…"),
            ("mirror(a/b:80/x?k=hunter2)", "mirror(a/b:80/x?…)"),
            ("rewrite(/x)", "rewrite(/x)"),
            ("what?", "what?"),
        ] {
            assert_eq!(without_queries(text), expected);
        }
    }
}
