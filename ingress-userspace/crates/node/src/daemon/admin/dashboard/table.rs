//! Parts of tables that several pages share. The script updates rows by `data-key` and computes rates of cells with
//! `data-rate` (the name of a counter, unique on the page) and `data-value` (its value).

use std::borrow::Cow;

use maud::{Markup, html};

use super::{
    ROWS,
    format::{bytes, count, path},
};
use crate::daemon::admin::{api::ApiError, query::Query};

/// A heading of a column.
pub(super) struct Column {
    label: Markup,
    /// Whether the column has numbers, which are aligned on the right.
    is_number: bool,
    sort: Option<&'static str>,
}

/// Part of a list that a page shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rows {
    /// Number of the page, from 1.
    page: usize,
}

/// Returns the heading of a column of texts.
pub(super) fn text(label: &str) -> Column {
    Column { label: html! { (label) }, is_number: false, sort: None }
}

/// Returns the heading of a column of numbers.
pub(super) fn number(label: &str) -> Column {
    Column { label: html! { (label) }, is_number: true, sort: None }
}

/// Returns a table with a caption, in a region that scrolls by itself on narrow screens.
pub(super) fn table(id: &str, caption: &str, columns: &[Column], rows: &Markup) -> Markup {
    html! {
        div.scroll role="region" tabindex="0" aria-labelledby={ (id) "-caption" } {
            table id=(id) {
                caption id={ (id) "-caption" } { (caption) }
                thead {
                    tr {
                        @for Column { label, is_number, sort } in columns {
                            th.n[*is_number] scope="col" aria-sort=[*sort] { (label) }
                        }
                    }
                }
                tbody { (rows) }
            }
        }
    }
}

/// Returns a cell with a counter.
pub(super) fn counter(value: u64) -> Markup {
    html! { td.n { (count(value)) } }
}

/// Returns a cell that shows the rate of the counter `key` per second.
pub(super) fn rate(key: &str, value: u64) -> Markup {
    html! { td.n data-rate=(key) data-value=(value) { "–" } }
}

/// Returns a cell that shows the rate of the counter `key` in bytes per second.
pub(super) fn byte_rate(key: &str, value: u64) -> Markup {
    html! { td.n data-rate=(key) data-value=(value) data-unit="bytes" { "–" } }
}

/// Returns a cell with a number of bytes.
pub(super) fn byte_count(value: u64) -> Markup {
    html! { td.n { (bytes(value)) } }
}

/// Returns a line that shows the last minute of the rate of the counter `key`. The rate itself is shown elsewhere, so
/// the line is hidden from screen readers.
pub(super) fn spark(key: &str) -> Markup {
    html! {
        svg.spark data-spark=(key) viewBox="0 0 60 16" preserveAspectRatio="none" width="90" height="20"
            aria-hidden="true" focusable="false" {
            polyline points="" {}
        }
    }
}

/// Returns a row that says that there is nothing to list.
pub(super) fn empty(columns: &[Column], message: &str) -> Markup {
    html! { tr data-key="-" { td.empty colspan=(columns.len()) { (message) } } }
}

// === impl Column ===

impl Column {
    /// Returns the column with a link that sorts the list. `is_current` says whether the list is sorted so.
    pub(super) fn sorted(self, href: &str, is_current: bool, order: &'static str) -> Self {
        let label = html! { a href=(href) { (self.label) } };
        Self { label, sort: is_current.then_some(order), ..self }
    }
}

// === impl Rows ===

impl Rows {
    /// Returns the part that the parameter `page` names, the first by default.
    ///
    /// # Errors
    /// Fails if it is no number from 1 on.
    pub(super) fn of(query: &Query) -> Result<Self, ApiError> {
        match query.number("page")? {
            None => Ok(Self { page: 1 }),
            Some(0) => Err(ApiError::Parameter("`page` is 0; the first page is 1".to_owned())),
            Some(page) => Ok(Self { page }),
        }
    }

    /// Returns the number of items before the part.
    pub(super) fn offset(self) -> usize {
        (self.page - 1).saturating_mul(ROWS)
    }

    /// Returns the items of the part.
    pub(super) fn cut<T>(self, items: impl Iterator<Item = T>) -> impl Iterator<Item = T> {
        items.skip(self.offset()).take(ROWS)
    }

    /// Returns links to the other parts of a list of `total` items, and the position in it. `page` and `parameters`
    /// are those of the present page, apart from its number.
    pub(super) fn pager(self, total: usize, page: &str, parameters: &[(&str, Cow<'_, str>)]) -> Markup {
        let last = total.div_ceil(ROWS).max(1);
        let link = |number: usize| {
            let number = if number == 1 { Cow::default() } else { number.to_string().into() };
            path(page, &[parameters, &[("page", number)]].concat())
        };
        let (from, to) = (self.offset().saturating_add(1), self.offset().saturating_add(ROWS).min(total));
        html! {
            nav.pager aria-label="Parts of the list" {
                @if total == 0 {
                    p { "0 entries" }
                } @else if from > total {
                    p { "The list has only " (count(total as u64)) " entries." }
                } @else {
                    p { (count(from as u64)) "–" (count(to as u64)) " of " (count(total as u64)) }
                }
                @if self.page > 1 {
                    a href=(link(1)) { "First" }
                    a rel="prev" href=(link((self.page - 1).min(last))) { "Previous" }
                }
                @if self.page < last {
                    a rel="next" href=(link(self.page + 1)) { "Next" }
                    a href=(link(last)) { "Last" }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(query: &str) -> Result<Rows, String> {
        Query::parse(query, &["page"]).and_then(|query| Rows::of(&query)).map_err(|error| error.to_string())
    }

    #[test]
    fn parts_begin_at_one() {
        assert_eq!(rows("").map(Rows::offset), Ok(0));
        assert_eq!(rows("page=3").map(Rows::offset), Ok(400));
        assert_eq!(rows("page=18446744073709551615").map(Rows::offset), Ok(usize::MAX));
        for wrong in ["page=0", "page=-1", "page=x"] {
            assert!(rows(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_list_links_to_its_other_parts() {
        let text = |query: &str, total| {
            rows(query).expect("valid").pager(total, "hosts", &[("name", "a b".into())]).into_string()
        };
        assert!(text("", 200).contains("1–200 of 200") && !text("", 200).contains("href"));
        let middle = text("page=2", 10_000);
        for link in ["?name=a+b\"", "?name=a+b&amp;page=3\"", "?name=a+b&amp;page=50\"", "201–400 of 10,000"] {
            assert!(middle.contains(link), "{link}: {middle}");
        }
        assert!(text("page=9", 10).contains("only 10 entries") && !text("page=9", 10).contains("Next"));
        assert!(text("page=18446744073709551615", 10).contains("only 10 entries"));
        assert!(text("", 0).contains("0 entries"));
    }
}
