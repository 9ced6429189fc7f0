//! Identity of sockets in the kernel.

use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd},
};

/// Returns the lower half of a socket's number in the kernel (`SO_COOKIE`): another socket has the same one only after
/// 2³² sockets.
pub(super) fn number(socket: BorrowedFd<'_>) -> io::Result<u32> {
    let mut cookie = 0_u64;
    let mut size = size_of_val(&cookie) as libc::socklen_t;
    // SAFETY: the kernel writes at most `size` bytes to `cookie`.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_COOKIE, (&raw mut cookie).cast(), &raw mut size)
    };
    if result == 0 { Ok(cookie as u32) } else { Err(io::Error::last_os_error()) }
}
