//! SETTINGS: the parser for the peer's, and the bytes of ours (RFC 9114, 7.2.4; RFC 9204, 5).

use bytes::{BufMut, Bytes, BytesMut};

use crate::{
    control,
    error::{Code, Error},
    frame, varint,
};

/// `SETTINGS_QPACK_MAX_TABLE_CAPACITY` (RFC 9204, 5).
const QPACK_MAX_TABLE_CAPACITY: u64 = 0x1;
/// `SETTINGS_MAX_FIELD_SECTION_SIZE` (RFC 9114, 7.2.4.1).
const MAX_FIELD_SECTION_SIZE: u64 = 0x6;
/// `SETTINGS_QPACK_BLOCKED_STREAMS` (RFC 9204, 5).
const QPACK_BLOCKED_STREAMS: u64 = 0x7;
/// `SETTINGS_ENABLE_CONNECT_PROTOCOL` (RFC 9220, 3).
const ENABLE_CONNECT_PROTOCOL: u64 = 0x8;
/// `SETTINGS_H3_DATAGRAM` (RFC 9297, 2.1.1).
const H3_DATAGRAM: u64 = 0x33;

/// Greatest number of settings that are read; browsers send fewer than ten.
const SETTINGS_MAX: usize = 64;

/// The peer's settings. Absent ones have their defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Largest field section that the peer takes, as [`section::size`](crate::section::size) counts; `None` is
    /// unlimited.
    pub max_field_section_size: Option<u64>,
    /// Largest dynamic table of the peer's decoder, in bytes; 0 by default. We use none.
    pub qpack_max_table_capacity: u64,
    /// Greatest number of streams that may wait for the peer's dynamic table; 0 by default. We let none wait.
    pub qpack_blocked_streams: u64,
    /// Whether the peer knows extended CONNECT. It says little of a client.
    pub enable_connect_protocol: bool,
    /// Whether the peer wants datagrams. We send none.
    pub datagrams: bool,
}

impl Settings {
    /// Parses the payload of SETTINGS.
    ///
    /// # Errors
    /// All end the connection: `H3_SETTINGS_ERROR` for settings of HTTP/2, repeated ones and values out of range,
    /// `H3_FRAME_ERROR` for a truncated payload, `H3_EXCESSIVE_LOAD` for more than 64 settings.
    pub fn parse(mut payload: &[u8]) -> Result<Self, Error> {
        let mut settings = Self::default();
        let mut seen = Vec::new();
        while !payload.is_empty() {
            let (id, value) = (take(&mut payload)?, take(&mut payload)?);
            if seen.contains(&id) {
                return Err(Error::connection(Code::SettingsError, "a setting is repeated"));
            }
            if seen.len() == SETTINGS_MAX {
                return Err(Error::connection(Code::ExcessiveLoad, "too many settings"));
            }
            seen.push(id);
            match id {
                QPACK_MAX_TABLE_CAPACITY => settings.qpack_max_table_capacity = value,
                MAX_FIELD_SECTION_SIZE => settings.max_field_section_size = Some(value),
                QPACK_BLOCKED_STREAMS => settings.qpack_blocked_streams = value,
                ENABLE_CONNECT_PROTOCOL => settings.enable_connect_protocol = switch(value)?,
                H3_DATAGRAM => settings.datagrams = switch(value)?,
                0x0 | 0x2..=0x5 => return Err(Error::connection(Code::SettingsError, "a setting of HTTP/2")),
                _ => {}
            }
        }
        Ok(settings)
    }
}

fn take(payload: &mut &[u8]) -> Result<u64, Error> {
    let truncated = Error::connection(Code::FrameError, "SETTINGS ends within a setting");
    let (value, length) = varint::read(payload).ok_or(truncated)?;
    *payload = &payload[length..];
    Ok(value)
}

fn switch(value: u64) -> Result<bool, Error> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Error::connection(Code::SettingsError, "a setting is neither 0 nor 1")),
    }
}

/// Our settings. The capacity of QPACK's dynamic table is always 0, which is the default and not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local {
    /// Largest field section that we take. Give [`section::request`](crate::section::request) the same number.
    pub max_field_section_size: u64,
    /// Whether clients may send extended CONNECT (RFC 9220), for WebSockets.
    pub connect_protocol: bool,
}

impl Local {
    /// Returns the beginning of our control stream: its type, SETTINGS, and a frame that peers must ignore. `grease` is
    /// random; it chooses the reserved setting and frame (RFC 9114, 7.2.4.1 and 7.2.8).
    #[must_use]
    pub fn control_stream(&self, grease: u64) -> Bytes {
        let Self { max_field_section_size, connect_protocol } = *self;
        let mut payload = BytesMut::with_capacity(32);
        let mut set = |id, value| {
            varint::write(id, &mut payload);
            varint::write(value, &mut payload);
        };
        set(MAX_FIELD_SECTION_SIZE, max_field_section_size);
        if connect_protocol {
            set(ENABLE_CONNECT_PROTOCOL, 1);
        }
        set(reserved(grease), grease & 0xff);
        let mut out = BytesMut::with_capacity(payload.len() + 16);
        varint::write(control::CONTROL, &mut out);
        frame::write_head(frame::SETTINGS, payload.len() as u64, &mut out);
        out.put_slice(&payload);
        frame::write_head(reserved(grease >> 32), 0, &mut out);
        out.freeze()
    }
}

/// Returns a number that is reserved for frames, settings and streams without effect.
fn reserved(grease: u64) -> u64 {
    0x1f * (grease & 0xff_ffff) + 0x21
}
