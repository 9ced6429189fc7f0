//! Permission for aya to copy the ABI structs to and from the kernel as plain bytes.

use crate::{
    Alive, Bucket, ClientEntry, ClientKey, DenialKey, DenialValue, DenyKey4, DenyKey6, Flow, FlowKey, Handoff,
    HandoffEntry, HostL7, HostName, HostNet, LimitBuckets, Move, MoveKey, Nic, NicMac, NicNet, NodeAddr, PortKey,
    PortRule, QuicState, Share, SynCookies, SynFlood, SynStamp, Traffic, WorkerLoad,
};

macro_rules! pod {
    ($($abi:ty),* $(,)?) => {$(
        // SAFETY: the struct is `repr(C)` and made of integers and integer arrays only. Every byte is initialised,
        // because padding is a named field (the size assertion beside the struct proves that no other padding exists),
        // and any bit pattern is a valid value.
        unsafe impl aya::Pod for $abi {}
    )*};
}

pod!(
    Alive,
    Bucket,
    ClientEntry,
    ClientKey,
    DenialValue,
    DenialKey,
    DenyKey4,
    DenyKey6,
    Flow,
    FlowKey,
    Handoff,
    HandoffEntry,
    HostL7,
    HostName,
    HostNet,
    LimitBuckets,
    Move,
    MoveKey,
    Nic,
    NicMac,
    NicNet,
    NodeAddr,
    PortKey,
    PortRule,
    QuicState,
    Share,
    SynCookies,
    SynFlood,
    SynStamp,
    Traffic,
    WorkerLoad,
);
