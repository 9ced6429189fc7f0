//! Text in the keys and values of maps: ASCII, zero-padded. `i8`, because the build tells bpftool that `i8` is C's
//! `char`, and so it prints the text and not its numbers.

use core::fmt::{Formatter, Result, Write as _};

/// `text` in `N` bytes; `None` if it is not ASCII, or no zero finds room behind it.
pub(crate) fn padded<const N: usize>(text: &str) -> Option<[i8; N]> {
    let mut padded = [0; N];
    let (_zero, room) = padded.split_last_mut()?;
    let (room, _padding) = room.split_at_mut_checked(text.len())?;
    for (to, from) in room.iter_mut().zip(text.bytes()) {
        *to = i8::try_from(from).ok()?;
    }
    Some(padded)
}

/// Writes what stands before the first zero.
pub(crate) fn show(text: &[i8], f: &mut Formatter<'_>) -> Result {
    let mut text = text.iter().take_while(|&&byte| byte != 0);
    text.try_for_each(|byte| f.write_char(char::from(byte.cast_unsigned())))
}
