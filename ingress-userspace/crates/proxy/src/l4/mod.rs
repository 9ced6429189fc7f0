//! Traffic that is forwarded without HTTP: TCP streams and UDP datagrams, and the kernel pipes of `splice(2)`.

pub(crate) mod pipe;
pub mod tcp;
pub(crate) mod udp;
