//! Laws of the embedded object.

use ::object::{File, Object as _, ObjectSection as _, ObjectSymbol as _, SymbolKind};

use super::*;

#[test]
fn the_program_variant_depends_on_the_kernel_version() {
    for (version, expected) in [
        (Some(KernelVersion::new(5, 9, 0)), ["ingress_xdp_linear", "ingress_lookup_blind"]),
        (Some(KernelVersion::new(5, 17, 0)), ["ingress_xdp_linear", "ingress_lookup_blind"]),
        (Some(KernelVersion::new(5, 18, 0)), ["ingress_xdp", "ingress_lookup"]),
        (Some(KernelVersion::new(7, 0, 0)), ["ingress_xdp", "ingress_lookup"]),
        (None, ["ingress_xdp", "ingress_lookup"]),
    ] {
        let variant = Variant::of(version);
        assert_eq!([variant.xdp(), variant.lookup()], expected, "{version:?}");
    }
}

/// Size of the stack of a program and of all that it calls (`MAX_BPF_STACK`).
const STACK: u32 = 512;
/// Unit of a frame in kernels before 6.9, which round each up, an empty one too (`check_max_stack_depth`).
const FRAME_UNIT: u32 = 32;

#[derive(Debug)]
struct Function<'o> {
    name: &'o str,
    /// Whether it is no program, but called by some.
    is_called: bool,
    /// Bytes of the stack, rounded.
    frame: u32,
    calls: bool,
}

/// Returns the bytes of the stack that a function uses, and whether it calls another.
fn depth_of(code: &[u8]) -> (u32, bool) {
    const STACK_POINTER: u8 = 10;
    let (mut depth, mut calls, mut copy) = (0, false, None);
    for instruction in code.chunks_exact(8) {
        let &[opcode, registers, low, high, ref immediate @ ..] = instruction else { unreachable!("eight bytes") };
        let (destination, source) = (registers & 15, registers >> 4);
        let offset = i32::from(i16::from_le_bytes([low, high]));
        let immediate = i32::from_le_bytes(immediate.try_into().expect("four bytes"));
        // Loads, stores, and sums that make an address from a copy of the stack pointer.
        let place = match opcode & 7 {
            1 if source == STACK_POINTER => offset,
            2 | 3 if destination == STACK_POINTER => offset,
            7 if opcode == 0x07 && copy == Some(destination) => immediate,
            _ => 0,
        };
        depth = depth.max(place.min(0).unsigned_abs());
        calls |= opcode == 0x85 && source == 1;
        copy = (opcode == 0xbf && source == STACK_POINTER).then_some(destination);
    }
    (depth, calls)
}

#[test]
fn programs_fit_into_the_stack_of_old_kernels() {
    let object = File::parse(OBJECT).expect("the kernel programs");
    let (called, programs): (Vec<Function<'_>>, Vec<Function<'_>>) = object
        .symbols()
        .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0)
        .map(|symbol| {
            let section = object.section_by_index(symbol.section_index().expect("a section")).expect("a section");
            let code = section.data_range(symbol.address(), symbol.size()).expect("readable").expect("within it");
            let (depth, calls) = depth_of(code);
            let (name, frame) = (symbol.name().expect("a name"), depth.max(1).next_multiple_of(FRAME_UNIT));
            Function { name, is_called: section.name() == Ok(".text"), frame, calls }
        })
        .partition(|function| function.is_called);
    // None of these calls another, so a call adds the largest of them.
    assert!(called.iter().all(|function| !function.calls), "{called:?}");
    let deepest = called.iter().map(|function| function.frame).max().unwrap_or(0);
    for name in [XDP_COOKIES, TC_IN, TC_OUT, REUSEPORT, BARE] {
        assert!(programs.iter().any(|program| program.name == name), "{name}: {programs:?}");
    }
    for Function { name, frame, calls, .. } in programs {
        let depth = frame + if calls { deepest } else { 0 };
        assert!(depth <= STACK, "{name}: {depth} bytes");
    }
}
