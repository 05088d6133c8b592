//! Where webhooks may be sent: to addresses of the internet, and to networks of the operator's choice. A server that could be made to
//! call its own host or network for a client would be a way around their walls.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A network, as `10.0.0.0/8`, or a single address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    /// Leading bits that addresses of it have in common.
    bits: u32,
}

impl Network {
    fn contains(&self, address: IpAddr) -> bool {
        let (own, other, width) = match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                (u128::from(own.to_bits()), u128::from(other.to_bits()), 32)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => (own.to_bits(), other.to_bits(), 128),
            _ => return false,
        };
        let differ = own ^ other;
        // A network of 0 bits has all addresses.
        differ.checked_shr(width - self.bits).is_none_or(|rest| rest == 0)
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let no_address = |_| format!("`{text}` is no address, nor a network such as 10.0.0.0/8");
        let address: IpAddr = address.parse::<IpAddr>().map_err(no_address)?.to_canonical();
        let width = if address.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            None => width,
            Some(bits) => {
                let bits = bits.parse().ok().filter(|bits| *bits <= width);
                bits.ok_or_else(|| {
                    format!("`{text}` has no length from 0 to {width} behind the /")
                })?
            }
        };
        Ok(Self { address, bits })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

/// Whether a webhook may be sent to this address.
pub fn is_permitted(address: IpAddr, allowed: &[Network]) -> bool {
    let address = address.to_canonical();
    let public = match address {
        IpAddr::V4(address) => is_public(address),
        IpAddr::V6(address) => is_public_6(address),
    };
    public || allowed.iter().any(|network| network.contains(address))
}

/// Whether the address is of a host on the internet, by the registry of special-purpose addresses (RFC 6890).
fn is_public(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let special = match (a, b, c) {
        // This network, the host itself, links, private networks, those of carriers.
        (0 | 10 | 127, ..) | (169, 254, _) | (192, 168, _) => true,
        (172, 16..=31, _) | (100, 64..=127, _) => true,
        // Protocols, documentation, relays, benchmarks.
        (192, 0, 0 | 2) | (192, 88, 99) | (198, 18 | 19, _) | (198, 51, 100) | (203, 0, 113) => {
            true
        }
        // Multicast, reserved, broadcast.
        (224.., ..) => true,
        _ => false,
    };
    !special
}

fn is_public_6(address: Ipv6Addr) -> bool {
    let words = address.segments();
    match words {
        // What translates to IPv4 (NAT64, 6to4) is as good as that address.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => is_public(embedded(high, low)),
        [0x2002, high, low, ..] => is_public(embedded(high, low)),
        // Protocols such as Teredo, documentation.
        [0x2001, 0..=0x1ff, ..] | [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => false,
        // All others are not of hosts on the internet.
        [first, ..] => first >> 13 == 1,
    }
}

fn embedded(high: u16, low: u16) -> Ipv4Addr {
    Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_within_are_refused_in_every_spelling() {
        for inside in [
            "127.0.0.1",
            "127.255.3.4",
            "0.0.0.0",
            "10.1.2.3",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.0.1",
            "169.254.169.254",
            "100.64.0.1",
            "192.0.0.8",
            "198.18.0.1",
            "203.0.113.9",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "2002:c0a8:1::1",
            "2001::1",
            "2001:db8::1",
            "fe80::1",
            "fec0::1",
            "fc00::1",
            "fd12::1",
            "ff02::1",
            "100::1",
        ] {
            assert!(!is_permitted(inside.parse().unwrap(), &[]), "{inside}");
        }
        for outside in [
            "1.1.1.1",
            "172.15.0.1",
            "172.32.0.1",
            "100.63.255.255",
            "100.128.0.1",
            "192.0.1.1",
            "223.255.255.255",
            "::ffff:8.8.8.8",
            "64:ff9b::808:808",
            "2002:808:808::1",
            "2606:4700::1111",
            "2a00::1",
        ] {
            assert!(is_permitted(outside.parse().unwrap(), &[]), "{outside}");
        }
    }

    #[test]
    fn networks_are_permitted_by_the_operator() {
        let allowed: Vec<Network> = ["10.1.0.0/16", "127.0.0.1", "fd00::/8", "::ffff:192.168.1.1"]
            .map(|text| text.parse().unwrap())
            .to_vec();
        let permitted = |text: &str| is_permitted(text.parse().unwrap(), &allowed);
        for inside in ["10.1.2.3", "127.0.0.1", "::ffff:127.0.0.1", "fd12::1", "192.168.1.1"] {
            assert!(permitted(inside), "{inside}");
        }
        for outside in ["10.2.0.1", "127.0.0.2", "fe80::1", "192.168.1.2"] {
            assert!(!permitted(outside), "{outside}");
        }
        let all: Network = "0.0.0.0/0".parse().unwrap();
        assert!(is_permitted("10.9.9.9".parse().unwrap(), &[all]));
        assert!(!is_permitted("::1".parse().unwrap(), &[all]));
        for wrong in
            ["", "here", "10.0.0.0/33", "10.0.0.0/", "10.0.0.0/8/8", "::/129", "10.0.0.0/-1"]
        {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
        assert_eq!("10.0.0.1".parse::<Network>().unwrap().to_string(), "10.0.0.1/32");
    }
}
