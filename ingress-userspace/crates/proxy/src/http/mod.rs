//! The parts of a request head: authority, path, fields that the proxy uses, and the client's address. Pure, except for
//! random request ids.

pub(crate) mod authority;
pub(crate) mod client_address;
pub(crate) mod fields;
pub(crate) mod headers;
pub(crate) mod request_id;
pub(crate) mod target;
pub(crate) mod via;
pub(crate) mod websocket;
