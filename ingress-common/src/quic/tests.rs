use super::*;

/// The key of the test vectors of SipHash: the bytes 0 to 15.
const KEY: SealKey = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
const NONCE: [u8; NONCE_LENGTH] = [0, 1, 2, 3, 4, 5, 6];

/// The seventh of the vectors published with SipHash (`vectors_sip64`).
#[test]
fn the_hash_is_siphash_2_4() {
    let [a, b, c, d, e, f, g] = NONCE;
    let nonce = u64::from_le_bytes([a, b, c, d, e, f, g, 0]);
    assert_eq!(siphash(&KEY, nonce).to_le_bytes(), [0x37, 0xd1, 0x01, 0x8b, 0xf5, 0x00, 0x02, 0xab]);
}

/// Other versions read these bytes: they never change.
#[test]
fn ids_have_the_frozen_layout() {
    const OF_NONE: ConnectionId = issue(0, &KEY, NONCE, Issuer::new(0, 0));
    const OF_SOME: ConnectionId = issue(2, &KEY, NONCE, Issuer::new(0x1234_5678, 0x2a));
    assert_eq!(OF_NONE, [0x0f, 0, 1, 2, 3, 4, 5, 6, 0x37, 0xd1, 0x01, 0x8b, 0xf5, 0x00, 0x02, 0xab]);
    // 0x278 << 6 | 0x2a = 0x9e2a
    assert_eq!(OF_SOME, [0x4f, 0, 1, 2, 3, 4, 5, 6, 0x1d, 0x4f, 0x01, 0x8b, 0xf5, 0x00, 0x02, 0xab]);
    assert_eq!(open(&KEY, &OF_SOME), Some(Issuer { epoch: 0x278, worker: 0x2a }));
    assert_eq!(Issuer { epoch: 0x278, worker: 0x2a }.socket(), 0x2a);
    assert_eq!(Issuer::new(13, 63).socket(), 5 * 64 + 63);
}

#[test]
fn every_issuer_opens_and_no_other() {
    for epoch in (0..1024).step_by(31) {
        for worker in 0..64 {
            let issuer = Issuer::new(epoch, worker);
            let id = issue(3, &KEY, NONCE, issuer);
            assert_eq!(key_number(&id), Some(3));
            assert_eq!(open(&KEY, &id), Some(issuer));
            assert_eq!(open(&[KEY[0], KEY[1] ^ 1], &id), None);
        }
    }
}

#[test]
fn a_changed_bit_breaks_the_seal_or_names_another_worker() {
    let issuer = Issuer::new(77, 3);
    let id = issue(1, &KEY, NONCE, issuer);
    for bit in 0..128 {
        let mut changed = id;
        changed[bit / 8] ^= 1 << (bit % 8);
        let opened = open(&KEY, &changed);
        match bit {
            // The first byte is no part of the seal: it selects the key.
            0..8 => assert_ne!(key_number(&changed), Some(1), "bit {bit}"),
            64..80 => assert!(opened.is_some_and(|other| other != issuer), "bit {bit}"),
            _ => assert_eq!(opened, None, "bit {bit}"),
        }
    }
}

#[test]
fn no_key_opens_no_id() {
    let forged = issue(0, &[0; 2], NONCE, Issuer::new(1, 0));
    assert_eq!(open(&[0; 2], &forged), None);
    for first in [0x8f, 0xef, 0x0e, 0x07] {
        let mut id = forged;
        id[0] = first;
        assert_eq!(key_number(&id), None, "{first:#x}");
    }
}

#[test]
fn epochs_live_until_they_are_removed_or_replaced() {
    let cell = QuicCell::default();
    cell.set_current_key(2, &KEY);
    let id = cell.issue(NONCE, Issuer::new(1033, 5));
    let issuer = cell.open(&id).expect("sealed by the current key");
    assert_eq!((issuer.epoch, issuer.worker, issuer.group()), (9, 5, 1));
    assert_eq!(cell.living(issuer), None);
    cell.set_epoch(1033, true);
    assert_eq!(cell.living(issuer), Some(1033));
    cell.set_epoch(17, true);
    assert_eq!(cell.living(issuer), None);
    cell.set_epoch(1033, false);
    assert!(cell.epochs().eq([17]), "the one that replaced it stays");
    cell.set_epoch(17, false);
    assert_eq!(cell.living(Issuer::new(17, 5)), None);
    // 0 is no process, although an ID can name it.
    assert_eq!(cell.living(Issuer::new(0, 0)), None);
}

#[test]
fn ids_of_the_key_before_still_open() {
    let cell = QuicCell::default();
    cell.set_current_key(0, &KEY);
    let before = cell.issue(NONCE, Issuer::new(1, 1));
    cell.set_current_key(1, &[7, 8]);
    let after = cell.issue(NONCE, Issuer::new(1, 1));
    assert_ne!(before, after);
    assert_eq!(cell.open(&before), cell.open(&after));
    assert!(cell.open(&before).is_some());
}
