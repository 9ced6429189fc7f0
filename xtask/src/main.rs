//! The one door to building and testing.
fn main() {}
