//! Questions to rtnetlink: the XDP programs of an interface by their mode, which a link does not tell, and the program of
//! a filter. They change nothing and need no capability.

use std::{
    io,
    os::fd::{AsRawFd as _, RawFd},
};

use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};

/// The XDP programs of an interface by the kernel's number; 0 stands for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct XdpPrograms {
    pub(super) driver: u32,
    pub(super) stack: u32,
}

/// Place of a filter, as in `struct tcmsg`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FilterPlace {
    pub(super) index: u32,
    pub(super) parent: u32,
    pub(super) priority: u16,
    pub(super) handle: u32,
}

/// Bytes of `struct nlmsghdr`, and of an attribute's header.
const HEADER: usize = 16;
const ATTRIBUTE: usize = 4;
/// Bytes of `struct ifinfomsg` and `struct tcmsg`.
const IFINFO: usize = 16;
const TCMSG: usize = 20;
/// Bits of an attribute's type without its flags.
const TYPE: u16 = 0x3fff;
/// Room for an answer; those about one interface have some 2 KiB.
const ANSWER: usize = 1 << 16;

const IFLA_XDP_DRV_PROG_ID: u16 = 5;
const IFLA_XDP_SKB_PROG_ID: u16 = 6;
const TCA_OPTIONS: u16 = 2;
const TCA_BPF_ID: u16 = 11;
/// Filters for packets of any protocol, in network byte order.
const ANY_PROTOCOL: u16 = (libc::ETH_P_ALL as u16).to_be();

/// Returns the XDP programs of an interface of this network namespace.
///
/// # Errors
/// Fails with `ENODEV` if there is no such interface.
pub(super) fn xdp_programs(index: u32) -> io::Result<XdpPrograms> {
    let body = [0, index, 0, 0].map(u32::to_ne_bytes);
    let answer = ask(libc::RTM_GETLINK, body.as_flattened())?;
    let xdp = answer.get(IFINFO..).and_then(|attributes| attribute(attributes, libc::IFLA_XDP));
    let program = |kind| xdp.and_then(|xdp| number(xdp, kind)).unwrap_or(0);
    Ok(XdpPrograms { driver: program(IFLA_XDP_DRV_PROG_ID), stack: program(IFLA_XDP_SKB_PROG_ID) })
}

/// Returns the number of the program in a filter of this network namespace; `None` if there is no such filter.
pub(super) fn filter_program(FilterPlace { index, parent, priority, handle }: FilterPlace) -> io::Result<Option<u32>> {
    let info = u32::from(priority) << 16 | u32::from(ANY_PROTOCOL);
    let body = [0, index, handle, parent, info].map(u32::to_ne_bytes);
    let answer = match ask(libc::RTM_GETTFILTER, body.as_flattened()) {
        // EINVAL: no qdisc, or one without filters.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINVAL | libc::ENODEV)) => {
            return Ok(None);
        }
        answer => answer?,
    };
    let options = answer.get(TCMSG..).and_then(|attributes| attribute(attributes, TCA_OPTIONS));
    Ok(options.and_then(|options| number(options, TCA_BPF_ID)))
}

/// Asks the kernel about one object. Returns the answer without its header.
fn ask(kind: u16, body: &[u8]) -> io::Result<Vec<u8>> {
    let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkRoute)?;
    let length = u32::try_from(HEADER + body.len()).map_err(io::Error::other)?;
    let (flags, sequence, sender) = (libc::NLM_F_REQUEST as u16, 1_u32, 0_u32);
    let mut question = Vec::with_capacity(HEADER + body.len());
    question.extend_from_slice(&length.to_ne_bytes());
    question.extend_from_slice(&kind.to_ne_bytes());
    question.extend_from_slice(&flags.to_ne_bytes());
    question.extend_from_slice(&sequence.to_ne_bytes());
    question.extend_from_slice(&sender.to_ne_bytes());
    question.extend_from_slice(body);
    send(socket.as_raw_fd(), &question, MsgFlags::empty())?;
    receive(socket.as_raw_fd())
}

