//! A wait until a time that may never come.

/// Resolves at this time, or never if it is `None`.
pub(crate) async fn expiry(at: Option<tokio::time::Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
