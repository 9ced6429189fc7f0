//! Reads messages of HTTP/1, of either direction, off a connection.

use std::{io::Read, net::TcpStream};

/// Returns the first field of `name`, in a head in lower case.
pub(crate) fn header<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

/// Waits for more bytes; `false` if no more come.
pub(crate) fn fill(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> bool {
    let mut bytes = [0; 16 * 1024];
    match stream.read(&mut bytes) {
        Ok(count) => {
            buffer.extend_from_slice(&bytes[..count]);
            count > 0
        }
        Err(_) => false,
    }
}

/// Reads a head, in lower case.
pub(crate) fn read_head(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<String> {
    read_raw_head(stream, buffer).map(|head| head.to_lowercase())
}

/// Reads a head as it was sent.
pub(crate) fn read_raw_head(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<String> {
    loop {
        if let Some(end) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = buffer.drain(..end + 4).collect();
            return Some(String::from_utf8(head).expect("text"));
        }
        if !fill(stream, buffer) {
            return None;
        }
    }
}

fn take(count: usize, stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<Vec<u8>> {
    while buffer.len() < count {
        if !fill(stream, buffer) {
            return None;
        }
    }
    Some(buffer.drain(..count).collect())
}

/// Reads a body without its framing; `status` is 0 for a request.
pub(crate) fn read_body(head: &str, status: u16, stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<Vec<u8>> {
    if let Some(length) = header(head, "content-length") {
        return take(length.parse().expect("a length"), stream, buffer);
    }
    if header(head, "transfer-encoding").is_none() {
        let bodiless = status == 204 || status == 304;
        assert!(bodiless || !head.starts_with("http/"), "response without a length: {head}");
        return Some(Vec::new());
    }
    let mut body = Vec::new();
    loop {
        let line = read_line(stream, buffer)?;
        let size = usize::from_str_radix(std::str::from_utf8(&line).expect("text").trim(), 16).expect("a chunk size");
        if size == 0 {
            // Trailers, to the empty line.
            while !read_line(stream, buffer)?.trim_ascii().is_empty() {}
            return Some(body);
        }
        let chunk = take(size + 2, stream, buffer)?;
        body.extend_from_slice(&chunk[..size]);
    }
}

fn read_line(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<Vec<u8>> {
    loop {
        if let Some(end) = buffer.iter().position(|&byte| byte == b'\n') {
            return Some(buffer.drain(..=end).collect());
        }
        if !fill(stream, buffer) {
            return None;
        }
    }
}
