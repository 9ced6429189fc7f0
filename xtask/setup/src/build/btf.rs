//! Adds to the BTF of the kernel programs the one type that Rust cannot express: `char`, by which bpftool recognises
//! text.
//!
//! bpftool prints an array as a string only if its elements are a one-byte integer called `char` (`is_str_array` in its
//! btf_dumper.c); Rust calls its one-byte integers `i8` and `u8`. Host names are declared as `i8` and no other data is,
//! so this module renames that type. Without the renaming everything works, but host names print as numbers.

use anyhow::{Context, Result, bail, ensure};

/// Part of the build's stamp; must change whenever [`name_chars`] does.
pub(super) const VERSION: &str = "btf: i8 is char";

const FROM: &[u8] = b"i8";
const TO: &[u8] = b"char\0";

/// Returns `elf` with the integer type `i8` of its section `.BTF` renamed to `char`.
///
/// # Errors
/// Fails if `elf` is not a 64-bit little-endian ELF file with BTF.
pub(super) fn name_chars(elf: &[u8]) -> Result<Vec<u8>> {
    ensure!(elf.starts_with(b"\x7fELF\x02\x01"), "not a 64-bit little-endian ELF file");
    let header =
        section_header(elf, b".BTF")?.context("the object has no section `.BTF`; was it linked with `--btf`?")?;
    // sh_offset and sh_size (ELF-64 object file format, section header).
    let (offset, size) = (word64(elf, header + 24)?, word64(elf, header + 32)?);
    let btf = elf.get(offset..offset + size).context("section `.BTF` lies outside of the file")?;
    let renamed = rename(btf)?;
    // The section has grown, so it moves to the end; only its header refers to its position.
    let mut out = elf.to_vec();
    out.resize(out.len().next_multiple_of(8), 0);
    let moved = out.len() as u64;
    out.extend_from_slice(&renamed);
    out[header + 24..header + 32].copy_from_slice(&moved.to_le_bytes());
    out[header + 32..header + 40].copy_from_slice(&(renamed.len() as u64).to_le_bytes());
    Ok(out)
}

/// Returns the offset of the header of the section with this name.
fn section_header(elf: &[u8], name: &[u8]) -> Result<Option<usize>> {
    // e_shoff, e_shentsize, e_shnum, e_shstrndx.
    let (table, entry, count, names) = (word64(elf, 40)?, word16(elf, 58)?, word16(elf, 60)?, word16(elf, 62)?);
    let names = word64(elf, table + names * entry + 24)?;
    for header in (0..count).map(|index| table + index * entry) {
        let at = names + word32(elf, header)?;
        if elf.get(at..).and_then(|rest| rest.split(|&byte| byte == 0).next()) == Some(name) {
            return Ok(Some(header));
        }
    }
    Ok(None)
}

/// Returns the same BTF (Documentation/bpf/btf.rst of the kernel) with `char` appended to its strings and used in place
/// of `i8`.
fn rename(btf: &[u8]) -> Result<Vec<u8>> {
    ensure!(word16(btf, 0)? == 0xeb9f, "section `.BTF` does not begin with BTF's magic number");
    let header = word32(btf, 4)?;
    let types = header + word32(btf, 8)?;
    let types_end = types + word32(btf, 12)?;
    let strings = header + word32(btf, 16)?;
    let length = word32(btf, 20)?;
    ensure!(strings + length == btf.len(), "the strings are not the last part of section `.BTF`");
    let mut out = btf.to_vec();
    out.extend_from_slice(TO);
    let name = u32::try_from(length)?;
    out[20..24].copy_from_slice(&(name + u32::try_from(TO.len())?).to_le_bytes());
    let mut at = types;
    while at < types_end {
        let (name_at, info) = (strings + word32(btf, at)?, word32(btf, at + 4)?);
        let (kind, count) = ((info >> 24) & 0x1f, info & 0xffff);
        if kind == 1 && btf.get(name_at..).and_then(|rest| rest.split(|&byte| byte == 0).next()) == Some(FROM) {
            out[at..at + 4].copy_from_slice(&name.to_le_bytes());
        }
        at += 12 + trailing(kind, count)?;
    }
    Ok(out)
}

/// Returns the number of bytes after the common part of a type.
fn trailing(kind: usize, count: usize) -> Result<usize> {
    Ok(match kind {
        1 | 14 | 17 => 4,
        2 | 7..=12 | 16 | 18 => 0,
        3 => 12,
        4 | 5 | 15 | 19 => count * 12,
        6 | 13 => count * 8,
        other => bail!("section `.BTF` holds a type of kind {other}, which is not known here"),
    })
}

fn bytes<const N: usize>(from: &[u8], at: usize) -> Result<[u8; N]> {
    let bytes = from.get(at..at + N).with_context(|| format!("the object ends before byte {}", at + N))?;
    Ok(bytes.try_into()?)
}

fn word16(from: &[u8], at: usize) -> Result<usize> {
    Ok(u16::from_le_bytes(bytes(from, at)?).into())
}

fn word32(from: &[u8], at: usize) -> Result<usize> {
    Ok(usize::try_from(u32::from_le_bytes(bytes(from, at)?))?)
}

fn word64(from: &[u8], at: usize) -> Result<usize> {
    Ok(usize::try_from(u64::from_le_bytes(bytes(from, at)?))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn only_the_integer_i8_is_renamed() {
        // Strings: "" at 0, "u8" at 1, "i8" at 4. Types: int u8, int i8, a pointer, a struct called i8.
        let types = words(&[
            1,
            1 << 24,
            1,
            8, // int u8
            4,
            1 << 24,
            1,
            8, // int i8
            0,
            2 << 24,
            1, // pointer
            4,
            (4 << 24) | 1,
            1,
            1,
            1,
            0, // struct i8 { u8 u8 }
        ]);
        let strings = b"\0u8\0i8\0";
        let length = u32::try_from(types.len()).expect("short");
        let mut btf = words(&[0x0001_eb9f, 24, 0, length, length, 7]);
        btf.extend_from_slice(&types);
        btf.extend_from_slice(strings);
        let renamed = rename(&btf).expect("renamed");
        let names = |at: usize| word32(&renamed, 24 + at).expect("a word");
        assert_eq!([names(0), names(16), names(32), names(44)], [1, 7, 0, 4]);
        assert!(renamed.ends_with(b"\0u8\0i8\0char\0"));
        assert_eq!(word32(&renamed, 20).expect("a word"), 12);
        assert!(rename(&btf[..30]).is_err());
    }

    #[test]
    fn files_that_are_no_objects_are_refused() {
        assert!(name_chars(b"#!/bin/sh").is_err());
        assert!(name_chars(b"\x7fELF\x02\x01").is_err());
    }
}
