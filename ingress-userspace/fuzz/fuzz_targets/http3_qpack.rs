//! Field sections of QPACK from hostile bytes. The target checks that a section has no more than the permitted size, and
//! that its lines are read the same after they were written.
#![no_main]

use arbitrary::Arbitrary;
use bytes::{Bytes, BytesMut};
use ingress_http3::{
    Refusal,
    qpack::{LINE_OVERHEAD, Line, Lines, begin, write_line},
};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    max: u16,
    has_prefix: bool,
    section: &'a [u8],
}

fn read(section: Bytes, max: usize) -> Result<Vec<Line>, Refusal> {
    let (mut lines, mut read) = (Lines::new(section, max)?, Vec::new());
    while let Some(line) = lines.next()? {
        read.push(line);
    }
    Ok(read)
}

fuzz_target!(|input: Input<'_>| {
    let Input { max, has_prefix, section } = input;
    let section: Bytes = [if has_prefix { &[0, 0][..] } else { &[] }, section].concat().into();
    let Ok(lines) = read(section.clone(), max.into()) else { return };
    let size: usize = lines.iter().map(|line| line.name.len() + line.value.len() + LINE_OVERHEAD).sum();
    assert!(size <= max.into(), "{size}");
    // The limit is exact.
    assert_eq!(read(section.clone(), size).as_ref(), Ok(&lines));
    if let Some(less) = size.checked_sub(1) {
        assert_eq!(read(section, less), Err(Refusal::TooLarge));
    }
    let mut written = BytesMut::new();
    begin(&mut written);
    for Line { name, value, never_indexed } in &lines {
        let Ok(name) = str::from_utf8(name) else { return };
        write_line(name, value, *never_indexed, &mut written);
    }
    assert_eq!(read(written.freeze(), size), Ok(lines));
});
