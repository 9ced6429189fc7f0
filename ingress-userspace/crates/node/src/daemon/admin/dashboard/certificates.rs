//! Certificates that clients may get, the first to expire at the beginning.

use std::{collections::HashMap, sync::Arc, time::Duration};

use ingress_inspect::{CertificateDocument, CertificateEntry, LeafDocument, certificate_entries};
use maud::{Markup, html};

use super::{
    PREFIX, Page, PageError,
    format::{host_path, time},
    table::{self, Rows, number, table, text},
};
use crate::daemon::admin::{AdminSource, api, query::Query};

/// Number of names in a cell.
const NAMES: usize = 5;
/// Days before the end of validity at which a certificate is marked.
const SOON: i64 = 14;

pub(super) fn page(source: &dyn AdminSource, query: &Query) -> Result<Page, PageError> {
    let rows = Rows::of(query)?;
    let name = query.text("name").unwrap_or_default().to_ascii_lowercase();
    let translation = source.translation();
    let mut entries = certificate_entries(&translation.table);
    entries.retain(|entry| name.is_empty() || has_text(entry, &name));
    // Those are parsed already. Only the certificates of this part of the list are parsed here.
    let ends: HashMap<Arc<str>, Duration> = source.certificates().ends.into_iter().collect();
    let end = |entry: &CertificateEntry| entry.secret().and_then(|secret| ends.get(secret)).copied();
    entries.sort_by_key(|entry| end(entry).unwrap_or(Duration::MAX));
    let now = api::now();
    let documents: Vec<_> = rows.cut(entries.iter()).map(|entry| entry.document(&translation.table, now)).collect();
    let main = html! {
        h1 { "Certificates" }
        form.filter action={ (PREFIX) "/certificates" } method="get" role="search" {
            label for="name" { "Name or Secret contains" }
            input #name name="name" type="search" value=(name) autocomplete="off" spellcheck="false";
            button { "Filter" }
        }
        (certificate_table(&documents))
        (rows.pager(entries.len(), "certificates", &[("name", name.as_str().into())]))
    };
    Ok(Page::new("Certificates", main))
}

fn has_text(entry: &CertificateEntry, text: &str) -> bool {
    entry.secret().is_some_and(|secret| secret.contains(text))
        || entry.server_names().iter().any(|name| name.contains(text))
}

fn certificate_table(documents: &[CertificateDocument]) -> Markup {
    let columns = [
        text("Secret"),
        text("Server names"),
        text("Issuer"),
        text("Valid until"),
        number("Days left"),
        text("Staple until"),
    ];
    let rows = html! {
        @for CertificateDocument { secret, server_names, is_fallback, leaf } in documents {
            tr data-key=(secret.as_deref().unwrap_or("-")) {
                th scope="row" {
                    (secret.as_deref().unwrap_or("(none: self-signed certificate of the process)"))
                    @if *is_fallback { " (fallback)" }
                }
                td { (names(server_names)) }
                @match leaf {
                    Some(LeafDocument { issuer, not_after, days_left, staple_until, .. }) => {
                        td { (issuer) }
                        td { (time(not_after)) }
                        td.n { @if *days_left < SOON { strong.bad { (days_left) } } @else { (days_left) } }
                        td { @match staple_until { Some(until) => (time(until)), None => "–" } }
                    },
                    None => { td { "–" } td { "–" } td.n { "–" } td { "–" } },
                }
            }
        }
        @if documents.is_empty() { (table::empty(&columns, "No certificate is listed.")) }
    };
    table("certificates", "Certificates of the configuration, first to expire first", &columns, &rows)
}

fn names(names: &[String]) -> Markup {
    html! {
        @for (index, name) in names.iter().take(NAMES).enumerate() {
            @if index > 0 { ", " }
            a href=(host_path(name)) { (name) }
        }
        @if names.len() > NAMES { " and " (names.len() - NAMES) " more" }
    }
}
