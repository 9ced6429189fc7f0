//! The pages of the dashboard.

use crate::objects;

/// A page and the id of its main table, if it has one without further input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Name of the page's picture.
    pub name: &'static str,
    pub path: String,
    /// Ids of tables that the page has even without scripts.
    pub tables: &'static [&'static str],
}

/// Returns all pages, for a product that serves `host`.
pub fn all(host: &str) -> Vec<Page> {
    let page = |name, path: &str, tables| Page { name, path: path.to_owned(), tables };
    vec![
        page("overview", "/dashboard", &[]),
        page("hosts", "/dashboard/hosts", &["hosts"]),
        page("host", &format!("/dashboard/hosts/{host}"), &["routes"]),
        page("explain", &format!("/dashboard/explain?url=http://{host}/api/items"), &[]),
        page("drops", "/dashboard/drops", &["drops"]),
        page("workers", "/dashboard/workers", &["workers"]),
        page("configuration", "/dashboard/configuration", &["problems", "changes"]),
        page("certificates", "/dashboard/certificates", &["certificates"]),
    ]
}

/// Returns all pages of a product with few hosts.
pub fn of_few() -> Vec<Page> {
    all(objects::SHOP)
}
