//! The crypto provider of TLS connections, towards clients and endpoints.

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, aws_lc_rs};

/// Returns the one crypto provider of the process, named rather than taken from a global default.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}
