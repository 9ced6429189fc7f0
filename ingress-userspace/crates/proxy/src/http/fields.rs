//! Finds the request fields that the proxy itself uses, in one pass over all fields: looking up one missing field costs
//! as much as passing over five.

use http::{HeaderMap, HeaderName, HeaderValue, header};

/// The fields of a request, with those that the proxy uses.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'r> {
    headers: &'r HeaderMap,
    pub(crate) host: Field<'r>,
    pub(crate) transfer_encoding: Field<'r>,
    pub(crate) request_id: Field<'r>,
    has_via: bool,
    has_te: bool,
    /// Whether `Connection` contains more than `keep-alive` or `close`.
    nominates: bool,
}

/// A field that should occur at most once.
#[derive(Clone, Copy)]
pub(crate) enum Field<'r> {
    Absent,
    Once(&'r HeaderValue),
    Repeated,
}

impl<'r> Fields<'r> {
    pub(crate) fn of(headers: &'r HeaderMap) -> Self {
        let mut fields = Self {
            headers,
            host: Field::Absent,
            transfer_encoding: Field::Absent,
            request_id: Field::Absent,
            has_via: false,
            has_te: false,
            nominates: false,
        };
        for (name, value) in headers {
            match name.as_str() {
                "te" => fields.has_te = true,
                "via" => fields.has_via = true,
                "host" => fields.host.add(value),
                "connection" => fields.nominates |= !is_plain(value),
                "x-request-id" => fields.request_id.add(value),
                "transfer-encoding" => fields.transfer_encoding.add(value),
                _ => {}
            }
        }
        fields
    }

    /// Returns the values of `Via`, if any.
    pub(crate) fn via(&self) -> impl Iterator<Item = &'r HeaderValue> {
        self.values(self.has_via, header::VIA)
    }

    /// Returns the values of `TE`, if any.
    pub(crate) fn te(&self) -> impl Iterator<Item = &'r HeaderValue> {
        self.values(self.has_te, header::TE)
    }

    /// Returns the values of `Connection`, if they may name fields.
    pub(crate) fn nominating(&self) -> impl Iterator<Item = &'r HeaderValue> {
        self.values(self.nominates, header::CONNECTION)
    }

    fn values(&self, are_there: bool, name: HeaderName) -> impl Iterator<Item = &'r HeaderValue> {
        are_there.then(|| self.headers.get_all(name)).into_iter().flatten()
    }
}

impl<'r> Field<'r> {
    /// Looks up a single field.
    pub(crate) fn of(headers: &'r HeaderMap, name: &HeaderName) -> Self {
        let mut field = Self::Absent;
        headers.get_all(name).iter().for_each(|value| field.add(value));
        field
    }

    /// Returns the value if the field occurs exactly once; if it occurs twice, the values are ambiguous.
    pub(crate) fn once(self) -> Option<&'r HeaderValue> {
        match self {
            Self::Once(value) => Some(value),
            Self::Absent | Self::Repeated => None,
        }
    }

    fn add(&mut self, value: &'r HeaderValue) {
        *self = match self {
            Self::Absent => Self::Once(value),
            Self::Once(_) | Self::Repeated => Self::Repeated,
        };
    }
}

/// Returns whether the value of `Connection` is one of the two common options, which name no field.
fn is_plain(connection: &HeaderValue) -> bool {
    ["keep-alive", "close"].iter().any(|option| connection.as_bytes().eq_ignore_ascii_case(option.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined<'h>(values: impl Iterator<Item = &'h HeaderValue>) -> String {
        values.map(|value| value.to_str().expect("ascii")).collect::<Vec<_>>().join(" + ")
    }

    fn check(sent: &[(&'static str, &'static str)], expect: &str) {
        let mut headers = HeaderMap::new();
        for (name, value) in sent {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let fields = Fields::of(&headers);
        let alone = Field::of(&headers, &header::HOST);
        let single = |field: Field<'_>| match field {
            Field::Absent => "-".to_owned(),
            Field::Once(value) => joined([value].into_iter()),
            Field::Repeated => "repeated".to_owned(),
        };
        let seen = [
            single(fields.host),
            single(fields.transfer_encoding),
            single(fields.request_id),
            joined(fields.via()),
            joined(fields.te()),
            joined(fields.nominating()),
        ];
        assert_eq!(seen.join("|"), expect, "{sent:?}");
        assert_eq!(single(alone), seen[0], "{sent:?}");
    }

    #[test]
    fn fields_are_found_at_any_position_with_their_number() {
        check(&[], "-|-|-|||");
        check(&[("accept", "*/*"), ("x-host", "a"), ("cookie", "b")], "-|-|-|||");
        check(&[("host", "a"), ("x-request-id", "b"), ("transfer-encoding", "chunked")], "a|chunked|b|||");
        check(&[("host", "a"), ("host", "a"), ("x-a", "1")], "repeated|-|-|||");
        check(&[("host", "a"), ("host", "a"), ("host", "a")], "repeated|-|-|||");
        check(&[("transfer-encoding", "gzip"), ("transfer-encoding", "chunked")], "-|repeated|-|||");
        check(&[("x-request-id", ""), ("x-a", "1"), ("x-request-id", "")], "-|-|repeated|||");
        check(&[("via", "1.1 a"), ("te", "trailers"), ("via", "1.1 b")], "-|-|-|1.1 a + 1.1 b|trailers|");
    }

    #[test]
    fn connection_counts_only_if_it_nominates_fields() {
        for plain in ["close", "keep-alive", "Keep-Alive"] {
            check(&[("connection", plain)], "-|-|-|||");
        }
        for nominating in ["x-a", "close, x-a", "upgrade", ""] {
            check(&[("connection", nominating)], &format!("-|-|-|||{nominating}"));
        }
        check(&[("connection", "close"), ("connection", "x-a")], "-|-|-|||close + x-a");
    }
}
