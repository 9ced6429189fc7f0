//! Priorities of requests (RFC 9218): the `Priority` field and the value of PRIORITY_UPDATE.

use http::HeaderMap;

/// The priority of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priority {
    /// From 0, the most urgent, to 7; 3 by default.
    pub urgency: u8,
    /// Whether the client uses the response as it arrives; `false` by default.
    pub incremental: bool,
}

impl Default for Priority {
    fn default() -> Self {
        Self { urgency: 3, incremental: false }
    }
}

impl Priority {
    /// Returns the priority in the `Priority` field of a request, or the default.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Self {
        let mut priority = Self::default();
        headers.get_all("priority").iter().for_each(|value| priority.apply(value.as_bytes()));
        priority
    }

    /// Returns the priority that `value` describes. Members that are unknown, invalid or out of range have no effect
    /// (RFC 9218, 4).
    #[must_use]
    pub fn parse(value: &[u8]) -> Self {
        let mut priority = Self::default();
        priority.apply(value);
        priority
    }

    /// Takes over the members `u` and `i` of a dictionary (RFC 9651, 3.2). Commas within strings of unknown members may
    /// split these; their parts are unknown members again, unless they are made to look like ours.
    fn apply(&mut self, value: &[u8]) {
        for member in value.split(|byte| *byte == b',') {
            let member = member.trim_ascii();
            let bare = member.split(|byte| *byte == b';').next().unwrap_or_default();
            match bare.trim_ascii_end() {
                [b'u', b'=', digit @ b'0'..=b'7'] => self.urgency = digit - b'0',
                b"i" | b"i=?1" => self.incremental = true,
                b"i=?0" => self.incremental = false,
                _ => {}
            }
        }
    }
}
