//! Parameters of requests to the API.

use std::{collections::BTreeMap, str::FromStr};

use super::api::ApiError;

/// Default and maximum number of items in a list.
const LIMIT: usize = 100;
const LIMIT_MAX: usize = 1000;

/// The parameters of a query, each given at most once.
#[derive(Debug, Default)]
pub(super) struct Query(BTreeMap<String, String>);

/// A part of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageRange {
    pub(super) offset: usize,
    pub(super) limit: usize,
}

impl Query {
    /// Parses a query with no other parameters than `known`.
    ///
    /// # Errors
    /// Fails for an unknown parameter, or one that is given twice.
    pub(super) fn parse(query: &str, known: &[&str]) -> Result<Self, ApiError> {
        let mut parameters = BTreeMap::new();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            if !known.contains(&&*name) {
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                return Err(ApiError::Parameter(format!("unknown parameter `{name}`; known here: {known}")));
            }
            if parameters.insert(name.clone().into_owned(), value.into_owned()).is_some() {
                return Err(ApiError::Parameter(format!("parameter `{name}` is given twice; give it once")));
            }
        }
        Ok(Self(parameters))
    }

    /// Returns a parameter with text.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|text| !text.is_empty())
    }

    /// Returns a parameter that must be given.
    ///
    /// # Errors
    /// Fails if it is missing or empty.
    pub(super) fn required(&self, name: &str) -> Result<&str, ApiError> {
        self.text(name).ok_or_else(|| ApiError::Parameter(format!("parameter `{name}` is missing")))
    }

    /// Returns the part of the list that `offset` (default 0) and `limit` (default 100) name.
    ///
    /// # Errors
    /// Fails if one of them is no number, or `limit` is not within 1 and 1,000.
    pub(super) fn page(&self) -> Result<PageRange, ApiError> {
        let offset = self.number("offset")?.unwrap_or(0);
        let limit = self.number("limit")?.unwrap_or(LIMIT);
        if !(1..=LIMIT_MAX).contains(&limit) {
            return Err(ApiError::Parameter(format!("`limit` is {limit}; give a number from 1 to {LIMIT_MAX}")));
        }
        Ok(PageRange { offset, limit })
    }

    /// Returns a parameter with a number.
    ///
    /// # Errors
    /// Fails if it is no number that fits.
    pub(super) fn number<N: FromStr>(&self, name: &str) -> Result<Option<N>, ApiError> {
        let wrong = |text: &str| ApiError::Parameter(format!("`{name}` is `{text}`, which is no number from 0 on"));
        self.text(name).map(|text| text.parse().map_err(|_invalid| wrong(text))).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(query: &str) -> Result<PageRange, String> {
        Query::parse(query, &["offset", "limit"]).and_then(|query| query.page()).map_err(|error| error.to_string())
    }

    #[test]
    fn pages_have_defaults_and_bounds() {
        assert_eq!(page(""), Ok(PageRange { offset: 0, limit: 100 }));
        assert_eq!(page("offset=5&limit=1000"), Ok(PageRange { offset: 5, limit: 1000 }));
        for (query, error) in [
            ("limit=0", "from 1 to 1000"),
            ("limit=1001", "from 1 to 1000"),
            ("limit=-1", "no number"),
            ("offset=x", "no number"),
            ("offset=1&offset=2", "given twice"),
            ("size=1", "unknown parameter `size`; known here: offset, limit"),
        ] {
            assert!(page(query).is_err_and(|text| text.contains(error)), "{query}");
        }
    }

    #[test]
    fn values_are_decoded() {
        let query = Query::parse("url=https%3A%2F%2Fa.test%2F%3Fx&host=", &["url", "host"]).expect("known parameters");
        assert_eq!((query.text("url"), query.text("host")), (Some("https://a.test/?x"), None));
        assert!(query.required("host").is_err());
    }
}