fn receive(socket: RawFd) -> io::Result<Vec<u8>> {
    let mut answer = vec![0; ANSWER];
    // The kernel has answered within the system call that asked.
    let length = recv(socket, &mut answer, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_TRUNC)?;
    if length > answer.len() {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    answer.truncate(length);
    body(&answer).map(<[u8]>::to_vec)
}

/// Returns the body of a message.
///
/// # Errors
/// Returns the kernel's error if the message has one.
fn body(message: &[u8]) -> io::Result<&[u8]> {
    let (header, body) = message.split_first_chunk::<HEADER>().ok_or(io::ErrorKind::UnexpectedEof)?;
    let [.., kind_0, kind_1, _, _, _, _, _, _, _, _, _, _] = *header;
    if i32::from(u16::from_ne_bytes([kind_0, kind_1])) != libc::NLMSG_ERROR {
        return Ok(body);
    }
    let error = body.first_chunk().ok_or(io::ErrorKind::UnexpectedEof)?;
    Err(io::Error::from_raw_os_error(i32::from_ne_bytes(*error).saturating_neg()))
}

/// Returns the content of the first attribute of this type.
fn attribute(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    while let Some(&[length_0, length_1, kind_0, kind_1]) = attributes.first_chunk() {
        let length = usize::from(u16::from_ne_bytes([length_0, length_1]));
        let content = attributes.get(ATTRIBUTE..length)?;
        if u16::from_ne_bytes([kind_0, kind_1]) & TYPE == wanted {
            return Some(content);
        }
        attributes = attributes.get(length.next_multiple_of(ATTRIBUTE)..)?;
    }
    None
}

/// Returns the number in the first attribute of this type.
fn number(attributes: &[u8], wanted: u16) -> Option<u32> {
    attribute(attributes, wanted)?.first_chunk().map(|number| u32::from_ne_bytes(*number))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encoded(kind: u16, content: &[u8]) -> Vec<u8> {
        let length = u16::try_from(ATTRIBUTE + content.len()).expect("short");
        let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend_from_slice(content);
        bytes.resize(bytes.len().next_multiple_of(ATTRIBUTE), 0);
        bytes
    }

    #[test]
    fn an_attribute_is_found_behind_others_and_within_others() {
        let inner = [encoded(2, &[1]), encoded(IFLA_XDP_DRV_PROG_ID, &77_u32.to_ne_bytes())].concat();
        // With the flag of nested attributes.
        let outer = [encoded(3, b"eth0\0"), encoded(libc::IFLA_XDP | 0x8000, &inner)].concat();
        let xdp = attribute(&outer, libc::IFLA_XDP).expect("there");
        assert_eq!(number(xdp, IFLA_XDP_DRV_PROG_ID), Some(77));
        assert_eq!(number(xdp, IFLA_XDP_SKB_PROG_ID), None);
        assert_eq!(number(xdp, 2), None, "one byte is no number");
    }

    #[test]
    fn an_error_of_the_kernel_is_an_error() {
        let refusal = [&[0; 4][..], &2_u16.to_ne_bytes(), &[0; 10], &(-libc::ENODEV).to_ne_bytes()].concat();
        assert_eq!(body(&refusal).expect_err("refused").raw_os_error(), Some(libc::ENODEV));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_within_bounds(bytes in proptest::collection::vec(any::<u8>(), 0..64), kind in 0_u16..4) {
            let found = attribute(&bytes, kind).map_or(0, <[u8]>::len);
            prop_assert!(found + ATTRIBUTE <= bytes.len() || found == 0);
            let _error = body(&bytes).is_err();
        }
    }

    #[test]
    fn a_missing_interface_is_an_error_and_loopback_has_no_program() {
        assert_eq!(xdp_programs(u32::MAX >> 1).expect_err("there is none").raw_os_error(), Some(libc::ENODEV));
        let place = FilterPlace { index: u32::MAX >> 1, parent: 0xffff_fff2, priority: 1, handle: 1 };
        assert_eq!(filter_program(place).expect("an answer"), None);
    }
}
