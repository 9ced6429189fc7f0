//! The rule that serves a URL, and the reason why each other rule of the host does not.

use http::StatusCode;
use ingress_inspect::{Explanation, Verdict, explain};
use maud::{Markup, html};

use super::{
    PREFIX, Page,
    format::{host_path, marked, with_code},
    host::{action, path_text},
    table::{self, table, text},
};
use crate::daemon::admin::{AdminSource, query::Query};

pub(super) fn page(source: &dyn AdminSource, query: &Query) -> Page {
    let url = query.text("url").map(str::trim).unwrap_or_default();
    let result = (!url.is_empty()).then(|| explain(&source.translation().table, url));
    let error = result.as_ref().and_then(|result| result.as_ref().err()).map(ToString::to_string);
    let main = html! {
        h1 { "Explain a URL" }
        form.filter action={ (PREFIX) "/explain" } method="get" {
            label for="url" { "URL" }
            input #url name="url" type="text" inputmode="url" required value=(url) placeholder="https://shop.example.com/cart"
                autocomplete="off" spellcheck="false" aria-invalid=[error.is_some().then_some("true")]
                aria-describedby=[error.is_some().then_some("url-error")];
            button { "Explain" }
        }
        @match &result {
            None => p.note { "You get the rule that serves a GET request for the URL, and why the other rules do not." },
            Some(Err(error)) => p.error #url-error role="alert" { (marked(&error.to_string())) },
            Some(Ok(explanation)) => (explained(explanation)),
        }
    };
    let status = if error.is_some() { StatusCode::BAD_REQUEST } else { StatusCode::OK };
    Page { status, ..Page::new("Explain a URL", main) }
}

fn explained(explanation: &Explanation) -> Markup {
    let Explanation {
        scheme,
        host,
        path,
        verdict,
        summary,
        route,
        hosts,
        considered,
        considered_left_out,
        certificate,
        notes,
    } = explanation;
    html! {
        section aria-labelledby="verdict" {
            h2 #verdict { (verdict_text(*verdict)) }
            p { (with_code(summary)) }
            @for note in notes { p.note { (with_code(note)) } }
            dl.facts {
                div { dt { "Request" } dd { code { (scheme) "://" (host) (path) } } }
                @if !hosts.is_empty() {
                    div {
                        dt { "Hosts that match" }
                        dd { @for (index, host) in hosts.iter().enumerate() { @if index > 0 { ", " } a href=(host_path(host)) { (host) } } }
                    }
                }
                @if let Some(route) = route {
                    div { dt { "Rule" } dd { code { (path_text(route.path.as_deref())) } " (" (route.path_type.as_str()) ")" } }
                    @if !route.ingress.is_empty() { div { dt { "Ingress" } dd { (route.ingress) } } }
                    div { dt { "Action" } dd { (action(&route.action)) } }
                    @if !route.filters.is_empty() {
                        div { dt { "Filters" } dd { ul { @for filter in &route.filters { li { code { (filter) } } } } } }
                    }
                    @if !route.settings.is_empty() { div { dt { "Settings" } dd { code { (route.settings) } } } }
                }
                @if let Some(certificate) = certificate {
                    div {
                        dt { "Certificate" }
                        dd {
                            (certificate.secret.as_deref().unwrap_or("self-signed certificate of the process"))
                            @if let Some(name) = &certificate.server_name { " for " (name) }
                            @if certificate.is_fallback { " (fallback)" }
                        }
                    }
                }
            }
        }
        @if !considered.is_empty() { (not_chosen(considered, *considered_left_out)) }
    }
}

fn not_chosen(considered: &[ingress_inspect::Considered], left_out: usize) -> Markup {
    let columns = [text("Path"), text("Type"), text("Ingress"), text("Reason")];
    let rows = html! {
        @for (index, rule) in considered.iter().enumerate() {
            tr data-key=(index) {
                th scope="row" { code { (path_text(rule.path.as_deref())) } }
                td { (rule.path_type.as_str()) }
                td { (rule.ingress) }
                td { (marked(&rule.reason)) }
            }
        }
        @if left_out > 0 { (table::empty(&columns, &format!("{left_out} further rules are left out."))) }
    };
    html! {
        section {
            h2 { "Rules that were not chosen" }
            (table("considered", "Other rules of the host, in order of precedence", &columns, &rows))
        }
    }
}

fn verdict_text(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Forwarded => "Forwarded to pods",
        Verdict::Redirected => "Redirected",
        Verdict::Refused => "Refused",
        Verdict::DefaultBackend => "Default backend",
        Verdict::NotFound => "Not found (404)",
        Verdict::BadRequest => "Bad request (400)",
        Verdict::Passthrough => "TLS passthrough",
    }
}
