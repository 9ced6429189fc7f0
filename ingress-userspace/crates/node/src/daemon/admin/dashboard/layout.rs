//! The document around the content of a page: head, navigation and footer.

use http::StatusCode;
use maud::{DOCTYPE, Markup, html};

use super::{PAGES, PREFIX, Page, PageKind};

/// Returns the whole document. `kind` is `None` for an error that is of no page; `at` is the time of the values, as
/// Unix time in milliseconds. The page of an error does not change any more.
pub(super) fn document(page: &Page, kind: Option<&PageKind>, at: u64) -> Markup {
    let current = kind.map(|kind| kind.path.trim_end_matches('/'));
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (page.title) " · xdp-ingress" }
                link rel="icon" type="image/svg+xml" href={ (PREFIX) "/assets/icon.svg" };
                link rel="stylesheet" href={ (PREFIX) "/assets/dashboard.css" };
                script type="module" src={ (PREFIX) "/assets/dashboard.js" } {}
            }
            body {
                a.skip href="#main" { "Skip to content" }
                header {
                    a.brand href=(PREFIX) {
                        img src={ (PREFIX) "/assets/icon.svg" } alt="" width="24" height="24";
                        "xdp-ingress"
                    }
                    nav aria-label="Pages" {
                        ul {
                            @for kind in PAGES.iter().filter(|kind| !kind.label.is_empty()) {
                                li {
                                    a href=(path_of(kind)) aria-current=[(current == Some(kind.path)).then_some("page")] {
                                        (kind.label)
                                    }
                                }
                            }
                        }
                    }
                    // The script shows it, because nothing is live without the script.
                    div.live #live hidden {
                        span #live-state role="status" {}
                        button #live-pause type="button" { "Pause updates" }
                    }
                }
                main #main tabindex="-1" data-live[page.status == StatusCode::OK] data-at=(at) { (page.main) }
                footer {
                    p {
                        "xdp-ingress " (env!("CARGO_PKG_VERSION")) " · this page is read-only · "
                        a href="/api/v1" { "API" }
                    }
                    noscript { p { "Rates and updates need JavaScript. Reload the page for new values." } }
                }
            }
        }
    }
}

fn path_of(kind: &PageKind) -> String {
    if kind.path.is_empty() { PREFIX.to_owned() } else { format!("{PREFIX}/{}", kind.path) }
}
