//! Redirects of clients to another URL. The URL is not rendered here.

use super::Template;

/// Redirects the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// Status: 301, 302, 303, 307 or 308.
    pub status: u16,
    /// URI, or a path on the same host.
    pub location: Template,
}
