//! What is read from a certificate: whom it names, and when it counts.

use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::x509::X509Name;

/// A certificate that says nothing useful.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// It cannot be read.
    #[error("not a certificate of X.509")]
    Form,
    /// It has ended.
    #[error("a certificate that has expired (subject {0})")]
    Expired(String),
    /// It has not begun.
    #[error("a certificate that is not valid yet (subject {0})")]
    Early(String),
}

/// The subject of a certificate as QEMU's rules for identities have it: `C=GB,O=Example,CN=client`, in the order of the
/// certificate.
pub fn distinguished_name(certificate: &CertificateDer<'_>) -> Result<String, CertificateError> {
    Ok(name_of(&parse(certificate)?.subject))
}

/// Whether it counts now.
pub(crate) fn check_time(certificate: &CertificateDer<'_>) -> Result<(), CertificateError> {
    let parsed = parse(certificate)?;
    let validity = parsed.validity();
    if validity.is_valid() {
        return Ok(());
    }
    let subject = name_of(&parsed.subject);
    if validity.not_before > x509_parser::time::ASN1Time::now() {
        return Err(CertificateError::Early(subject));
    }
    Err(CertificateError::Expired(subject))
}

fn parse<'a>(certificate: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, CertificateError> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok().ok_or(CertificateError::Form)?;
    Ok(parsed)
}

fn name_of(name: &X509Name<'_>) -> String {
    let registry = x509_parser::objects::oid_registry();
    let relative = |attribute: &x509_parser::x509::AttributeTypeAndValue<'_>| {
        let kind = x509_parser::objects::oid2abbrev(attribute.attr_type(), registry);
        let kind = kind.map_or_else(|_| attribute.attr_type().to_id_string(), str::to_owned);
        let value = attribute.as_str().unwrap_or_default();
        format!("{kind}={}", escaped(value))
    };
    let set = |set: &x509_parser::x509::RelativeDistinguishedName<'_>| {
        set.iter().map(relative).collect::<Vec<_>>().join("+")
    };
    name.iter().map(set).collect::<Vec<_>>().join(",")
}

/// A value as RFC 4514, section 2.4, has it.
fn escaped(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    let last = value.chars().count().saturating_sub(1);
    for (place, char) in value.chars().enumerate() {
        let is_special = ",+\"\\<>;".contains(char)
            || (place == 0 && (char == '#' || char == ' '))
            || (place == last && char == ' ');
        if is_special {
            text.push('\\');
        }
        text.push(char);
    }
    text
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair};

    use super::*;

    #[track_caller]
    fn check(parts: &[(DnType, &str)], expected: &str) {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        for (kind, value) in parts {
            params.distinguished_name.push(kind.clone(), *value);
        }
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        assert_eq!(distinguished_name(certificate.der()).unwrap(), expected);
    }

    #[test]
    fn a_subject_reads_as_in_the_certificate() {
        check(
            &[
                (DnType::CountryName, "GB"),
                (DnType::OrganizationName, "Example, Inc"),
                (DnType::CommonName, "client"),
            ],
            "C=GB,O=Example\\, Inc,CN=client",
        );
        check(&[(DnType::CommonName, " a#b ")], "CN=\\ a#b\\ ");
    }

    #[test]
    fn what_is_no_certificate_has_no_subject() {
        let junk = CertificateDer::from(vec![1, 2, 3]);
        assert!(matches!(distinguished_name(&junk), Err(CertificateError::Form)));
    }
}
