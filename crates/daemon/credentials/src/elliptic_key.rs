//! Private keys on elliptic curves as GnuTLS writes them.
//!
//! GnuTLS's certtool writes the number of such a key as an integer of ASN.1: with a zero before it if it is large, and
//! without its first zeroes if it is small. RFC 5915 wants it as long as the curve has it, and ring takes no other.

use pkcs8::PrivateKeyInfoRef;
use pkcs8::der::asn1::OctetStringRef;
use pkcs8::der::{Decode, Encode};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer};
use sec1::EcPrivateKey;

/// The algorithm of keys on elliptic curves (RFC 5480).
const EC_PUBLIC_KEY: &str = "1.2.840.10045.2.1";

/// The same key with a number of the right length. One that is no such key, or is right, comes back as it is.
pub(crate) fn with_whole_number(key: PrivateKeyDer<'static>) -> PrivateKeyDer<'static> {
    let mended = match &key {
        PrivateKeyDer::Sec1(der) => {
            mend(der.secret_sec1_der()).map(|der| PrivateSec1KeyDer::from(der).into())
        }
        PrivateKeyDer::Pkcs8(der) => {
            mend_pkcs8(der.secret_pkcs8_der()).map(|der| PrivatePkcs8KeyDer::from(der).into())
        }
        PrivateKeyDer::Pkcs1(_) | _ => None,
    };
    mended.unwrap_or(key)
}

fn mend_pkcs8(der: &[u8]) -> Option<Vec<u8>> {
    let key = PrivateKeyInfoRef::from_der(der).ok()?;
    if key.algorithm.oid.to_string() != EC_PUBLIC_KEY {
        return None;
    }
    let mended = mend(key.private_key.as_bytes())?;
    let private_key = OctetStringRef::new(&mended).ok()?;
    PrivateKeyInfoRef { private_key, ..key }.to_der().ok()
}

fn mend(der: &[u8]) -> Option<Vec<u8>> {
    let key = EcPrivateKey::from_der(der).ok()?;
    // A point: one byte that says how, and two coordinates of that length.
    let bytes = key.public_key?.len().checked_sub(1)? / 2;
    let number: Vec<u8> = key.private_key.iter().copied().skip_while(|byte| *byte == 0).collect();
    let missing = bytes.checked_sub(number.len())?;
    let whole = [vec![0; missing], number].concat();
    EcPrivateKey { private_key: &whole, ..key }.to_der().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key with that number, on a curve of four bytes.
    fn key(number: &[u8]) -> Vec<u8> {
        let public_key = Some(&[4, 1, 2, 3, 4, 5, 6, 7, 8][..]);
        EcPrivateKey { private_key: number, parameters: None, public_key }.to_der().unwrap()
    }

    #[track_caller]
    fn check(number: &[u8], expected: &[u8]) {
        assert_eq!(mend(&key(number)), Some(key(expected)));
    }

    #[test]
    fn a_number_is_as_long_as_the_curve_has_it() {
        check(&[0, 0x81, 2, 3, 4], &[0x81, 2, 3, 4]);
        check(&[2, 3, 4], &[0, 2, 3, 4]);
        check(&[1, 2, 3, 4], &[1, 2, 3, 4]);
        assert_eq!(mend(&key(&[1, 2, 3, 4, 5])), None);
        assert_eq!(mend(&[1, 2, 3]), None);
    }
}
