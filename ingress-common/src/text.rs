//! Text in the keys and values of maps: ASCII, zero-padded. The element type is `i8`, which the build maps to C's
//! `char`, so that bpftool prints text instead of numbers.

use core::fmt::{Formatter, Result, Write as _};

/// Pads `text` with zeros to `N` bytes. Returns `None` if the text is not ASCII or leaves no room for a final zero.
pub(crate) fn padded<const N: usize>(text: &str) -> Option<[i8; N]> {
    let mut padded = [0; N];
    let (_zero, room) = padded.split_last_mut()?;
    let (room, _padding) = room.split_at_mut_checked(text.len())?;
    for (to, from) in room.iter_mut().zip(text.bytes()) {
        *to = i8::try_from(from).ok()?;
    }
    Some(padded)
}

/// Writes the text up to the first zero.
pub(crate) fn show(text: &[i8], f: &mut Formatter<'_>) -> Result {
    let mut text = text.iter().take_while(|&&byte| byte != 0);
    text.try_for_each(|byte| f.write_char(char::from(byte.cast_unsigned())))
}
