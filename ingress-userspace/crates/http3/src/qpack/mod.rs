//! QPACK (RFC 9204) with the static table alone. Field sections of the peer must not refer to a dynamic table, because
//! our settings give that a capacity of 0. Ours never do.

mod decode;
mod encode;
mod huffman;
mod table;

pub use decode::{Line, Lines};
pub use encode::{begin, write_line, write_status};

/// Bytes that each line adds to the size of a section, beside name and value (RFC 9114, 4.2.2).
pub const LINE_OVERHEAD: usize = 32;
