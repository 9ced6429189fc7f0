//! Checksums on links of veth pairs. A veth interface leaves them to the receiver, as if a NIC filled them in, and `XDP_TX`
//! sends a frame on as it arrived. On a wire, each frame has its checksum.

use std::io;

use anyhow::{Context as _, ensure};
use ingress_lab::Namespace;
use rtnetlink::sys::{Socket, SocketAddr, protocols::NETLINK_GENERIC};

// Numbers of `include/uapi/linux`: `netlink.h`, `genetlink.h`, `ethtool_netlink.h`.
const REQUEST_WITH_ACK: u16 = 1 | 4;
const NLMSG_ERROR: u16 = 2;
const NESTED: u16 = 1 << 15;
const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const FEATURES_SET: u8 = 12;
/// Bytes of the headers of netlink and of its generic families.
const HEADERS: usize = 16 + 4;

/// Makes an interface fill in the checksums of all frames that it sends (`ethtool -K INTERFACE tx-checksum-ip-generic off`).
pub(crate) fn fill_in_checksums(namespace: &Namespace, interface: &str) -> anyhow::Result<()> {
    namespace.run(|| {
        let mut socket = Socket::new(NETLINK_GENERIC).context("cannot open a netlink socket")?;
        socket.bind_auto().context("cannot bind it")?;
        socket.connect(&SocketAddr::new(0, 0)).context("cannot connect it")?;
        let name = attribute(CTRL_ATTR_FAMILY_NAME, b"ethtool\0");
        let family =
            ask(&socket, GENL_ID_CTRL, CTRL_CMD_GETFAMILY, &name).context("the kernel has no ethtool family")?;
        let family = number(&family, CTRL_ATTR_FAMILY_ID).context("the family has no number")?;
        let device = attribute(2, &[interface.as_bytes(), b"\0"].concat());
        let bit = attribute(1 | NESTED, &attribute(2, b"tx-checksum-ip-generic\0"));
        let wanted = attribute(3 | NESTED, &attribute(3 | NESTED, &bit));
        let features = [attribute(1 | NESTED, &device), wanted].concat();
        ask(&socket, family, FEATURES_SET, &features)
            .with_context(|| format!("cannot set features of `{interface}`"))?;
        Ok(())
    })
}

fn attribute(kind: u16, content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + content.len()).expect("short");
    let mut bytes = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), content].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Returns the number in the attribute of this kind.
fn number(mut attributes: &[u8], kind: u16) -> Option<u16> {
    while let &[a, b, c, d, ref rest @ ..] = attributes {
        let length = usize::from(u16::from_ne_bytes([a, b])).checked_sub(4)?;
        if u16::from_ne_bytes([c, d]) == kind {
            return Some(u16::from_ne_bytes([*rest.first()?, *rest.get(1)?]));
        }
        attributes = rest.get(length.next_multiple_of(4)..)?;
    }
    None
}

/// Sends a request, and returns the attributes of its answer once the kernel has confirmed it.
fn ask(socket: &Socket, family: u16, command: u8, attributes: &[u8]) -> anyhow::Result<Vec<u8>> {
    let length = u32::try_from(HEADERS + attributes.len())?;
    let (length, family, flags) = (length.to_ne_bytes(), family.to_ne_bytes(), REQUEST_WITH_ACK.to_ne_bytes());
    let message = [&length[..], &family, &flags, &[0; 8], &[command, 1, 0, 0], attributes].concat();
    socket.send(&message, 0).context("cannot send")?;
    let mut content = Vec::new();
    loop {
        let (answer, _) = socket.recv_from_full().context("cannot receive")?;
        ensure!(answer.len() >= HEADERS, "an answer of {} bytes", answer.len());
        if u16::from_ne_bytes([answer[4], answer[5]]) != NLMSG_ERROR {
            content = answer[HEADERS..].to_vec();
            continue;
        }
        let code = i32::from_ne_bytes([answer[16], answer[17], answer[18], answer[19]]);
        ensure!(code == 0, "{}", io::Error::from_raw_os_error(-code));
        return Ok(content);
    }
}
