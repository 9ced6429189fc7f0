//! The program of the container that holds a pod's namespaces: it waits until it is killed, and does nothing else.
//!
//! `cargo xtask cluster` compiles this file by itself, without any library but the standard one, so that the program
//! is static and small.

fn main() {
    loop {
        std::thread::park();
    }
}
