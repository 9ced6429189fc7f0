//! MD5-crypt (`$1$`) and Apache's variant of it (`$apr1$`), for passwords that were hashed with it long ago. No
//! maintained crate implements them. The code follows `crypt-md5.c` of FreeBSD, as the other implementations do.

use md5::{Digest, Md5};

/// Alphabet of `crypt`'s base 64.
const DIGITS: &[u8; 64] = b"./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Returns the 22 digits of the hash of `password`. `magic` is `$1$` or `$apr1$`; `salt` is the salt behind it, at most
/// 8 bytes.
pub(crate) fn hash(password: &[u8], magic: &str, salt: &str) -> [u8; 22] {
    let salt = salt.as_bytes();
    let inner = Md5::new().chain_update(password).chain_update(salt).chain_update(password).finalize();
    let mut outer = Md5::new().chain_update(password).chain_update(magic).chain_update(salt);
    for chunk in password.chunks(16) {
        outer.update(&inner[..chunk.len()]);
    }
    // Adds one byte for each bit of the length. For a 0 bit this is the password's first byte, although the original
    // meant the inner hash's.
    let mut bits = password.len();
    while bits > 0 {
        outer.update(if bits & 1 == 1 { &[0] } else { &password[..1] });
        bits >>= 1;
    }
    let mut digest = outer.finalize();
    for round in 0..1000 {
        let mut md5 = Md5::new();
        let odd = round % 2 == 1;
        md5.update(if odd { password } else { &digest });
        if round % 3 != 0 {
            md5.update(salt);
        }
        if round % 7 != 0 {
            md5.update(password);
        }
        md5.update(if odd { &digest[..] } else { password });
        digest = md5.finalize();
    }
    encode(digest.into())
}

/// Encodes `digest` in base 64, lowest six bits first, in the permuted byte order of MD5-crypt.
fn encode(digest: [u8; 16]) -> [u8; 22] {
    const GROUPS: [[usize; 3]; 5] = [[0, 6, 12], [1, 7, 13], [2, 8, 14], [3, 9, 15], [4, 10, 5]];
    let mut text = [0; 22];
    for (group, digits) in GROUPS.iter().zip(text.chunks_mut(4)) {
        let value = group.iter().fold(0, |value, byte| value << 8 | usize::from(digest[*byte]));
        put(value, digits);
    }
    put(usize::from(digest[11]), &mut text[20..]);
    text
}

fn put(mut value: usize, digits: &mut [u8]) {
    for digit in digits {
        *digit = DIGITS[value & 0x3f];
        value >>= 6;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors come from the manuals of Apache and OpenSSL, and from `openssl passwd` 3.0 for lengths about the
    /// size of a block.
    #[test]
    fn known_passwords_have_known_hashes() {
        for (magic, salt, password, expect) in [
            ("$apr1$", "lZL6V/ci", "password", "eIMz/iKDkbtys/uU7LEK00"),
            ("$apr1$", "r31.....", "myPassword", "HqJZimcKQFAMYayBlzkrA/"),
            ("$1$", "abcdefgh", "password", "G//4keteveJp0qb8z2DxG/"),
            ("$1$", "x", "a", "P8VObTrxaqT4VBmnH06P8."),
            ("$1$", "saltpepp", "0123456789abcdef", "FGev1xvo1QKxspXRA1jT/0"),
            ("$1$", "saltpepp", "0123456789abcdef0", "OUde11u4WAX/h4l0/qVsW/"),
            ("$1$", "xyz", "päss word with more than thirty-two bytes", "q9eSGPWOSE5vmDrge0qvN0"),
            ("$apr1$", "x", "a", "16j9.5e7KiXmuYFAYpPJM/"),
            ("$apr1$", "saltsalt", "0123456789abcdef", "noZiBycUL1t9WTQEO7/nr1"),
            ("$apr1$", "saltsalt", "0123456789abcdef0", "P1pmVujRVrzjQyn1aY1oX1"),
            ("$apr1$", "xyz", "päss word with more than thirty-two bytes", "qUKKFqkQmEZJyognDcya41"),
        ] {
            let hash = hash(password.as_bytes(), magic, salt);
            assert_eq!(str::from_utf8(&hash), Ok(expect), "{magic}{salt}$ {password:?}");
        }
    }
}
