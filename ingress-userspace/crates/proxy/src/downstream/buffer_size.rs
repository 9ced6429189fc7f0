//! Sizes of the buffers towards clients.

/// Bytes read from a client at one time, once it has shown that it sends as many, and bytes queued for writing to it,
/// or for encryption, at one time. A body of 64 KiB, which programs are fond of, fits in with its head. With 64 KiB its
/// last bytes went separately, by a system call and, over TLS, in a record of their own.
pub(crate) const PIECE: usize = 80 * 1024;
