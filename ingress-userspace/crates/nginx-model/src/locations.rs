//! The controller's part: from the Ingresses of a host to its locations, in the order in which they are written.

use std::collections::BTreeSet;

use crate::{Expression, HostIngress, Location, LocationMatch, Origin, PathKind, Unmodelled};

/// A location before it is known whether the host has regular expressions.
#[derive(Clone)]
struct Draft {
    kind: PathKind,
    text: String,
    origin: Origin,
    /// The Ingress with the annotations that apply.
    ingress: usize,
}

/// Returns the locations of a host, and whether they are regular expressions.
pub(crate) fn locations(ingresses: &[HostIngress]) -> Result<(Vec<Location>, bool), Unmodelled> {
    let mut drafts = collected(ingresses);
    // Ties stay in the order in which they were found.
    drafts.sort_by(|a, b| b.text.len().cmp(&a.text.len()).then_with(|| b.text.cmp(&a.text)));
    let drafts = completed(drafts, ingresses);
    let has_expressions = drafts.iter().any(|draft| is_expression(draft, ingresses));
    let locations: Result<Vec<_>, _> = drafts.into_iter().map(|draft| location(draft, has_expressions)).collect();
    let locations = locations?;
    let mut names = BTreeSet::new();
    if !has_expressions && let Some(twice) = locations.iter().find(|location| !names.insert(location.to_string())) {
        return Err(Unmodelled::Duplicate(twice.to_string()));
    }
    Ok((locations, has_expressions))
}

/// Returns the number of the Ingress whose `app-root` redirects requests for `/`.
pub(crate) fn app_root(locations: &[Location], ingresses: &[HostIngress]) -> Option<usize> {
    let of = |location: &Location| match location.origin {
        Origin::Path { ingress, path: _ } => ingress,
        // The default location has the annotations of the Ingress that first names the host.
        Origin::Default => 0,
    };
    locations.iter().map(of).find(|ingress| ingresses.get(*ingress).is_some_and(|ingress| ingress.has_app_root))
}

/// Collects the paths. The first claim on a path of one kind gets it.
fn collected(ingresses: &[HostIngress]) -> Vec<Draft> {
    let default = Draft { kind: PathKind::Prefix, text: "/".to_owned(), origin: Origin::Default, ingress: 0 };
    let mut drafts = vec![default];
    for (number, ingress) in ingresses.iter().enumerate() {
        for (path_number, path) in ingress.paths.iter().enumerate() {
            let text = if path.text.is_empty() { "/" } else { &path.text };
            let origin = Origin::Path { ingress: number, path: path_number };
            let new = Draft { kind: path.kind, text: text.to_owned(), origin, ingress: number };
            // Only the first location with the same path is looked at, so one of the other kind hides later ones.
            match drafts.iter_mut().find(|draft| draft.text == text) {
                Some(known) if known.kind == path.kind => {
                    if known.origin == Origin::Default {
                        *known = new;
                    }
                }
                Some(_) | None => drafts.push(new),
            }
        }
    }
    drafts
}

/// Adds a slash to each prefix, and a location for exactly the path, if its Ingress has no regular expressions.
fn completed(drafts: Vec<Draft>, ingresses: &[HostIngress]) -> Vec<Draft> {
    let is_exact = |draft: &&Draft| draft.kind == PathKind::Exact;
    let exact: BTreeSet<String> = drafts.iter().filter(is_exact).map(|draft| draft.text.clone()).collect();
    let mut all = Vec::with_capacity(2 * drafts.len());
    for draft in drafts {
        if draft.text == "/" || draft.kind == PathKind::Exact || is_expression(&draft, ingresses) {
            all.push(draft);
            continue;
        }
        let slash = if draft.text.ends_with('/') { "" } else { "/" };
        all.push(Draft { text: format!("{}{slash}", draft.text), ..draft.clone() });
        if !exact.contains(&draft.text) {
            all.push(Draft { kind: PathKind::Exact, ..draft });
        }
    }
    all
}

/// Returns whether the annotations that apply make the path a regular expression.
fn is_expression(draft: &Draft, ingresses: &[HostIngress]) -> bool {
    let Some(HostIngress { use_regex, rewrite_target, .. }) = ingresses.get(draft.ingress) else { return false };
    // The path is compared as it is after a slash was added.
    *use_regex || rewrite_target.as_ref().is_some_and(|target| !target.is_empty() && *target != draft.text)
}

fn location(Draft { kind, text, origin, ingress: _ }: Draft, has_expressions: bool) -> Result<Location, Unmodelled> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'-' | b'_' | b'.' | b'~');
    let matching = match kind {
        _ if has_expressions => LocationMatch::Expression(Expression::parse(&text)?),
        _ if !text.starts_with('/') || !text.bytes().all(is_plain) => return Err(Unmodelled::Text(text)),
        PathKind::Exact => LocationMatch::Exact(text),
        PathKind::Prefix => LocationMatch::Prefix(text),
    };
    Ok(Location { matching, origin })
}
