//! Loads, attaches and reads the kernel programs.
